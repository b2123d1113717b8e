"""From what is asked, the GPUs in reach and the need to a plan: every way a decision can go."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest

from slurm_gpumem.config.load import Config, SharingPolicy, TraceSettings
from slurm_gpumem.errors import DoesNotFitError, GpumemError, NotEstimatedError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import CustomForward, Estimate, Margin, TrainingJob
from slurm_gpumem.report.submission import submission_json, submission_line
from slurm_gpumem.slurm.submit.gpu_options import gpu_wish, merge_wishes
from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.candidate_gpus import CandidateGpus, GpuModel
from slurm_gpumem.submission.decide import decide
from slurm_gpumem.submission.decision import decision_of
from slurm_gpumem.submission.job.settings import OwnOptions, job_settings
from slurm_gpumem.submission.job_trace import batch_script, before_submission, cache
from slurm_gpumem.submission.job_trace.batch_script import ScriptRun
from slurm_gpumem.submission.job_trace.before_submission import whole_gpu_instead
from slurm_gpumem.submission.job_trace.result import Trace
from slurm_gpumem.submission.job_trace.trace_job import behind
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.sbatch_call import build_call
from slurm_gpumem.submission.share.activity import Activity
from slurm_gpumem.submission.share.host import HostShare
from slurm_gpumem.submission.share.request import GpuKind, Need
from slurm_gpumem.submission.submission import (
    HETEROGENEOUS,
    NOTHING_ASKED,
    RawInput,
    Submission,
    Workload,
    read_submission,
    read_workload,
)
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.run import TracedScript
from tests.support.kept import assert_kept, plain

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

A100 = GpuKind("a100", 40, 40960, 8, 16.0, 1, 128_000)
UNDIVIDED = A100._replace(units=0)


def asked(*argv: str, policy: Optional[SharingPolicy] = None, **own: str) -> Submission:
    """What a job asks for whose words are these, with settings of its own."""
    line = read_command_line([*argv, "job.sh"], sbatch_table())
    options = OwnOptions({key.replace("_", "-"): value for key, value in own.items()})
    config = Config(sharing=policy or SharingPolicy())
    wishes = merge_wishes(line.options, {}, ())
    return Submission(
        RawInput(line, options, None),
        job_settings(config, (), {}, options),
        config,
        wishes,
        gpu_wish(wishes, None),
    )


def plan(job: Submission, gib: int = 10, *, activity: Optional[float] = None, **candidates: Any) -> Plan:
    """The plan for a job that needs so much memory on every kind in reach."""
    fields: Dict[str, Any] = {
        "partitions": ("gpu",),
        "kinds": (A100,),
        "gpu_keeps_off_shards": True,
        **candidates,
    }
    kinds = fields["kinds"]
    own = None if activity is None else Activity(activity, 1.15, False, "pressure")
    need = Need(gib * 1024, gib * 1024, activity or 0.0)
    on = tuple(NeedOnGpu(GpuModel("a100"), need, None, own) for _ in kinds)
    return choose_request(
        job, Workload(mem_mib=gib * 1024), CandidateGpus(models=(GpuModel("a100"),), **fields), Needs(on)
    )


def test_a_job_gets_the_shards_of_its_need_and_its_part_of_the_host() -> None:
    made = plan(asked(mem="10G"))
    assert made.request is not None
    assert (made.request.gres, made.reason) == ("shard:10", "10 of 40 shards on an a100")
    assert (made.host, made.reserved_mib, made.shared) == (HostShare(4, 32000, 4), 10240, True)


def test_an_mps_unit_stands_for_its_part_of_the_gpus_memory() -> None:
    units = A100._replace(units=100)
    made = plan(asked(mem="10G", policy=SharingPolicy(gres="mps")), kinds=(units,))
    assert made.request is not None
    assert made.request.gres == "mps:25"
    assert made.reserved_mib == find_gpu("a100").memory_mib // 4


SMALL = GpuKind("t4", 15, 15360, 2, 3.5, 2, 60_000)
POLICIES = (
    SharingPolicy(),
    SharingPolicy(mode="observe"),
    SharingPolicy(max_slowdown=1.0),
    SharingPolicy(max_slowdown=100.0, gres="mps"),
)
CANDIDATES: List[Dict[str, Any]] = [
    {},
    {"whole_nodes": "big"},
    {"kinds": (UNDIVIDED,)},
    {"kinds": (A100, SMALL), "gpu_keeps_off_shards": False},
    {"kinds": (SMALL,)},
]


@pytest.mark.parametrize("own", [{}, {"mem": "10G"}, {"exclusive_gpu": "yes"}], ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "",
        "--gres=shard:3",
        "--gres=gpu:2",
        "--exclusive",
        "-G1",
        "-n2 -c3",
        "--mem=9G",
        "--gres=gpu:a100:1 -a1-9",
    ],
)
def test_every_plan_is_what_it_was_with_its_reason(own: Dict[str, str], words: str) -> None:
    shown = {}
    for (number, policy), (kinds, candidates), activity, gib in itertools.product(
        enumerate(POLICIES), enumerate(CANDIDATES), (None, 0.5, 1.0), (1, 39, 64)
    ):
        try:
            made = plan(asked(*words.split(), policy=policy, **own), gib, activity=activity, **candidates)
        except DoesNotFitError as error:
            told = str(error)
        else:
            call = build_call(made)
            told = repr((call, made.reason, submission_line(made), submission_json(decision_of(made, call))))
        shown[f"{number} {kinds} {activity} {gib}"] = told
    kept = {f"{own} {words}": json.dumps(shown, indent=0)}
    assert_kept(Path(__file__).with_name("plans.json"), kept)


def test_memory_that_no_gpu_has_is_refused_unless_the_gpu_is_the_jobs_own() -> None:
    with pytest.raises(
        DoesNotFitError, match=r"(?s)^64.0 GiB does not fit .*gpu \(a100, 40 GiB\).*Nothing was"
    ):
        plan(asked(mem="64G"), 64)
    assert plan(asked(mem="64G", exclusive_gpu="yes"), 64).request is not None


def words(*argv: str) -> RawInput:
    return RawInput(read_command_line(argv, sbatch_table()), OwnOptions(), None)


def test_a_job_that_says_nothing_goes_to_sbatch_word_for_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPUMEM_MODEL", "GPUMEM_MEM"):
        monkeypatch.delenv(name, raising=False)
    silent = read_submission(words("-Hn4", "job.sh", "-x"))
    assert silent.goes_unchanged == NOTHING_ASKED
    made = decide(silent)
    assert (made.request, made.reason) == (None, NOTHING_ASKED)
    assert build_call(made).call.argv == ("sbatch", "-Hn4", "job.sh", "-x")


def test_presets_count_for_jobs_that_a_site_traces_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GPUMEM_MODEL", "GPUMEM_MEM", "GPUMEM_TRACE"):
        monkeypatch.delenv(name, raising=False)
    site = tmp_path / "gpumem.toml"
    site.write_text('[trace]\ndefault = true\n[job]\ntrace-or = "whole-gpu"\n')
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(site))
    found = read_submission(words("--gres=gpu:1", "--wrap=python train.py"))
    assert (found.trace, found.settings.trace_or) == (True, "whole-gpu")
    instead = whole_gpu_instead(found)
    assert (instead.trace, instead.settings.exclusive_gpu) == (False, True)
    assert instead.settings.spelled("exclusive-gpu") == "--trace-or"


def test_a_trace_says_what_the_job_needs_whatever_was_given_before() -> None:
    summary = read_summary(EXAMPLES / "train.json")
    run = ScriptRun("jobs/job.sh", b"", (), {}, "/", GpuFacts())
    trace = Trace(run, TracedScript(b"", {}, (), (), {}, 4.2), summary, find_gpu("a100"), cached=False)
    found = asked(mem="4G")._replace(traced=trace)
    workload = read_workload(found)
    assert (workload.summary, workload.mem_mib) == (summary, None)
    assert Plan(found, workload).model_name == summary.name


@pytest.mark.parametrize(
    ("candidates", "unchanged", "not_estimated"),
    [
        (CandidateGpus(("gpu",), empty="no GPU here"), "not traced: no GPU here", ""),
        (CandidateGpus(("all",), whole_nodes="all"), "not traced: partition all gives whole nodes", ""),
        (CandidateGpus(("gpu",), (A100,), (GpuModel("a100"),)), "", "it shards its model"),
    ],
)
def test_what_needs_no_trace_or_has_no_answer_goes_on_without_one(
    candidates: CandidateGpus, unchanged: str, not_estimated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, **__: object) -> None:
        raise NotEstimatedError("it shards its model")

    monkeypatch.setattr(os, "geteuid", lambda: 1)  # root may not trace
    monkeypatch.setattr(before_submission, "find_candidates", lambda _: candidates)
    monkeypatch.setattr(before_submission, "largest_trace", answer)
    after = before_submission.with_trace(asked("--gres=gpu:1", trace="1"), lambda *_: None).asked
    assert (after.trace, after.goes_unchanged, after.not_estimated) == (False, unchanged, not_estimated)


def test_a_heterogeneous_job_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUMEM_MEM", "4G")
    several = read_submission(words("-n1", ":", "-n2", "job.sh"))
    assert several.goes_unchanged == HETEROGENEOUS
    assert build_call(decide(several)).call.argv == ("sbatch", "-n1", ":", "-n2", "job.sh")


OWN_CODE = CustomForward(0.8, ("PairBlock",))


def unseen_plan(*argv: str, unseen: CustomForward = OWN_CODE, **own: str) -> Plan:
    """The plan for a job whose text does not show enough."""
    job = asked(*argv, **own)
    found = Estimate(
        5000, 9000, 5000, {}, "corrected", "A100", TrainingJob(8), margin=Margin(custom_forward=unseen)
    )
    on = (NeedOnGpu(GpuModel("a100"), Need(5000, 9000), found, None),)
    candidates = CandidateGpus(
        partitions=("gpu",), kinds=(A100,), models=(GpuModel("a100"),), gpu_keeps_off_shards=True
    )
    return choose_request(job, Workload(), candidates, Needs(on))


def test_code_that_no_text_shows_shares_a_gpu() -> None:
    widened = unseen_plan(model="pair.txt").request
    assert widened is not None
    assert widened.gres == "shard:9"


def unfinished_plan(*, measured: bool = False, **own: str) -> Plan:
    """The plan for a job whose trace saw a part of its script."""
    summary = read_summary(EXAMPLES / "train.json")
    assert summary.trace is not None
    summary = summary._replace(trace=summary.trace._replace(unfinished="2 of 30 epochs"))
    run = ScriptRun("jobs/job.sh", b"", (), {}, "/", GpuFacts())
    trace = Trace(run, TracedScript(b"", {}, (), (), {}, 4.2), summary, find_gpu("a100"), cached=False)
    job = asked(**own)
    job = job._replace(traced=trace)
    margin = Margin() if measured else Margin(group="trace")
    name = "remembered" if measured else "trace"
    found = Estimate(5000, 9000, 5000, {}, name, "A100", TrainingJob(8), margin=margin)
    on = (NeedOnGpu(GpuModel("a100"), Need(5000, 9000), found, None),)
    candidates = CandidateGpus(
        partitions=("gpu",), kinds=(A100,), models=(GpuModel("a100"),), gpu_keeps_off_shards=True
    )
    return choose_request(job, Workload(summary=summary), candidates, Needs(on))


def test_a_job_whose_script_was_not_seen_to_its_end_gets_a_margin() -> None:
    widened = unfinished_plan()
    assert widened.request is not None
    assert widened.request.gres == "shard:9"
    assert "job.sh (traced in 4 s, not to its end: 2 of 30 epochs): " in submission_line(widened)
    assert submission_json(decision_of(widened, build_call(widened)))["unfinished"] == "2 of 30 epochs"


def test_what_a_run_has_shown_counts_instead_of_an_unfinished_trace() -> None:
    known = unfinished_plan(measured=True)
    assert known.request is not None
    assert (known.request.gres, known.unfinished) == ("shard:9", "")
    assert "not to its end" not in submission_line(known)


def test_a_text_without_shapes_never_decides_a_share() -> None:
    bare = CustomForward(1.0, ("PairNet",), no_shapes=True)
    plan = unseen_plan(model="pair.txt", unseen=bare)
    assert plan.request is not None
    assert (plan.request.gres, plan.shared) == ("gpu:1", False)
    assert plan.reason.startswith("the summary shows no shapes, so its peak is not estimated (--input 3x224")
    assert (plan.largest, decision_of(plan, build_call(plan)).peak_mib) == (None, None)
    assert re.search(r"peak [0-9]|est=|req=", f"{submission_line(plan)} {build_call(plan).added}") is None


TRACE = (EXAMPLES / "train.json").read_text()
LARGER = TRACE.replace("134217728", "934217728")
EACH = b"#!/bin/sh\npython train.py --task $SLURM_ARRAY_TASK_ID\n"
JOB = {"where": "job", "known": False}
CASES: Dict[str, Dict[str, Any]] = {
    **{f"{words} {len(data)}": {"words": words, "data": data}
       for words in ("", "-a5", "-a0-3", "-a2,9,4", "-a0-99:50") for data in (EACH, EACH[:25] + b"\n")},
    **{f"tasks {choice}": {"words": "-a3-9", "trace-tasks": choice}
       for choice in ("first", "last", "ends", "each", "3,7", "4-6", "7,7", "2-4", "all", "3;4")},
    **{f"{most} tasks": {"words": f"-a1-{most}", "trace-tasks": "each"} for most in (64, 65)},
    **{f"grows {grown}": {"facts": {"grown_bytes": grown}} for grown in (5 << 20, 1 << 20, (1 << 20) - 1)},
    "no array": {"trace-tasks": "first"}, "wrapped": {"words": "--wrap=echo${IFS}é", "data": b""},
    "srun": {"program": "srun", "command": ("./train", "it's", "x"), "data": b""},
    "salloc": {"program": "salloc", "command": (None,), "data": b""}, "off": {"where": "off"},
    "sharded": {"data": b"#!/bin/sh\ndeepspeed train.py\n"}, "exclusive": {"words": "--exclusive"},
    "its shards": {"words": "--gres=shard:3"}, "two GPUs": {"words": "--gres=gpu:2"},
    "two nodes": {"words": "-N2 --ntasks-per-node=2 --gres=gpu:2", "ranks": 4}, "known": {"where": "job"},
    "two ranks": {"words": "--gres=gpu:2", "ranks": 2}, "no ranks": {"words": "-N2 --gres=gpu:1"},
    "in a job": {**JOB, "words": "-A phys -a0-3 --dependency=singleton", "trace-or": "whole-gpu"},
    "stops": {**JOB, "trace-limit": "90"}, "srun in jobs": {**JOB, "program": "srun"},
    "clusters": {**JOB, "words": "-M other"}, "or": {**JOB, "words": "--dependency=after:1?after:2"},
    "no shards": {**JOB, "units": 0, "trace-or": "whole-gpu"},
}  # fmt: skip


def _after(
    monkeypatch: pytest.MonkeyPatch, words: str = "", data: bytes = EACH, program: str = "sbatch",
    command: Any = ("jobs/job.sh", "-x"), where: str = "here", known: bool = True, units: int = 40,
    ranks: int = 1, facts: Any = None, **own: Any,
) -> Dict[Any, Any]:  # fmt: skip
    """What follows; of tasks, 9 needs most, and the traces of all lie there already."""
    job = asked(*words.split(), trace="yes", **own)
    line = job.raw.line._replace(script=command[0], script_args=tuple(command[1:]))
    script = BatchScript(command[0], None, data) if data else None
    trace = TraceSettings(where=where, time_limit_s=300.0, memory_mib=4096, partition="cpu")
    raw = job.raw._replace(line=line, script=script, program=program)
    job = job._replace(raw=raw, config=Config(trace=trace), trace=True)
    kinds, models = (A100._replace(units=units),), (GpuModel("a100"),)
    reach = CandidateGpus(("gpu",), kinds, models, gpu_keeps_off_shards=True)
    monkeypatch.setattr(before_submission, "find_candidates", lambda _: reach)
    for run in before_submission._runs(job, reach.gpus[0])[0] if known else ():
        size = LARGER if run.environment.get("SLURM_ARRAY_TASK_ID") == "9" else TRACE
        made = TracedScript(size.encode(), facts or {}, ("made some up",), (), {}, 4.2, ranks)
        assert cache.keep(run, made, time.time()) is None
    after = before_submission.with_trace(job, lambda *_: None)
    now, said = after.asked, after.notes
    told: Dict[Any, Any] = {
        **dict(enumerate(said)),
        "why": (now.goes_unchanged, now.not_estimated, now.trace),
    }
    told["limits"] = [before_submission._limits(job, in_job=in_job) for in_job in (False, True)]
    if now.traced:
        run, task = now.traced.run, now.traced.run.environment.get("SLURM_ARRAY_TASK_ID")
        told["trace"] = (task, run.gpus, now.traced.cached, now.traced.estimate.request_mib, run.args)
        told["runs"] = (run.name, run.data)
    if after.deferred and after.plan:
        call = behind(build_call(after.plan), now, 77, stop=after.deferred.stop)
        told.update(job=after.deferred.call.argv, call=call.argv, gres=after.plan.request)
    return told


def test_what_is_traced_and_what_is_said_instead_is_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_submission, "os", SimpleNamespace(geteuid=lambda: 1))  # root may not trace
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = {}
    for name, case in CASES.items():
        monkeypatch.setenv("CASE", name)  # each has traces of its own
        try:
            told = _after(monkeypatch, **case)
        except GpumemError as error:
            told = {"refused": error}
        shown.update({f"{name}: {key}": repr(plain(value)) for key, value in told.items()})
        shown[name] = repr([*told])
    run = ScriptRun("jobs/job.sh", b"", (), {"SLURM_NNODES": "1"}, "/", GpuFacts())
    for gpus in (1, 3):
        shown[f"too many for {gpus}"] = batch_script._too_many(run._replace(gpu=GpuFacts(gpus=gpus)), 4)
    assert_kept(Path(__file__).with_name("before_trace.json"), shown)


def test_a_trace_counts_while_its_files_stay_and_no_room_for_it_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "more.txt").write_text("1")
    run = ScriptRun("job.sh", b"x", ("more.txt",), {"LR": "1"}, str(tmp_path), GpuFacts())
    now, lib = time.time(), tmp_path / "lib"
    made = TracedScript(b"{}", {"n": 3}, ("n",), ("c",), {}, 1.5, 2, (), (str(lib),))
    assert (cache.keep(run, made, now - 60), cache.known(run)) == (None, None)  # edited while it was traced
    assert cache.keep(run, made, now + 60) is None
    assert cache.known(run) == replace(made, files=(f"{tmp_path}/more.txt",))
    assert cache.known(run._replace(environment={"LR": "1", "SHLVL": "2"})) is not None
    assert cache.known(run._replace(environment={"LR": "2"})) is None
    lib.mkdir()
    assert cache.known(run) is None
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/more.txt")
    note = f"the trace is not kept for the next time: {tmp_path}/more.txt/gpumem/traces: Not a directory"
    assert cache.keep(run, made, now + 60) == note
