from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_gpumem.lab.score.other_pairs import main, our_pairs, pair_work


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
    assert main([str(path)]) == 0
    assert "Gavel, v100" in capsys.readouterr().out
    assert main([str(tmp_path / "none")]) == 2
