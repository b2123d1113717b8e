"""Lists of whole scripts: well formed, and a run of them goes on where it stopped."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List

import pytest

from lab.places import SCRIPT_ROWS
from lab.rows import open_text
from lab.scripts import measure, run, score, strata
from lab.scripts.lists import LISTS, Prepared, load_list
from slurm_gpumem.errors import UsageError

OWN = set()
for path in SCRIPT_ROWS.glob("*-own.tar.xz"):
    with tarfile.open(path) as archive:
        OWN.update(name.partition("/")[0] for name in archive.getnames())


def test_every_script_of_every_list_has_a_commit_and_recipes_that_are_programs() -> None:
    names: List[str] = []
    for path in LISTS.values():
        for script in load_list(path):
            names.append(script.name)
            for program in script.data.values():
                compile(program, script.name, "exec")
            ours = script.repository.replace("/", "+") in OWN
            assert ours or len(script.commit) == 40, script.name
    assert len(names) == len(set(names))


def _listed(folder: Path, names: List[str]) -> Path:
    (folder / "someone+something").mkdir(parents=True, exist_ok=True)
    path = folder / "list.toml"
    rows = (
        f'[[script]]\nname = "{name}"\nrepository = "someone/something"\ncommit = ""\nfolder = "."\n'
        f'command = "python train.py"\n'
        for name in names
    )
    path.write_text("\n".join(rows))
    return path


def _main(folder: Path, out: Path, *more: str) -> List[str]:
    options = run.parser().parse_args(["trace", *more, "--repositories", str(folder), "--out", str(out)])
    assert run.each(options, lambda script, args: {"trace_error": "none here"}) == 0
    return [json.loads(line)["name"] for line in out.read_text().splitlines() if line.endswith("}")]


def test_the_same_command_again_goes_on_with_the_scripts_without_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = _listed(tmp_path, ["first", "second", "third"])
    out = tmp_path / "rows.jsonl"
    assert sorted(_main(tmp_path, out, str(listed), "--only", "first")) == ["first"]
    with open(out, "a", encoding="utf-8") as file:
        file.write('{"name": "sec\n')  # the machine was taken away in the middle of a line
    assert sorted(_main(tmp_path, out, str(listed))) == ["first", "second", "third"]
    assert "was cut off" in capsys.readouterr().err
    assert sorted(_main(tmp_path, out, str(listed), str(listed))) == ["first", "second", "third"]


def test_a_row_of_another_kind_does_not_count_as_done(tmp_path: Path) -> None:
    listed = _listed(tmp_path, ["one"])
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps({"kind": "measured", "name": "one"}) + "\n")
    assert _main(tmp_path, out, str(listed)) == ["one", "one"]
    assert _main(tmp_path, out, str(listed), "--again") == ["one", "one", "one"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "a"\ncommand = "python a.py"\ncolour = 1', "a has an unknown key colour"),
        ('name = "a"', "a needs a command or a job"),
        ('name = "a"\ncommand = "python a.py"\ndata = { "x" = "gold" }', "not there: gold"),
    ],
)
def test_an_entry_that_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(f"[[script]]\n{text}\n")
    with pytest.raises(UsageError, match=said):
        load_list(path)


def test_a_list_brings_its_own_recipes(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(
        '[[script]]\nname = "a"\ncommand = "python a.py"\ndata = { "here/x.txt" = "mine", "m" = "mnist" }\n'
        "[recipes]\nmine = '''\npath.parent.mkdir()\npath.write_text(sentence(3, 4))\n'''\n"
    )
    (script,) = load_list(path)
    for where, program in script.data.items():
        run.make_data(tmp_path / where, program, sys.executable)
    assert len((tmp_path / "here" / "x.txt").read_text().split()) == 3
    assert (tmp_path / "m" / "MNIST" / "raw" / "train-images-idx3-ubyte").stat().st_size == 16 + 1280 * 784


def test_a_measured_run_says_when_it_took_its_first_optimizer_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "process_peaks", lambda pid: 7 << 20)
    monkeypatch.setattr(measure, "gpu_facts", lambda: {})
    script = (
        "import json, os, time; where = os.environ['GPUMEM_SCRIPTS_MEASURE'];"
        "began = time.time() - float(os.environ['GPUMEM_SCRIPTS_STARTED']);"
        "json.dump({'reserved': 5, 'first_step': began}, open(where + '.1', 'w'))"
    )
    row = measure.measured(Prepared([sys.executable, "-c", script], tmp_path, dict(os.environ), {}), 60.0)
    assert row["run_code"] == 0
    assert 0 <= row["start_seconds"] <= row["run_seconds"] + 0.1  # which is rounded


def test_the_time_of_a_trace_is_scored_beyond_the_script_s_own_start() -> None:
    rows = _rows("third")
    traced = next(row for row in rows if "trace" in row)
    measured = {row["name"]: row for row in rows if row["kind"] == "measured"}[traced["name"]]
    row = {**traced, **measured, "trace_seconds": 30.0, "start_seconds": 22.5}
    assert "beyond the script's own start 7.5 s (1 scripts)" in score.lines([row], "h200")[-1]
    assert "own start" not in score.lines([{**row, "start_seconds": None}], "h200")[-1]


def test_without_a_list_every_list_has_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(score, "LISTS", {"fourth-blind": LISTS["fourth-blind"]})
    assert score.main(["--as-traced"]) == 0
    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split()[:2] == ["list", "scripts"]
    assert line.split()[:3] == ["fourth-blind", "16", "3"]


def _rows(name: str) -> List[Dict[str, Any]]:
    with open_text(SCRIPT_ROWS / f"{name}.jsonl.xz") as file:
        return [json.loads(line) for line in file]


def test_rows_that_were_not_measured_are_counted_as_traced_or_not() -> None:
    def row(name: str, **others: Any) -> Dict[str, Any]:
        return {"name": name, **others}

    rows = [
        row("one", trace="{}", trace_seconds=10.0, trace_first_step=7.0),
        row("two", trace="{}", trace_seconds=30.0, trace_first_step=25.0),
        row("again", trace="{}", trace_seconds=20.0, trace_error="before it was fixed"),
        row("three", trace_error="why", trace_seconds=3.0),
        row("four", not_prepared="no h5py"),
    ]
    assert score.lines(rows, "h200")[-1] == (
        "traced: 3 of 4 (not: three); time to trace: median 20.0 s, "
        "4.0 s of it after the first optimizer step"
    )


def _judged(name: str, need: int, peak: int, request: int, to_the_end: bool) -> score.Judged:
    return score.Judged(name, need, peak, request, need, 0, False, 5.0, None, (), to_the_end)


def test_the_weighted_row_counts_each_stratum_as_often_as_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {"a": "repeats", "b": "repeats", "c": "repeats", "d": "changes", "lost": "changes"}
    monkeypatch.setattr(score, "strata_of_scripts", lambda: of)
    monkeypatch.setattr(strata, "shares", lambda: {"repeats": 0.7, "changes": 0.3})
    same = [_judged(name, 1000, 1000, 1100, True) for name in "abc"]
    result = score.Result([*same, _judged("d", 1000, 400, 500, False)], ["lost"])
    first, second, weighted = score._strata(result)
    assert first.startswith("repeats: 3 scripts: median 0.0 %")
    assert second.startswith("changes: 1 scripts: median 60.0 %")
    assert "median 0.0 %, P90 60.0 %; request below need 30.0 %, without a warning 30.0 %" in weighted
    assert "sum of needs 0.92; > 2 x 0.0 %; not traced 15.0 %; followed to the end 70 %" in weighted
    (ended,) = score._end(result.judged)
    assert ended == "followed to the end: 3 of 4 (75 %), of these median 0.0 %, P90 0.0 %; not: d"
