"""The examples are what they say: real tools' summaries, and memory that a real GPU was seen to need."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.slurm.submit.script import read_directives, read_script
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import ceil_div

ROOT = Path(__file__).resolve().parents[2]
GROUND_TRUTH = ROOT / "lab" / "data" / "ground-truth"
UNPREPARED = ROOT / "docs" / "examples" / "train.sh"
"""The one without a summary: it is traced."""
BY_HAND = {ROOT / "docs" / "examples" / name for name in ("larger.sh", "search.sh", "sweep.sh")}
"""The demo's own: their memory is given by hand."""
SCRIPTS = sorted(set((ROOT / "docs" / "examples").glob("*.sh")) - {UNPREPARED} - BY_HAND)
KEYS = ("model", "batch-size", "optimizer", "precision")


@pytest.fixture(scope="module")
def rows() -> Dict[str, Dict[str, Any]]:
    texts = [gzip.decompress(path.read_bytes()) for path in GROUND_TRUTH.glob("rows-*.jsonl.gz")]
    return {row["key"]: row for text in texts for row in map(json.loads, text.splitlines())}


@pytest.fixture(scope="module")
def summaries() -> Dict[str, Dict[str, Any]]:
    text = lzma.decompress((GROUND_TRUTH / "summaries.jsonl.xz").read_bytes())
    return {entry["summary"]: entry for entry in map(json.loads, text.splitlines())}


def test_the_recorded_trace_is_of_the_script_that_nobody_prepared() -> None:
    assert "python train.py --batch-size 128" in UNPREPARED.read_text()
    summary = read_summary(str(UNPREPARED.with_suffix(".json")))
    assert summary.trace is not None
    assert (summary.batch, summary.trace.job.optimizer, summary.trace.job.loss) == (128, "adamw", "script")
    assert not any(
        word in UNPREPARED.with_suffix(".py").read_text() for word in ("import slurm_gpumem", "GPUMEM")
    )


def test_there_are_five_examples_of_two_tools() -> None:
    texts = [script.with_suffix(".txt").read_text(encoding="utf-8") for script in SCRIPTS]
    assert len(texts) == 5
    assert {"(type:depth-idx)" in text for text in texts} == {True, False}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.stem))
def test_an_example_is_a_row_of_the_ground_truth(
    script: Path, rows: Dict[str, Dict[str, Any]], summaries: Dict[str, Dict[str, Any]]
) -> None:
    text = script.read_text(encoding="utf-8")
    said = re.search(r"NVIDIA H200: (\d+) MiB \(lab/data/ground-truth, (\S+)\)", text)
    peak = re.search(r"--peak (\d+)", text)
    assert said
    assert peak
    row = rows[said[2]]
    process_mib = ceil_div(row["process_bytes"], 1 << 20)
    assert (int(said[1]), int(peak[1]), row["toggles"]) == (process_mib, process_mib, {})
    given = {found.key: found.value for found in read_directives(read_script(str(script)), KEYS).found}
    assert given == {
        "model": f"{script.stem}.txt",
        "batch-size": str(row["batch"]),
        "optimizer": row["optimizer"],
        "precision": row["precision"],
    }
    summary = script.with_suffix(".txt").read_text(encoding="utf-8")
    assert summary in summaries[row["summary"]].values()
