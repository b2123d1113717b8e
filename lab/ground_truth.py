"""Measured training runs: lab/data/ground-truth and the folders like it; jobs of a list of scripts.

    rows*.jsonl.gz       one run a line: key, summary, model, family, batch, optimizer, precision, toggles,
                         run, process_bytes (None where the driver does not tell), reserved_bytes, ...
    summaries*.jsonl.xz  one model and input size a line: summary (the rows' key) and its texts by the tool
                         that made them (TOOLS; TOOL_error where it failed)
    about*.json          a list of measuring runs: run, gpu, gpu_mib, driver, versions, command

Rows that failed, ran out of memory or were disturbed carry `error`, `oom` or `spoiled` and are left out. In
place of the folder, a file of rows that `lab.scripts.run` wrote for jobs: those of the kinds "measured" and
"texts".
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Container, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lab.places import GROUND_TRUTH, shown
from lab.rows import read_rows, rows_in
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.estimators.types import OPTIMIZER_RULES, Gpu, TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

TOOLS = ("torchinfo_full", "torchinfo_deep", "torchsummary", "torchinfo", "print")
"""Who made a summary, the fullest text first (torchinfo alone hides what lies deeper than 3)."""
# What a job of the estimator can say about itself; a run with any other toggle is not comparable.
JOB_TOGGLES = {
    "channels_last": "channels_last",
    "checkpointing": "checkpointing",
    "accumulate": "grad_accumulation",
}


@dataclass(frozen=True)
class MeasuredRun:
    """One run: what was trained and how much memory the process took."""

    key: str
    summary: str
    """Key of its summary texts."""
    job: TrainingJob
    gpu: Gpu
    process_mib: Optional[int]
    """What the driver counts for the process; None where it did not tell."""
    reserved_mib: int
    allocated_mib: int
    row: Mapping[str, Any]
    """All that was recorded, to group and filter by."""


@dataclass(frozen=True)
class GroundTruth:
    """All comparable runs and their texts."""

    runs: Tuple[MeasuredRun, ...]
    texts: Mapping[str, Mapping[str, str]]
    """Summary key → tool that made it (TOOLS) → text."""
    left_out: Mapping[str, int]
    """Why rows were not taken, and how many."""


def load_ground_truth(folder: Optional[Path] = None) -> GroundTruth:
    """Read a folder or file of measured runs (default: the package's own); UsageError when there are none."""
    folder = GROUND_TRUTH if folder is None else folder
    abouts = {
        about["run"]: about for path in sorted(folder.glob("about*.json")) for about in _read_abouts(path)
    }
    texts = load_texts([folder])
    runs: List[MeasuredRun] = []
    left_out: Dict[str, int] = {}
    for row in _lines(folder, "rows"):
        reason = _reason_against(row, texts)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            runs.append(_run(row, abouts.get(row.get("run", ""), {})))
    if not runs:
        raise UsageError(
            f"{folder}: no measured runs there. Name a folder with rows*.jsonl.gz (--data), or restore "
            f"{shown(GROUND_TRUTH)} of the repository: git checkout {shown(GROUND_TRUTH)}"
        )
    return GroundTruth(tuple(runs), texts, left_out)


def load_ground_truth_rows(folder: Optional[Path] = None) -> List[Dict[str, Any]]:
    """All measured rows as they were written, failed ones too."""
    return list(_lines(GROUND_TRUTH if folder is None else folder, "rows"))


def load_texts(folders: Sequence[Path], keys: Optional[Container[str]] = None) -> Dict[str, Dict[str, str]]:
    """Summary key → tool → text (only of `keys` where given)."""
    texts: Dict[str, Dict[str, str]] = {}
    for folder in folders:
        for line in _lines(folder, "summaries"):
            if keys is None or line["summary"] in keys:
                made = {tool: line[tool] for tool in TOOLS if isinstance(line.get(tool), str)}
                texts.setdefault(line["summary"], {}).update(made)
    return texts


@lru_cache(maxsize=256)
def summary_of(text: str) -> ModelSummary:
    """A text as the reader takes it."""
    # A trailing line break marks it as text: a one-line summary is no path.
    return read_summary(text.rstrip("\n") + "\n")


def job_of(row: Mapping[str, Any]) -> TrainingJob:
    """The training job that a row describes."""
    said = row.get("toggles", {})
    toggles = {name: said[toggle] for toggle, name in JOB_TOGGLES.items() if said.get(toggle)}
    return TrainingJob(
        batch_size=row["batch"], optimizer=row["optimizer"], precision=row["precision"], **toggles
    )


def real_mib(run: MeasuredRun, summary: ModelSummary) -> int:
    """The process's memory: as the driver counts it, else reserved plus the GPU's context."""
    if run.process_mib is not None:
        return run.process_mib
    return run.reserved_mib + context_mib(run, summary)


def context_mib(run: MeasuredRun, summary: ModelSummary) -> int:
    """The context of the run's GPU with the libraries that these layers load."""
    kinds = [layer.kind.lower() for layer in summary.layers]
    conv = any("conv" in kind for kind in kinds)
    matmul = any(word in kind for kind in kinds for word in ("linear", "attention", "dense", "lstm", "gru"))
    return run.gpu.context_for(conv=conv, matmul=matmul)


def part_of(model: str) -> str:
    """The part of the data a model is in: rules are made looking at "development" models only."""
    held_out = int(hashlib.sha1(model.encode()).hexdigest(), 16) % 3 == 0
    return "hold-out" if held_out else "development"


def _reason_against(row: Mapping[str, Any], texts: Mapping[str, Any]) -> str:
    if row.get("oom"):
        return "out of memory"
    if row.get("error") or not row.get("reserved_bytes"):
        return "failed"
    if row.get("spoiled"):
        return "disturbed"
    if row.get("optimizer_tensors") == 0 and OPTIMIZER_RULES[row["optimizer"]].states:
        return "optimizer never stepped"  # fp16's scaler skipped every step: the state is missing
    unknown = [name for name, on in row.get("toggles", {}).items() if on and name not in JOB_TOGGLES]
    if unknown:
        return f"toggle {unknown[0]}"
    return "" if texts.get(row["summary"]) else "no summary text"


def _run(row: Mapping[str, Any], about: Mapping[str, Any]) -> MeasuredRun:
    process = row.get("process_bytes")
    return MeasuredRun(
        key=row["key"],
        summary=row["summary"],
        job=job_of(row),
        gpu=closest_gpu(row.get("gpu") or about.get("gpu"), row.get("gpu_mib") or about.get("gpu_mib")),
        process_mib=round(process / MIB) if process else None,
        reserved_mib=round(row["reserved_bytes"] / MIB),
        allocated_mib=round(row.get("allocated_bytes", 0) / MIB),
        row=row,
    )


def _lines(folder: Path, prefix: str) -> Iterator[Dict[str, Any]]:
    if not folder.is_file():
        return rows_in(folder, prefix)
    kind = {"rows": "measured", "summaries": "texts"}[prefix]
    return (row for row in read_rows(folder) if row["kind"] == kind and "key" in row)


def _read_abouts(path: Path) -> List[Dict[str, Any]]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from None
    # The collector writes one; a data set gathered from several runs keeps a list.
    return content if isinstance(content, list) else [content]
