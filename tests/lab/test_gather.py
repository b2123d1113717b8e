"""Collections merged into one data set: each run once, the better row, nothing lost."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from lab.collect import gather
from lab.ground_truth import load_ground_truth, open_text
from lab.places import GROUND_TRUTH


def _row(key: str, run: str = "memory-1", **more: Any) -> Dict[str, Any]:
    fixed = {"model": "own/lenet", "family": "cnn", "source": "own", "batch": 2, "toggles": {}}
    settings = {"optimizer": "adam", "precision": "fp32", "reserved_bytes": 2**21, "process_bytes": 2**29}
    return {"key": key, "summary": "own/lenet@28", "run": run, **fixed, **settings, **more}


def _folder(path: Path, rows: List[Dict[str, Any]], config: str = "memory", **about: Any) -> Path:
    path.mkdir()
    runs = sorted({row["run"] for row in rows}) or ["memory-1"]
    for run in runs:
        said = {"run": run, "when": "1", "gpu": "NVIDIA H200", "cuda": "13", "command": "c", "versions": {}}
        (path / f"about-{run}.json").write_text(json.dumps({**said, **about}))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (path / f"rows-{config}-1of1.jsonl").write_text(lines)
    return path


def _summaries(folder: Path, *lines: Dict[str, Any]) -> None:
    with open(folder / "summaries.jsonl.gz", "ab") as file:
        for line in lines:
            file.write(gzip.compress((json.dumps(line) + "\n").encode()))


def _read(path: Path) -> List[Dict[str, Any]]:
    with open_text(path) as file:
        return [json.loads(line) for line in file]


def _gather(*folders: Path, out: Path) -> int:
    return gather.main([*map(str, folders), "--out", str(out)])


def test_rows_of_several_runs_become_one_file_a_configuration(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", [_row("x"), _row("y")])
    second = _folder(tmp_path / "b", [_row("y", "memory-2"), _row("z", "memory-2")])
    third = _folder(tmp_path / "c", [_row("x", "toggles-1")], config="toggles")
    out = tmp_path / "out"
    assert _gather(first, second, third, out=out) == 0
    rows = _read(out / "rows-memory.jsonl.gz")
    assert [(row["key"], row["run"]) for row in rows] == [
        ("x", "memory-1"),
        ("y", "memory-1"),
        ("z", "memory-2"),
    ]
    assert [row["key"] for row in _read(out / "rows-toggles.jsonl.gz")] == ["x"]
    runs = [about["run"] for about in json.loads((out / "about.json").read_text())]
    assert runs == ["memory-1", "memory-2", "toggles-1"]


def test_a_good_row_takes_the_place_of_a_failed_one_and_never_the_other_way(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", [_row("x", error="odd"), _row("y")])
    second = _folder(tmp_path / "b", [_row("x", "memory-2"), _row("y", "memory-2", error="odd")])
    _gather(first, second, out=tmp_path / "out")
    assert not [row for row in _read(tmp_path / "out" / "rows-memory.jsonl.gz") if "error" in row]


def test_disturbed_rows_are_dropped(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", [_row("x", spoiled=True), _row("y")])
    _gather(folder, out=tmp_path / "out")
    assert [row["key"] for row in _read(tmp_path / "out" / "rows-memory.jsonl.gz")] == ["y"]


def test_the_same_run_on_another_gpu_is_another_row(tmp_path: Path) -> None:
    first = _folder(tmp_path / "a", [_row("x")])
    second = _folder(tmp_path / "b", [_row("x", "memory-2")], gpu="NVIDIA L4")
    _gather(first, second, out=tmp_path / "out")
    assert len(_read(tmp_path / "out" / "rows-memory.jsonl.gz")) == 2


def test_summaries_of_a_model_become_one_line_with_every_text(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "a", [_row("x")])
    _summaries(
        folder,
        {"summary": "own/lenet@28", "print": "old", "torchsummary": "kept", "torchinfo_error": "E"},
        {"summary": "cnn/1@8", "print": "other"},
        {"summary": "own/lenet@28", "print": "new", "torchinfo": "made", "torchsummary_error": "E"},
    )
    _gather(folder, out=tmp_path / "out")
    assert _read(tmp_path / "out" / "summaries.jsonl.xz") == [
        {"summary": "cnn/1@8", "print": "other"},
        {"summary": "own/lenet@28", "print": "new", "torchsummary": "kept", "torchinfo": "made"},
    ]


def test_a_data_set_is_extended_and_read_by_the_accuracy_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = _folder(tmp_path / "a", [_row("x")])
    _summaries(first, {"summary": "own/lenet@28", "print": "Linear(1, 1)"})
    _gather(first, out=out)
    _gather(_folder(tmp_path / "b", [_row("y", "memory-2")]), out=out)
    assert [run.key for run in load_ground_truth(out).runs] == ["x", "y"]


def test_merging_again_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = _folder(tmp_path / "a", [_row("x")]), tmp_path / "out"
    _gather(folder, out=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    _gather(folder, out, out=out)
    assert "written: nothing" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_half_written_line_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path / "a", [_row("x")])
    path = folder / "rows-memory-1of1.jsonl"
    path.write_text(path.read_text() + '{"key": "y", "su\n')
    assert _gather(folder, out=tmp_path / "out") == 0
    assert "rows-memory-1of1.jsonl:2: not JSON, left out" in capsys.readouterr().err


def test_rows_of_an_unknown_machine_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path / "a", [_row("x")])
    (folder / "about-memory-1.json").unlink()
    assert _gather(folder, out=tmp_path / "out") == 2
    assert "nobody knows the GPU" in capsys.readouterr().err


def test_folders_without_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _gather(tmp_path / "none", out=tmp_path / "out") == 2
    (tmp_path / "empty").mkdir()
    assert _gather(tmp_path / "empty", out=tmp_path / "out") == 2
    with pytest.raises(SystemExit) as ended:
        gather.main([])
    assert ended.value.code == 2
    assert "is not a folder" in capsys.readouterr().err


def test_the_committed_rows_are_as_this_command_would_write_them(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (GROUND_TRUTH / "about.json", *GROUND_TRUTH.glob("rows-*.jsonl.gz")):
        (copy / path.name).write_bytes(path.read_bytes())
    _gather(copy, out=tmp_path / "out")
    for path in sorted(copy.iterdir()):
        with open_text(path) as old, open_text(tmp_path / "out" / path.name) as new:
            assert old.read() == new.read(), path.name


def test_the_figures_of_a_data_set_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the plan behind the figures needs torch")
    folder = _folder(tmp_path / "a", [_row("x"), _row("y", oom=True, error="out of memory")])
    _summaries(folder, {"summary": "own/lenet@28", "print": "x", "torchsummary_error": "IndexError: i"})
    from lab.collect import describe

    assert describe.main([str(folder)]) == 0
    text = capsys.readouterr().out
    assert "2 runs of 1 models, 1 of them good" in text
    assert "| out of memory | 1 | y |" in text
    assert "| torchsummary | 0 | 1 | 1 × IndexError: i |" in text


def test_the_card_holds_the_figures_of_the_committed_data() -> None:
    pytest.importorskip("torch", reason="the plan behind the figures needs torch")
    from lab.collect.describe import describe

    fix = "python -m lab.collect.describe lab/data/ground-truth > .../FIGURES.md"
    assert (GROUND_TRUTH / "FIGURES.md").read_text() == "\n".join(describe(GROUND_TRUTH)) + "\n", fix
