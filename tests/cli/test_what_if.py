from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.slurm.state.history import FIELDS
from tests.support.kept import assert_kept

_KEPT = Path(__file__).with_name("what_if.json")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1_790_000_000 + seconds))


def _file(tmp_path: Path, *, known: bool, jobs: int = 300) -> str:
    """A month of a small busy site: 2 nodes of 4 GPUs, run first come, first served."""
    rng = random.Random(3)
    lines = ["|".join(FIELDS)]
    free = [0.0] * 8
    arrival = 0.0
    for number in range(1, jobs + 1):
        arrival += rng.expovariate(1 / 700)
        gpus = 1 if rng.random() < 0.9 else 4
        if gpus == 1:
            places = [min(range(8), key=lambda place: free[place])]
        else:
            places = min(([0, 1, 2, 3], [4, 5, 6, 7]), key=lambda four: max(free[p] for p in four))
        start = max(arrival, *(free[place] for place in places))
        end = start + rng.uniform(600, 9000)
        for place in places:
            free[place] = end
        row = {
            "JobIDRaw": str(number), "User": f"secret{number % 7}", "State": "COMPLETED",
            "Partition": "vip" if number % 3 else "normal", "Submit": _moment(arrival),
            "Eligible": _moment(arrival), "Start": _moment(start), "End": _moment(end), "TimelimitRaw": "300",
            "NCPUS": "4", "NNodes": "1",
            "NodeList": f"host{places[0] // 4}", "AllocTRES": f"cpu=4,gres/gpu:a100={gpus},gres/gpu={gpus}",
        }  # fmt: skip
        lines.append("|".join(row.get(name, "") for name in FIELDS))
        if known:
            step = {**row, "JobIDRaw": f"{number}.batch",
                    "TRESUsageInMax": f"gres/gpumem={rng.randint(900, 9000)}M",
                    "TRESUsageInAve": f"gres/gpuutil={rng.randint(5, 60)}"}  # fmt: skip
            lines.append("|".join(step.get(name, "") for name in FIELDS))
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_history_with_gpu_use_gives_one_figure_each_and_no_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", _file(tmp_path, known=True)]) == 0
    text = capsys.readouterr().out
    assert_kept(_KEPT, {"known": text})
    assert "300 jobs on GPUs by 7 users, 9" in text
    assert "8 × a100 of 40 GiB in 2 nodes (as seen from the jobs" in text
    assert "memory of jobs on one GPU from: gres/gpumem 100%" in text
    assert "shared by an MPS server for each user, placement level, max_slowdown 3.5" in text
    assert "–" not in text.split("How sure")[0].replace("… within", "")
    assert "secret" not in text
    assert "vip" not in text
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 120


def test_where_nobody_waited_it_does_not_say_that_the_simulation_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", _file(tmp_path, known=True, jobs=2)]) == 0
    text = capsys.readouterr().out
    assert "recorded mean wait 0.00 h" in text
    assert "nobody waited, so this does not show how well the simulation fits" in text
    assert "close enough" not in text


def test_without_gpu_use_the_answer_is_a_range_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", _file(tmp_path, known=False), "--names"]) == 0
    text = capsys.readouterr().out
    assert_kept(_KEPT, {"unknown": text})
    assert "assumed 100%" in text
    assert "the ranges are over three assumptions" in text
    assert "–" in text
    assert "vip" in text
    assert "secret1" in text


