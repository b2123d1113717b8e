"""`gpumem estimate` as people and scripts run it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Dict, Optional

import pytest

from slurm_gpumem.estimators import registry
from slurm_gpumem.units import format_at_least
from tests.support.in_process import call_gpumem

CNN = Path(__file__).parents[1] / "estimators" / "data" / "small_cnn.txt"


def _gpumem(*args: str, env: Optional[Dict[str, str]] = None) -> subprocess.CompletedProcess[str]:
    # No configuration of the machine that runs the tests.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUMEM_")}
    environment.update(
        {"PYTHONIOENCODING": "utf-8", "GPUMEM_SITE_CONFIG": "/dev/null/nothing", "HOME": "/dev/null/nothing"}
    )
    environment.update(env or {})
    return call_gpumem(args, environment)


def test_the_answer_is_one_line() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "8", "--estimator", "deepspeed", "--gpu", "h200")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "small_cnn, batch 8, Adam, fp32, h200 → peak 0 MiB, request 0 MiB = 0 shards\n"
    assert done.stderr == ""


def test_a_model_that_is_sharded_over_gpus_gets_an_answer_and_no_number() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "8", "--gpus", "4", "--strategy", "fsdp")
    said = "it shards its model over GPUs (FSDP): its peak is not estimated; it keeps whole GPUs"
    assert (done.returncode, done.stdout, " ".join(done.stderr.split())) == (1, "", f"gpumem: {said}")


def test_a_request_reads_as_what_is_enough() -> None:
    assert [format_at_least(mib) for mib in (500, 1024, 16384, 16385)] == [
        "500 MiB", "1.0 GiB", "16.0 GiB", "16.1 GiB",
    ]  # fmt: skip


def test_json_has_the_contract_and_says_the_whole_job() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "8", "--optimizer", "sgd", "--json", "--explain")
    result = json.loads(done.stdout)
    for key in ("peak_mib", "request_mib", "parts", "estimator", "gpu", "shards", "warnings", "schema"):
        assert key in result
    assert result["schema"] == "gpumem-estimate/1"
    assert sum(result["parts"].values()) == result["peak_mib"]
    assert result["shards"] == -(-result["request_mib"] // 1024)
    assert result["job"]["optimizer"] == "sgd"
    assert (result["model"]["format"], result["model"]["params"]) == ("torchsummary", 5514)
    assert result["alternatives"]["half_batch"]["batch_size"] == 4


def test_explain_shows_parts_the_request_and_what_would_change_it() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "20000", "--explain", "--estimator", "faketensor")
    lines = done.stdout.splitlines()
    assert lines[0] == "small_cnn (torchsummary, 10 layers, 5,514 parameters), batch 20000, Adam, fp32, h200"
    assert [line.split()[0] for line in lines[1:11]] == [
        "weights", "gradients", "optimizer", "activations", "workspace", "fragmentation", "context",
        "peak", "margin", "request",
    ]  # fmt: skip
    assert "█" in lines[4]
    assert " shards" in lines[10]
    assert "what would change it:" in lines
    assert "half the batch needs" in done.stdout
    assert "is the largest batch for" in done.stdout
    assert max(map(len, lines)) <= 100


def test_explain_has_few_lines_and_tells_the_rest_on_request() -> None:
    call = ("estimate", str(CNN), "--batch-size", "20000", "--gpu", "h200", "--explain")
    short, long = _gpumem(*call).stdout, _gpumem(*call, "-v").stdout
    assert len(short.splitlines()) <= 18
    assert long.startswith(short)
    for start in ("assumed: cross-entropy", "alone on the GPU: ", "request by --coverage: 0.9: "):
        assert start in long
        assert start not in short
    refused = _gpumem("estimate", str(CNN), "-v")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_the_same_question_again_is_answered_by_the_kept_estimate(tmp_path: Path) -> None:
    call = ("estimate", str(CNN), "--batch-size", "64", "--gpu", "h200")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    first, again = _gpumem(*call, env=env), _gpumem(*call, env=env)
    assert (first.returncode, again.returncode) == (0, 0)
    assert (again.stdout, again.stderr) == (first.stdout, first.stderr)
    assert len(list((tmp_path / "gpumem" / "estimates").iterdir())) == 1


def test_a_terminal_without_utf8_gets_ascii() -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = _gpumem("estimate", str(CNN), "--batch-size", "64", "--explain", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "#" in done.stdout


def test_all_estimators_stand_side_by_side() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "8", "--estimator", "all")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    able = [name for name in registry.estimator_names() if name != registry.TRACE]
    assert names == ["estimator", *able]
    as_json = _gpumem("estimate", str(CNN), "--batch-size", "8", "--estimator", "all", "--json").stdout
    assert [e["estimator"] for e in json.loads(as_json)["estimators"]] == able


def test_a_job_too_large_for_the_gpu_is_said_so() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "400000", "--gpu", "t4", "--estimator", "faketensor")
    assert "does not fit: one t4 has 15.0 GiB" in done.stdout


def test_defaults_come_from_the_sites_file_then_the_environment_then_options(tmp_path: Path) -> None:
    config = tmp_path / "gpumem.toml"
    config.write_text('[sharing]\nshard_mib = 2048\n[job]\noptimizer = "sgd"\ngpu = "a100"\n')
    env = {"GPUMEM_SITE_CONFIG": str(config), "GPUMEM_OPTIMIZER": "adamw"}
    result = json.loads(_gpumem("estimate", str(CNN), "--batch-size", "8", "--json", env=env).stdout)
    assert (result["job"]["batch_size"], result["job"]["optimizer"], result["gpu"]) == (8, "adamw", "a100")
    assert result["shards"] == -(-result["request_mib"] // 2048)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.txt"], "nowhere.txt: no such file"),
        ([str(CNN)], "no batch size"),
        ([str(CNN), "--batch-size", "0"], "--batch-size: batch-size must be at least 1, not 0"),
        ([str(CNN), "--batch-size", "-3"], "batch-size must be at least 1, not -3"),
        ([str(CNN), "--batch-size", "8", "--gpu", "h2000"], "unknown GPU 'h2000'; did you mean"),
        ([str(CNN), "--batch-size", "8", "--optimizer", "adma"], "did you mean 'adam'"),
        ([str(CNN), "--batch-size", "8", "--estimator", "horuss"], "did you mean 'horus'"),
        ([str(CNN), "--batch-size", "x"], "must be a whole number, not 'x'"),
    ],
)
def test_wrong_input_is_said_in_a_few_lines_with_exit_code_2(args: list[str], message: str) -> None:
    done = _gpumem("estimate", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def _answer(*args: str, env: Optional[Dict[str, str]] = None) -> Dict[str, object]:
    done = _gpumem("estimate", str(CNN), "--batch-size", "20000", "--gpu", "h200", "--json", *args, env=env)
    assert done.returncode == 0, done.stderr
    found: Dict[str, object] = json.loads(done.stdout)
    return found


def test_the_coverage_comes_from_the_option_a_variable_or_the_sites_file(tmp_path: Path) -> None:
    plain = _answer()
    low = _answer("--coverage", "0.9")
    assert low["peak_mib"] == plain["peak_mib"]
    assert low["coverage"] == 0.9
    assert low["request_mib"] == plain["requests"]["0.9"]  # type: ignore[index]
    assert plain["request_mib"] > low["request_mib"]  # type: ignore[operator]
    assert _answer(env={"GPUMEM_COVERAGE": "0.9"})["request_mib"] == low["request_mib"]
    site = tmp_path / "gpumem.toml"
    site.write_text("[sharing]\ncoverage = 0.9\n")
    by_site = {"GPUMEM_SITE_CONFIG": str(site)}
    assert _answer(env=by_site)["request_mib"] == low["request_mib"]
    assert _answer("--coverage", "0.98", env=by_site)["coverage"] == 0.98


@pytest.mark.parametrize("coverage", ["2", "0.1", "much", "1"])
def test_a_coverage_that_cannot_be_is_refused(coverage: str) -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "8", "--coverage", coverage)
    assert done.returncode == 2
    assert "a share of jobs from 0.5 to 0.995" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_says_what_the_margin_is_and_what_makes_it_smaller() -> None:
    done = _gpumem("estimate", str(CNN), "--batch-size", "20000", "--gpu", "h200", "--explain")
    assert "  margin " in done.stdout
    assert ", enough for about " in done.stdout
    assert "a smaller margin: a trace (gpumem trace); one measured run" in done.stdout
    result = _answer("--explain")
    assert result["doubt_mib"] == result["request_mib"] - result["peak_mib"]  # type: ignore[operator]
    assert set(result["requests"]) == {"0.9", "0.98", "0.995"}  # type: ignore[call-overload]


def test_a_text_without_shapes_is_refused_with_what_to_do_and_a_named_estimator_guesses() -> None:
    text = str(Path(__file__).parents[1] / "summaries" / "texts" / "convnextv2-no-input.txt")
    done = _gpumem("estimate", text, "--batch-size", "8", "--gpu", "h200")
    assert (done.returncode, done.stdout) == (2, "")
    assert "shows no shapes" in done.stderr
    assert "depth=20" in done.stderr
    assert "gpumem trace" in done.stderr
    assert _gpumem("estimate", text, "--batch-size", "8", "--estimator", "corrected").returncode == 0


PRINTED = """\
MyNet(
  (conv): Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
  (pool): AdaptiveAvgPool2d(output_size=1)
  (head): Linear(in_features=64, out_features=10, bias=True)
)
"""


def test_the_input_of_a_printed_model_is_an_option_a_variable_or_a_refusal(tmp_path: Path) -> None:
    text = tmp_path / "net.txt"
    text.write_text(PRINTED)
    asked = ("estimate", str(text), "--batch-size", "256", "--gpu", "h200", "--json")
    refused = _gpumem(*asked)
    assert refused.returncode == 2
    assert "--input 3x224x224" in refused.stderr
    small = json.loads(_gpumem(*asked, "--input", "3x64x64").stdout)
    large = json.loads(_gpumem(*asked, "--input", "3,256,256").stdout)
    assert large["peak_mib"] > 3 * small["peak_mib"] - 2 * small["parts"]["context"]
    by_variable = _gpumem(*asked, env={"GPUMEM_INPUT": "3x64x64"})
    assert json.loads(by_variable.stdout)["peak_mib"] == small["peak_mib"]
    wrong = _gpumem(*asked, "--input", "1x64x64")
    assert wrong.returncode == 2
    assert "conv (line 2, Conv2d) takes 3 channels, and gets 1" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    fits = _gpumem("fit", str(text), "--gpu", "h200", "--input", "3x64x64")
    assert fits.returncode == 0, fits.stderr


def test_json_and_explain_say_what_was_measured_where() -> None:
    resnet = str(Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt")
    cases = {"h200": (), "a100": (), "l40s": ("--torch", "2.6.0+cu124")}
    where, explained = {}, {}
    for name, more in cases.items():
        args = ("estimate", resnet, "--batch-size", "8", "--gpu", name, *more)
        where[name] = json.loads(_gpumem(*args, "--json").stdout)["measured"]
        explained[name] = _gpumem(*args, "--explain").stdout
    assert where == {
        "h200": {"context": "on such a GPU", "context_mib": [764, 764], "workspaces": "on such a GPU"},
        "a100": {"context": "elsewhere", "context_mib": [522, 1727], "workspaces": "on an H200"},
        "l40s": {"context": "elsewhere", "context_mib": [426, 426], "workspaces": "on an H200"},
    }
    assert explained["h200"].count(", enough for about 99 % of such jobs\n") == 1
    for name in ("a100", "l40s"):
        assert f", enough for about 96 % of such jobs ({name} not calibrated)" in explained[name]
    assert "--torch with the job's torch.__version__; gpumem calibrate on a100" in explained["a100"]
    # What stated facts leave open is one line, with and without -v.
    args = ("estimate", resnet, "--batch-size", "8", "--gpu", "a100", "--explain")
    for said in (explained["a100"], _gpumem(*args, "-v").stdout):
        (line,) = [line for line in said.splitlines() if "left open" in line]
        assert line.startswith("left open: the CUDA context on a100, 522 to 1727 MiB elsewhere: 1727 taken")
    assert "left open" not in explained["h200"]
