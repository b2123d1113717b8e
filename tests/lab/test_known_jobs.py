"""How often the request by earlier runs was below the next run's peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.known_jobs import Next, lines, main, measured_repeats, next_runs
from slurm_gpumem.formats.remembered import Recipe, write_remembered


def test_each_run_is_held_against_what_those_before_it_ask_for() -> None:
    assert list(next_runs([[1000, 1000, 1300, 1000], [500]])) == [
        Next(1, 1200, 1000),  # 20 % more after one run
        Next(2, 1100, 1300),  # 10 % after two, which is too little
        Next(3, 1600, 1000),  # the difference between the runs
    ]
    assert list(next_runs([[1000] * 21]))[-1] == Next(20, 1020, 1000)


def test_the_table_counts_by_the_number_of_earlier_runs() -> None:
    table = list(lines([[1000, 1000, 1300], [1000, 1300], [1000] * 7]))
    assert table[1].split() == ["1", "3", "1", f"{3600 / 3300:.2f}"]
    assert table[2].split() == ["2", "2", "1", f"{2200 / 2300:.2f}"]
    assert table[3].split()[:5] == ["3", "to", "4", "2", "0"]
    assert table[4].split()[:5] == ["5", "or", "more", "2", "0"]
    assert table[5].split()[:3] == ["all", "9", "2"]
    assert table[6] == "3 jobs, 1 with the same peak each time; largest difference 30.0%"
    assert next(line for line in lines([]) if line.startswith("all")).split() == ["all", "0", "-", "-"]


def test_repeats_are_of_one_key_and_scripts_are_those_of_a_sites_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeats = [peaks for peaks in measured_repeats() if len(peaks) > 1]
    assert len(repeats) > 50
    file = tmp_path / "remembered.json"
    runs = {
        Recipe("s0123", "", "", "", ""): {"a100": [1500, 1000]},
        Recipe("0123", "8", "adam", "fp32", ""): {"a100": [9, 1]},
    }
    write_remembered(file, runs)
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "1", "1", "0.80"]
    file.write_text("{}")
    assert main([str(file)]) == 2