def test_sharing_shortens_the_queue_of_a_busy_site_and_its_figures_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", _file(tmp_path, known=True), "--json"]) == 0
    text = capsys.readouterr().out
    assert_kept(_KEPT, {"json": re.sub(r"(\d\.\d{4})\d+", r"\1", text)})
    found = json.loads(text)
    ways = found["totals"]["middle"]
    assert ways["shared"]["waiting_h"] < ways["whole GPUs"]["waiting_h"]
    assert ways["shared"]["gpu_hours"] < ways["whole GPUs"]["gpu_hours"]
    assert ways["whole GPUs"]["slowdown"] == pytest.approx(1.0)
    # By memory alone few of these meet: the limit changes little, and who meets whom a little.
    assert 1.0 <= ways["shared, bounded"]["slowdown"] <= 1.05 * ways["shared"]["slowdown"]
    # The made site ran its jobs first come, first served: backfill can only do a little better.
    assert ways["whole GPUs"]["waiting_h"] == pytest.approx(found["recorded_wait_h"], rel=0.25)
    assert sum(row["jobs"] for row in found["partitions"]) == 300
    assert all(row["name"].startswith("user ") for row in found["by_user"])


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("nothing\n", [], "not the output of sacct that is needed"),
        ("|".join(FIELDS) + "\n", [], "no job that ran on GPUs"),
        (None, [], "cannot be read"),
        ("|".join(FIELDS) + "\n", ["--max-slowdown", "0.9"], "--max-slowdown is a ratio above 1"),
        ("|".join(FIELDS) + "\n", ["--mode", "mps"], "choose from per-user, shared, timeslice"),
        ("|".join(FIELDS) + "\n", ["--since", "soon"], "'soon' is not a time"),
    ],
)
def test_a_wrong_file_or_option_is_refused(
    tmp_path: Path, content: Any, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.txt"
    if content is not None:
        path.write_text(content)
    assert main(["what-if", str(path), *options]) == 2
    assert says in capsys.readouterr().err.replace(
        "'per-user', 'shared', 'timeslice'", "per-user, shared, timeslice"
    )


def test_rows_that_cannot_be_played_are_mentioned_and_the_rest_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(_file(tmp_path, known=True, jobs=40))
    header, *rows = path.read_text().splitlines()
    running = rows[0].replace(rows[0].split("|")[6], "Unknown")
    endless = rows[2].replace("gres/gpu=1", "gres/gpu=999999999").replace("gres/gpu=4", "gres/gpu=999999999")
    # As an editor on another system saves it.
    path.write_bytes(("\ufeff" + "\r\n".join([header, *rows, running, endless]) + "\r\n").encode())
    assert main(["what-if", str(path)]) == 0
    text = capsys.readouterr().out
    assert "40 jobs on GPUs" in text
    assert "left out: 2 rows: 1 still running or never started, 1 with an absurd number of GPUs" in text


def test_a_file_whose_times_nobody_can_read_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(_file(tmp_path, known=False, jobs=5))
    path.write_text(re.sub(r"\d{4}-(\d\d)-(\d\d)T", r"\2/\1 ", path.read_text()))
    assert main(["what-if", str(path)]) == 2
    assert "Left out: 5 with times that cannot be read" in capsys.readouterr().err


def test_mig_instances_stay_as_they_are_and_unknown_types_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(_file(tmp_path, known=True, jobs=60))
    text = path.read_text()
    path.write_text(text.replace("gpu:a100", "gpu:a100_1g.5gb"))
    assert main(["what-if", str(path), "--json"]) == 0
    ways = json.loads(capsys.readouterr().out)["totals"]["middle"]
    assert ways["shared"] == ways["whole GPUs"] == ways["shared, bounded"]
    path.write_text(text.replace("gpu:a100", "gpu:toaster"))
    assert main(["what-if", str(path)]) == 0
    assert "toaster of 140 GiB in 2 nodes (as seen from the jobs" in capsys.readouterr().out
    assert main(["what-if", str(path), "--gpu-memory", "24G"]) == 0
    assert "toaster of 24 GiB in 2 nodes" in capsys.readouterr().out


def test_a_history_may_come_through_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(_file(tmp_path, known=True, jobs=20)) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["what-if", "-"]) == 0
    assert "20 jobs on GPUs" in capsys.readouterr().out


def test_more_gpus_than_the_jobs_showed_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, known=True)
    assert main(["what-if", path, "--gpus", "4x4xa100-40gb"]) == 0
    assert "16 × a100 of 40 GiB in 4 nodes\n" in capsys.readouterr().out
    assert main(["what-if", path, "--gpus", "1x1xa100-40gb"]) == 2


def test_the_command_for_another_machine_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--command"]) == 0
    assert capsys.readouterr().out.startswith("sacct -a -P -S 20")
