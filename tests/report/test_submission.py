"""A submission as a line for people: what was estimated, what is asked for, and why."""

from __future__ import annotations

import io
import json
import re
from typing import Any, Optional

import pytest

from slurm_gpumem.config.load import Config
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.report.submission import explain_submission, submission_json, submission_line
from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, sbatch_table
from slurm_gpumem.submission.candidate_gpus import GpuModel
from slurm_gpumem.submission.decision import decision_of
from slurm_gpumem.submission.job.settings import OwnOptions, job_settings
from slurm_gpumem.submission.needs import NeedOnGpu
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.sbatch_call import build_call
from slurm_gpumem.submission.share.activity import Activity
from slurm_gpumem.submission.share.request import GpuRequest, Need
from slurm_gpumem.submission.submission import HETEROGENEOUS, RawInput, Submission, Workload
from slurm_gpumem.utilization.interference import usual_utilization
from tests.estimators.explain.small_trace import small_summary

SHARE = GpuRequest("shard:3", 3, 40, None, False, "3 of 40 shards on an a100", 3, 0)


def plan(
    request: Optional[GpuRequest] = SHARE,
    *,
    model: bool = True,
    activity: Optional[Activity] = None,
    **more: Any,
) -> Plan:
    """A plan for the small model, or for memory given by hand."""
    own = OwnOptions({"model": "nets/small.json"} if model else {"mem": "3G"})
    words = RawInput(read_command_line(["job.sh"], sbatch_table()), own, None)
    config = Config()
    asked = Submission(words, job_settings(config, (), {}, own), config)
    gpu, summary = find_gpu("a100"), small_summary()
    workload = Workload(summary, training_job(summary, StatedTraining())) if model else Workload(mem_mib=3072)
    estimate = registry.run("trace", summary, training_job(summary, StatedTraining()), gpu) if model else None
    largest = NeedOnGpu(GpuModel("a100"), Need(2000, 3072), estimate, activity)
    return Plan(asked, workload, largest, request, **more)


def test_the_line_names_the_model_its_peak_and_the_share() -> None:
    made = plan()
    assert made.largest is not None
    assert made.largest.estimate is not None
    peak = made.largest.estimate.peak_mib / 1024
    line = submission_line(made).replace("\n", " ")
    assert line.startswith("small.json, batch 16, ")
    assert line.endswith(f" peak {peak:.1f} GiB, asking for 3 GiB (3 of 40 shards on an a100)")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("trace", ""),
        ("remembered", " (60 % busy in earlier runs)"),
        ("assumed", " (not measured yet: 60 % busy)"),
    ],
)
def test_why_the_share_is_larger_and_what_it_may_cost_stand_below_the_line(source: str, why: str) -> None:
    used = usual_utilization(0.6, source)
    busy = Activity(0.5, 3, False, "pressure", 3, used, "shared")
    share = SHARE._replace(units=12, activity_units=12, reason="12 of 40 shards on an a100")
    *_, asked, cost = submission_line(plan(share, activity=busy)).split("\n")
    assert asked == f"asking for 12 of 40 shards on an a100: 3 for memory, 12 for GPU load{why}"
    assert re.fullmatch(r"expected slowdown while sharing [0-9.]+x, worst case [0-9.]+x", cost)
    line = submission_line(plan(share, activity=busy._replace(because="tolerance"))).replace("\n", " ")
    assert "for GPU load" + why + " (fewer with --max-slowdown above 3)" in line


@pytest.mark.parametrize("name", ["small.json", "the-model-of-an-experiment-with-a-name-of-some-length.json"])
def test_no_line_is_wider_than_110_columns(name: str) -> None:
    made = plan(SHARE._replace(units=20, activity_units=20), activity=Activity(0.5, 2, False, "pressure"))
    own = OwnOptions({"model": name})
    asked = made.asked._replace(settings=job_settings(Config(), (), {}, own))
    lines = submission_line(made._replace(asked=asked)).split("\n")
    assert lines[0].startswith(name)
    assert max(len(f"gpumem: {line}") for line in lines) <= 110


def test_a_summary_from_standard_input_is_called_that() -> None:
    made = plan()
    settings = job_settings(Config(), (), {}, OwnOptions({"model": "-"}))
    line = submission_line(made._replace(asked=made.asked._replace(settings=settings)))
    assert line.startswith("standard input, batch 16, ")


def test_the_arrow_is_ascii_where_stderr_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert " -> peak " in submission_line(plan())
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert " → peak " in submission_line(plan())


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (plan(model=False), "asking for 3 GiB (3 of 40 shards on an a100) as given by hand"),
        (
            plan(GpuRequest("gpu:1", 0, 0, None, True, "as --exclusive-gpu asks"), model=False),
            "asking for a whole GPU (gpu:1): as --exclusive-gpu asks",
        ),
        (
            plan(None, model=False, kept_because="it runs on 2 nodes"),
            "goes to sbatch as it is: it runs on 2 nodes",
        ),
    ],
)
def test_memory_by_hand_whole_gpus_and_kept_options_have_their_own_words(made: Plan, line: str) -> None:
    assert submission_line(made) == line


def test_a_job_that_goes_unchanged_says_why() -> None:
    made = plan(None)
    unchanged = Plan(made.asked._replace(goes_unchanged=HETEROGENEOUS))
    assert submission_line(unchanged) == HETEROGENEOUS


def test_the_explanation_tells_which_of_memory_and_activity_decided() -> None:
    assert explain_submission(plan())[-1].startswith("share: by memory; no slowdown limit counts")
    busy = Activity(0.5, 1.15, True, "pressure")
    lines = explain_submission(plan(SHARE._replace(units=20, activity_units=20), activity=busy))
    assert lines[-2] == "share: by activity, 20 shards; memory alone: 3 shards"
    assert "50 % of the GPU keeps slowdowns within 1.15 (the job's own limit)" in lines[-1]
    assert "nothing to explain: the GPU memory was given by hand" in explain_submission(plan(model=False))[0]


def test_a_decision_as_json_can_be_read_back() -> None:
    made = plan()
    decision = decision_of(made, build_call(made))
    read = json.loads(json.dumps(submission_json(decision)))
    assert (read["gres"], read["shards"], read["whole_gpu"]) == ("shard:3", 3, False)
    assert read["command"] == list(decision.argv)
    assert sum(read["parts"].values()) == read["peak_mib"] == decision.peak_mib
