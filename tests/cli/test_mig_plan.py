"""gpumem mig-plan: a layout from a site's own history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.estimators.mig_layouts import fits
from slurm_gpumem.slurm.history import FIELDS
from tests.cli.test_what_if import _file, _moment


def history(tmp_path: Path, *, jobs: int, mib: int, util: int, gpus: int = 1, kind: str = "a100") -> str:
    """Many small jobs at once on one node of four GPUs."""
    lines = ["|".join(FIELDS)]
    for number in range(1, jobs + 1):
        row = {
            "JobIDRaw": str(number), "User": "u", "Partition": "gpu", "Submit": _moment(number),
            "Eligible": _moment(number), "Start": _moment(number * 900), "End": _moment(number * 900 + 3600),
            "TimelimitRaw": "300", "NodeList": "host0",
            "AllocTRES": f"gres/gpu:{kind}={gpus},gres/gpu={gpus}",
        }  # fmt: skip
        step = {**row, "JobIDRaw": f"{number}.batch", "TRESUsageInMax": f"gres/gpumem={mib}M",
                "TRESUsageInAve": f"gres/gpuutil={util}"}  # fmt: skip
        lines += ["|".join(each.get(name, "") for name in FIELDS) for each in (row, step)]
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> Dict[str, Any]:
    assert main(["mig-plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["pools"][0]


def test_many_small_jobs_get_many_small_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--from", history(tmp_path, jobs=80, mib=3000, util=8))
    instances = [name for part in found["plan"] for name in part["instances"] * part["gpus"]]
    assert len(instances) >= 20
    assert all(fits("a100", tuple(part["instances"])) for part in found["plan"])
    assert sum(part["gpus"] for part in found["plan"]) == found["gpus"]
    totals = found["totals"]["middle"]
    assert totals["this layout"]["completion_h"] < totals["whole GPUs"]["completion_h"] / 2


def test_jobs_that_need_the_whole_gpu_keep_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = history(tmp_path, jobs=40, mib=30_000, util=95)
    assert [part["instances"] for part in planned(capsys, "--from", path)["plan"]] == [[]]
    assert main(["mig-plan", "--from", path]) == 0
    assert "Best as they are, whole" in capsys.readouterr().out


def test_busy_jobs_ask_for_more_than_their_memory_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = history(tmp_path, jobs=60, mib=3000, util=66)
    found = planned(capsys, "--from", path)
    asked = found["totals"]["middle"]["this layout"]["asked"]
    # Busy for 66 % of the time is an SM activity of 35 %: 38 of 108 multiprocessors. 3g has 42, 2g 28.
    assert sum(jobs for kind, jobs in asked.items() if kind[0] in "12") == 0
    assert asked.get("3g.20gb", 0) + asked.get("4g.20gb", 0) == 60


def test_jobs_on_several_gpus_keep_as_many_whole_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, known=True, jobs=60)  # a tenth of them on four GPUs
    whole = [part["gpus"] for part in planned(capsys, "--from", path)["plan"] if not part["instances"]]
    assert whole
    assert whole[0] >= 4


def test_jobs_that_ran_on_instances_are_planned_for_the_gpus_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = history(tmp_path, jobs=30, mib=3000, util=8, kind="1g.18gb")
    assert main(["mig-plan", "--from", path]) == 1
    assert "ran on MIG instances, which are left out; --gpus" in capsys.readouterr().out
    found = planned(capsys, "--from", path, "--gpus", "1x2xh200")
    assert (found["gpu"], found["gpus"]) == ("h200", 2)


def test_gpus_that_cannot_be_divided_are_named_and_the_answer_is_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mig-plan", "--from", history(tmp_path, jobs=9, mib=900, util=8, kind="v100")]) == 1
    assert "v100: left whole" in capsys.readouterr().out


def test_the_screen_has_the_commands_that_make_the_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mig-plan", "--from", history(tmp_path, jobs=80, mib=3000, util=8)]) == 0
    text = capsys.readouterr().out
    assert "nvidia-smi mig -cgi " in text
    assert "shares within 1.15" in text
    assert "not measured on MIG" in text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--max-slowdown", "1"], "a ratio above 1"),
        (["--gpus", "many"], "names no GPUs"),
        (["--gpus", "1x1xh200"], "more than that"),
        (["--from", "/nonexistent"], "cannot be read"),
    ],
)
def test_bad_input_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    path = history(tmp_path, jobs=3, mib=900, util=8, gpus=2)
    given = argv if "--from" in argv else ["--from", path, *argv]
    assert main(["mig-plan", *given]) == 2
    assert said in capsys.readouterr().err


def test_the_command_for_another_machine_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mig-plan", "--command"]) == 0
    assert capsys.readouterr().out.startswith("sacct -a -P ")
