"""Summary texts by the real tools, of a small model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

pytest.importorskip("torch", reason="training needs torch")

from lab.collect import summarise
from slurm_gpumem.summaries.reader import read_summary

CONFIG = """\
seed = 1
max_mib = 1000
max_step_seconds = 1
[optimizers]
adam = 1
[precisions]
fp32 = 1
[[toggle]]
models = ["own/lenet"]
batch = 2
toggles = []
"""
LENET_PARAMETERS = 61_706


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("summaries")
    (folder / "one.toml").write_text(CONFIG)
    assert summarise.main([str(folder / "one.toml"), "--out", str(folder)]) == 0
    return folder


def _lines(folder: Path) -> List[Dict[str, Any]]:
    with gzip.open(folder / "summaries.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def test_the_printed_model_and_its_parameters_are_kept(folder: Path) -> None:
    (line,) = _lines(folder)
    assert line["summary"] == "own/lenet@28"
    assert line["parameters"] == LENET_PARAMETERS
    assert "Conv2d(1, 6" in line["print"]
    assert line["versions"]["torch"]


@pytest.mark.parametrize("text", ["torchinfo", "torchinfo_deep", "torchinfo_full"])
def test_torchinfo_texts_are_made_and_can_be_read(text: str, folder: Path) -> None:
    pytest.importorskip("torchinfo", reason="torchinfo makes these texts; the test extra goes without it")
    (line,) = _lines(folder)
    assert text in line, line.get(f"{text}_error")
    assert read_summary(line[text]).total_params == LENET_PARAMETERS


def test_every_column_is_one_that_torchinfo_knows() -> None:
    enums = pytest.importorskip("torchinfo.enums", reason="torchinfo names the columns")
    assert set(summarise.COLUMNS) <= {setting.value for setting in enums.ColumnSettings}


def test_torchsummary_texts_are_made_and_can_be_read(folder: Path) -> None:
    pytest.importorskip("torchsummary", reason="torchsummary makes this text; the test extra goes without it")
    (line,) = _lines(folder)
    assert "torchsummary" in line, line.get("torchsummary_error")
    assert read_summary(line["torchsummary"]).total_params == LENET_PARAMETERS


def test_a_tool_that_is_missing_or_fails_is_an_error_of_its_own() -> None:
    def fail() -> str:
        raise IndexError("tuple\n  index")

    assert summarise._attempt("torchinfo", fail) == {"torchinfo_error": "IndexError: tuple index"}


def test_what_is_made_is_not_made_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summarise.main([str(folder / "one.toml"), "--out", str(folder)]) == 0
    assert "0 to make, 1 made before" in capsys.readouterr().out
    assert len(_lines(folder)) == 1
