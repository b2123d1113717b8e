"""`gpumem fit` and `gpumem why` as people and scripts run them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.summaries.parsers.own import to_json
from tests.estimators.explain.small_trace import small_summary
from tests.support.in_process import call_gpumem

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def _gpumem(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUMEM_", "COLUMNS"))
    }
    environment.update(
        {"PYTHONIOENCODING": "utf-8", "GPUMEM_SITE_CONFIG": "/dev/null/x", "HOME": "/dev/null/x"}
    )
    return call_gpumem(args, {**environment, **env})


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traced") / "small.json"
    path.write_text(to_json(small_summary()))
    return str(path)


def test_fit_answers_with_a_batch_that_fits_and_the_curve(traced: str) -> None:
    done = _gpumem("fit", traced, "--gpu", "a100-40gb", COLUMNS="72")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Small (gpumem, ")
    assert lines[1].startswith("largest batch for one a100 (39.0 of 40.0 GiB): ")
    assert any("╌ one a100" in line for line in lines)
    assert max(len(line) for line in lines[3:]) <= 72
    assert "▲" in done.stdout


def test_fit_as_json_holds_what_it_says(traced: str) -> None:
    known = ("--torch", "2.11.0+cu130")
    result = json.loads(_gpumem("fit", traced, "--gpu", "a100", "--shards", "3", "--json", *known).stdout)
    assert result["schema"] == "gpumem-fit/1"
    answer = result["fits"][0]
    assert answer["at"]["batch_size"] == answer["batch_size"]
    assert answer["at"]["request_mib"] <= answer["limit_mib"] == 3 * 1024
    assert answer["batch_size_at_best"] >= answer["batch_size"]
    again = json.loads(
        _gpumem(
            "estimate", traced, "--gpu", "a100", "--batch-size", str(answer["batch_size"]), "--json", *known
        ).stdout
    )
    assert again["request_mib"] == answer["at"]["request_mib"]
    peaks = [point["peak_mib"] for point in result["curve"]]
    assert peaks == sorted(peaks)
    # Of a job whose PyTorch nobody names the context may be larger: fewer samples fit for sure.
    unknown = json.loads(_gpumem("fit", traced, "--gpu", "a100", "--shards", "3", "--json").stdout)
    assert unknown["fits"][0]["batch_size"] < answer["batch_size"]


def test_fit_says_no_with_its_exit_code(traced: str) -> None:
    assert _gpumem("fit", traced, "--gpu", "a100", "--batch-size", "100000").returncode == 1
    done = _gpumem("fit", traced, "--gpu", "h200", "--shards", "1")
    assert done.returncode == 1
    assert "does not fit 1 shard of one h200" in done.stdout


def test_fit_says_that_a_scripts_trace_shows_one_batch_only() -> None:
    script = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.json"
    done = _gpumem("fit", str(script), "--gpu", "a100")
    assert done.returncode == 0
    assert "shows batch size 128 only" in done.stderr
    told = json.loads(_gpumem("fit", str(script), "--gpu", "a100", "--json").stdout)["notes"]
    assert any("batch size 128 only" in note for note in told)


def test_fit_without_a_gpu_shows_the_usual_ones(traced: str) -> None:
    done = _gpumem("fit", traced)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[3:]][:3] == ["GPU", "t4", "v100"]


def test_fit_plans_with_what_a_process_can_have_of_a_gpu_in_whole_shards(traced: str) -> None:
    result = json.loads(_gpumem("fit", traced, "--gpu", "h100", "--json").stdout)
    (answer,) = result["fits"]
    assert answer["gpu_memory_mib"] == 81559
    assert answer["limit_mib"] == 78 * 1024, "nvidia-smi's total without what the driver keeps"
    assert answer["at"]["request_mib"] <= answer["limit_mib"]
    assert answer["at"]["shards"] <= 78


def test_fit_refuses_more_shards_than_one_gpu_has(traced: str) -> None:
    done = _gpumem("fit", traced, "--gpu", "a100", "--shards", "400")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--shards 400: one a100 has 40.0 GiB, which is 39 shards of 1.0 GiB" in done.stderr
    several = _gpumem("fit", traced, "--shards", "30")
    assert "not shown, because they have fewer shards: t4, v100, rtx4090" in several.stderr
    assert "\na100 " in several.stdout


@pytest.mark.parametrize(("gpu", "shards"), [("h100", 79), ("a100", 40)])
def test_fit_refuses_shards_that_no_job_can_have(traced: str, gpu: str, shards: int) -> None:
    done = _gpumem("fit", traced, "--gpu", gpu, "--shards", str(shards))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"which is {shards - 1} shards" in done.stderr
    assert _gpumem("fit", traced, "--gpu", gpu, "--shards", str(shards - 1)).returncode == 0


def test_an_estimate_never_asks_for_more_shards_than_fit_gives_out(tmp_path: Path) -> None:
    """Only the margin makes these too large: the request ends at what jobs can have, in whole shards."""
    for batch in ("740", "760"):
        words = ("estimate", str(EXAMPLES / "resnet50.txt"), "--batch-size", batch, "--gpu", "h100")
        done = _gpumem(*words)
        assert "request 78.0 GiB = 78 shards" in done.stdout
        assert "does not surely fit" in done.stderr
        assert "one h100 has 78.0 GiB for jobs" in done.stderr
    site = tmp_path / "gpumem.toml"
    site.write_text("[sharing]\nshard_mib = 4096\n")
    result = json.loads(_gpumem(*words, "--json", GPUMEM_SITE_CONFIG=str(site)).stdout)
    assert (result["gpu_usable_mib"], result["request_mib"], result["shards"]) == (76 * 1024, 76 * 1024, 19)


def test_estimate_says_what_does_not_fit_and_which_gpu_it_assumed() -> None:
    large = _gpumem("estimate", str(EXAMPLES / "resnet50.txt"), "--batch-size", "512", "--gpu", "a100")
    assert "does not fit: one a100 has 40.0 GiB, of which jobs can use 39.0 GiB" in large.stdout
    assert "assumed" not in large.stderr
    plain = _gpumem("estimate", str(EXAMPLES / "resnet50.txt"), "--batch-size", "8", SLURM_CONF="/nowhere")
    assert "no cluster answers here, so a GPU of type h200 is assumed; --gpu names another" in plain.stderr
    result = json.loads(
        _gpumem(
            "estimate", str(EXAMPLES / "resnet50.txt"), "--batch-size", "512", "--gpu", "a100", "--json"
        ).stdout
    )
    assert (result["fits"], result["gpu_usable_mib"]) == (False, 39 * 1024)


@pytest.mark.slurm
def test_the_default_gpu_is_the_clusters(traced: str, cluster: Cluster, tmp_path: Path) -> None:
    env = {**cluster.env, "XDG_CACHE_HOME": str(tmp_path)}
    done = _gpumem("estimate", str(EXAMPLES / "resnet50.txt"), "--batch-size", "8", **env)
    assert ", a100 → peak" in done.stdout, done.stderr
    assert done.stderr == ""
    shown = json.loads(_gpumem("fit", traced, "--json", **env).stdout)
    assert [(one["gpu"], one["limit_mib"]) for one in shown["fits"]] == [("a100", 40 * 1024)]


def test_fit_takes_ordinary_summaries_and_plain_terminals() -> None:
    done = _gpumem("fit", str(EXAMPLES / "small-cnn.txt"), "--gpu", "t4", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "largest batch for one t4" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["fit", "nothing.txt"], "no such file"),
        (["fit", "nothing.py:build"], "nothing.py: no such file"),
        (["fit", str(EXAMPLES / "bert.txt"), "--input", "3x4"], "the text has shapes of its own"),
        (["fit", str(EXAMPLES / "bert.txt"), "--gpu", "z9000"], "unknown GPU 'z9000'"),
        (["why", str(EXAMPLES / "bert.txt")], "only layers, no trace"),
        (["summarize", "timm:resnet50", "-o", "/nowhere/x.json", "--batch-size", "4"], "there is no folder"),
        (["summarize", "timm:resnet50", "-o", "x.json"], "no batch size"),
        (["summarize", "timm:resnet50", "-o", "x.json", "--batch-size", "4", "--precision", "fp12"], "fp12"),
    ],
)
def test_bad_input_is_one_message_and_code_2(args: List[str], said: str) -> None:
    done = _gpumem(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_why_shows_the_step_the_tensors_and_what_would_help(traced: str) -> None:
    done = _gpumem("why", traced)
    assert done.returncode == 0, done.stderr
    assert "of tensors in the backward pass" in done.stdout
    assert "│forward" in done.stdout
    assert "▲ peak" in done.stdout
    assert "256 MiB  head" in done.stdout
    assert "checkpointing each of the 2 Block blocks" in done.stdout
    assert "loss in 4 parts: head" in done.stdout


def test_why_as_json_adds_up(traced: str) -> None:
    result = json.loads(_gpumem("why", traced, "--json").stdout)
    assert result["schema"] == "gpumem-why/1"
    assert sum(result["parts"].values()) == result["peak_mib"]
    highest = max(sum(point["mib"]) for point in result["timeline"])
    assert round(highest) == result["allocated_mib"]
    assert result["phases"][0]["name"] == "forward"


def test_why_writes_a_snapshot_for_pytorchs_viewer(traced: str, tmp_path: Path) -> None:
    file = tmp_path / "w.pickle"
    done = _gpumem("why", traced, "--snapshot", str(file))
    assert done.returncode == 0, done.stderr
    assert f"written: {file}; https://pytorch.org/memory_viz" in done.stdout
    assert {entry["action"] for entry in pickle.loads(file.read_bytes())["device_traces"][0]} >= {"alloc"}
    place = f"{tmp_path}/missing/w.pickle"
    assert f"{place}: there is no folder" in _gpumem("why", traced, "--snapshot", place).stderr
