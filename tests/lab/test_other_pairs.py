from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.score.lucid_pairs import ALONE, PAIRS, predicted, read_pairs
from lab.score.other_pairs import main, our_pairs, pair_work
from slurm_gpumem.utilization.sets import SHARED, TIMESLICE


def test_pairs_that_fit_are_counted_once() -> None:
    table = {
        "('a', 1)": {"null": 10.0, "('a', 1)": [5.0, 5.0], "('b', 1)": [8.0, 1.0], "('c', 1)": [0.0, 0.0]},
        "('b', 1)": {"null": 2.0, "('a', 1)": [1.0, 8.0], "('b', 1)": [2.0, 2.0]},
        "('c', 1)": {"null": 3.0},
        "('a', 2)": {"null": 20.0},
    }
    assert pair_work(table) == pytest.approx([1.0, 1.3, 2.0])


def test_our_pairs_do_more_side_by_side_than_in_turns() -> None:
    median = {mode: found["measured"][len(found["measured"]) // 2]
              for mode, found in ((mode, our_pairs(mode)) for mode in ("mps", "timeslice"))}  # fmt: skip
    assert median["mps"] > median["timeslice"] > 1


def test_the_table_is_printed_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"v100": {"('a', 1)": {"null": 4.0, "('a', 1)": [3.0, 3.0]}}}))
    assert main(["--gavel", str(path)]) == 0
    assert "Gavel, v100" in capsys.readouterr().out
    assert main(["--gavel", str(tmp_path / "none")]) == 2


def _lucid(tmp_path: Path) -> Path:
    for part in (PAIRS, ALONE):
        (tmp_path / part).parent.mkdir(parents=True)
    (tmp_path / ALONE).write_text(
        "model,dataset,batchsize,amp,speed,gpu_util\nnet,data,32,0,1000,20\nbig,data,64,0,500,99\n"
    )
    (tmp_path / PAIRS).write_text(
        ",model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n"
        "0,net,data,32,0,1.0,net,data,32,0,0.98\n1,big,data,64,0,0.5,big,data,64,0,0.4\n"
        "2,big,data,64,0,0.5,unknown,data,64,0,0.4\n"
    )
    return tmp_path


def test_lucids_pairs_are_compared_by_how_busy_they_keep_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    light, heavy = read_pairs(_lucid(tmp_path))
    assert (light.busy, heavy.busy) == (pytest.approx(0.4), pytest.approx(1.98))
    assert min(predicted(light, TIMESLICE)) > 0.95
    # Each needs nearly all of the time and gets half of what changing leaves of it.
    assert predicted(heavy, TIMESLICE) == pytest.approx([0.45, 0.45], abs=0.01)
    assert sum(predicted(heavy, SHARED)) > 1
    assert main(["--lucid", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "0% to 60%" in out
    assert "150% to 200%" in out


def test_a_folder_without_lucids_tables_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--lucid", str(tmp_path)]) == 2
    assert "not the folder simulation of Lucid's repository" in capsys.readouterr().err
