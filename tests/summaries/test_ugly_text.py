"""What terminals, loggers, editors and accidents do to a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

from slurm_gpumem.summaries.reader import parse, read_summary
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary
from tests.summaries.saved_summaries import one

TORCHINFO = "torchinfo-1.8.0-depth20-resnet18"
TORCHSUMMARY = "torchsummary-1.5.1-open-resnet18"
PRINTED = "print-torch-print-resnet18"
EVERY = [TORCHINFO, TORCHSUMMARY, PRINTED]


def same(one: ModelSummary, other: ModelSummary) -> bool:
    return one.fingerprint == other.fingerprint and one.total_params == other.total_params


def each_line(change: Callable[[int, str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(number, line) for number, line in enumerate(text.split("\n")))


UGLY = {
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "a byte order mark": lambda text: "\ufeff" + text,
    "colours": each_line(lambda _, line: f"\x1b[1;32m{line[:7]}\x1b[0m{line[7:]}\x1b[K"),
    "logging's prefix on each line": each_line(lambda _, line: f"INFO:root:{line}"),
    "times on each line": each_line(
        lambda n, line: f"[2024-05-01 10:{n // 60 % 60:02d}:{n % 60:02d},{n % 1000}] {line}"
    ),
    "srun's labels": each_line(lambda _, line: f"0: {line}"),
    "a logger with file and line": each_line(
        lambda n, line: f"2024-05-01 10:00:00 | INFO | train.py:{n} - {line}"
    ),
    "a prefix on the first line only": lambda text: f"INFO:root:{text}",
    "output before and after": lambda text: (
        f"Using cuda:0\nEpoch 0\n\n{text}\n\nEpoch 1 loss=0.3\nbye (now)\n"
    ),
    "blank lines between": each_line(lambda _, line: f"{line}\n"),
    "spaces at the ends": each_line(lambda _, line: line + "   \t"),
    "a progress bar before": lambda text: f"10%|█   |\r50%|█████ |\r100%|██████|\n{text}",
}


@pytest.mark.parametrize("stem", EVERY)
@pytest.mark.parametrize("ugliness", UGLY.values(), ids=UGLY.keys())
def test_ugliness_around_a_summary_changes_nothing(stem: str, ugliness: Callable[[str], str]) -> None:
    clean = parse(one(stem), origin="clean")
    ugly = parse(ugliness(one(stem)), origin="ugly")
    assert same(clean, ugly)
    assert ugly.complete == clean.complete


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("stem", [TORCHINFO, TORCHSUMMARY])
def test_any_unicode_encoding_is_read(tmp_path: Path, stem: str, encoding: str) -> None:
    path = tmp_path / "resnet18.txt"
    path.write_bytes(one(stem).encode(encoding))
    assert same(read_summary(path), parse(one(stem), origin="clean"))


def test_tabs_instead_of_spaces_are_read() -> None:
    text = one(TORCHSUMMARY)
    for width in (12, 8, 4, 2):
        text = text.replace(" " * width, "\t")
    assert same(parse(text, origin="tabs"), parse(one(TORCHSUMMARY), origin="clean"))


@pytest.mark.parametrize("broken", ["?", "\ufffd"])
def test_a_tree_drawn_with_question_marks_is_read(broken: str) -> None:
    """A console without Unicode."""
    text = one(TORCHINFO)
    for char in "│├└─":
        text = text.replace(char, broken)
    assert same(parse(text, origin="broken"), parse(one(TORCHINFO), origin="clean"))


@pytest.mark.parametrize("stem", EVERY)
def test_a_table_cut_off_in_the_middle_is_said_to_be(stem: str) -> None:
    lines = one(stem).split("\n")
    summary = parse("\n".join(lines[: len(lines) // 2]), origin="half")
    assert not summary.complete
    assert any("cut off" in warning for warning in summary.warnings)
    assert 0 < summary.total_params < parse(one(stem), origin="whole").total_params


@pytest.mark.parametrize("stem", EVERY)
def test_a_table_without_its_beginning_is_read_and_said_to_be_cut(stem: str) -> None:
    lines = one(stem).split("\n")
    summary = parse("\n".join(lines[10:]), origin="tail")
    assert summary.layers
    assert not summary.complete


def test_other_output_after_a_cut_table_is_not_taken_for_layers() -> None:
    lines = one(TORCHINFO).split("\n")
    text = "\n".join([*lines[:20], "Killed", "slurmstepd: error: *** JOB 12 CANCELLED ***"])
    summary = parse(text, origin="killed")
    assert [layer for layer in summary.layers if layer.kind == UNKNOWN_KIND] == []
    assert any("cut off after line 20" in warning for warning in summary.warnings)


@pytest.mark.parametrize("stem", [TORCHINFO, TORCHSUMMARY])
def test_a_line_that_is_not_understood_becomes_an_unknown_layer(stem: str) -> None:
    lines = one(stem).split("\n")
    lines.insert(12, "!! what is this \x07 doing here !!")
    summary = parse("\n".join(lines), origin="strange")
    unknown = [layer for layer in summary.layers if layer.kind == UNKNOWN_KIND]
    assert [layer.line for layer in unknown] == [13]
    warning = next(warning for warning in summary.warnings if "not understood" in warning)
    assert "line 13 '!! what is this ? doing here !!'" in warning


def test_a_lost_row_shows_in_the_totals_with_both_numbers() -> None:
    lines = [line for line in one(TORCHINFO).split("\n") if "513,000" not in line]
    summary = parse("\n".join(lines), origin="lost")
    assert not summary.complete
    assert any("11,176,512" in warning and "11,689,512" in warning for warning in summary.warnings)
    assert summary.total_params == 11_689_512


def test_missing_totals_are_said() -> None:
    lines = one(TORCHINFO).split("\n")
    end = next(number for number, line in enumerate(lines) if line.startswith("Total params"))
    summary = parse("\n".join(lines[:end]), origin="no totals")
    assert any("totals below the table are missing" in warning for warning in summary.warnings)
    assert summary.total_params == 11_689_512


def test_of_several_summaries_the_last_is_taken_and_the_others_named() -> None:
    text = one(TORCHSUMMARY) + "\nEpoch 1\n" + one(TORCHINFO)
    summary = parse(text, origin="two")
    assert summary.format == "torchinfo"
    first, second = (number for number, line in enumerate(text.split("\n"), 1) if "Layer (type" in line)
    assert summary.warnings[0] == (
        f"2 summaries in one text (also at line {first}); using the one at line {second}"
    )


def test_digits_of_other_scripts_are_not_taken_for_numbers() -> None:
    summary = parse(one(TORCHSUMMARY).replace("9,408", "٩,٤٠٨"), origin="arabic")
    assert [layer.kind for layer in summary.layers][:2] == [UNKNOWN_KIND, "BatchNorm2d"]


def test_a_line_of_100000_characters_does_no_harm() -> None:
    lines = one(TORCHINFO).split("\n")
    for position, line in ((8, "x" * 100_000), (9, "[" * 100_000), (10, "├─Conv2d: 1-1 " + "[1, " * 25_000)):
        lines.insert(position, line)
    summary = parse("\n".join(lines), origin="long")
    assert sum(layer.kind == UNKNOWN_KIND for layer in summary.layers) == 3
    assert summary.total_params == 11_689_512


def test_a_printed_model_with_an_impossible_repetition_is_bounded() -> None:
    layer = "(0-9): 999999 x Linear(in_features=2, out_features=2, bias=True)"
    text = f"Net(\n  (a): ModuleList(\n    {layer}\n  )\n)"
    summary = parse(text, origin="many")
    assert len(summary.layers) < 10
    assert any("too much to be true" in warning for warning in summary.warnings)
