"""Estimates against measurements that others published, on GPUs that nobody calibrated here.

    python -m lab.score.external runs.csv [--gpu a100] [--torch 2.6.0+cu124]

The file is the user's own: facts of a table or a data set, a row a run, with the columns `model` (a text of
the ground truth as "timm/resnet50@224", or the path of a summary), `batch`, `measured_mib`, and where they
differ `optimizer` (adam), `precision` (fp32), `gpu`, `torch`, and `reserved` (1: the figure is PyTorch's own,
without the CUDA context). "One constant" is the median of measured less estimated over all other models.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from statistics import median
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lab.command import print_lines
from lab.ground_truth import load_ground_truth, summary_of
from lab.score.figures import Answer, Figures, figures
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.environment import environment_of, in_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.summaries.reader import read_summary

ESTIMATORS = ("corrected", "auto")
"""From the text, and by the stored trace of models that are known."""
TOOL = "torchinfo_deep"
COLUMNS = {"model", "batch", "measured_mib", "optimizer", "precision", "gpu", "torch", "reserved"}


class Row(NamedTuple):
    """A published run and its estimate."""

    model: str
    need_mib: int
    made: Estimate
    base: Tuple[int, int]
    """Peak and request without a margin for the context, to which a constant is added."""


def read_rows(path: Path) -> List[Dict[str, str]]:
    """The file's rows; UsageError says what is wrong with it."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = [dict(row) for row in reader]
            columns = set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    missing, unknown = {"model", "batch", "measured_mib"} - columns, columns - COLUMNS
    if missing or unknown:
        word = f"has no column {min(missing)}" if missing else f"has an unknown column {min(unknown)}"
        raise UsageError(f"{path}: {word}; it needs model, batch and measured_mib")
    for number, row in enumerate(rows, 2):
        for key in ("batch", "measured_mib"):
            if not (row[key] or "").isdigit() or int(row[key]) < 1:
                raise UsageError(f"{path}, line {number}: {key} {row[key]!r} is no whole number from 1 on")
    return rows


def estimates(
    rows: Sequence[Mapping[str, str]], estimator: str, gpu: str, torch: str, folder: Path
) -> List[Row]:
    """Each run estimated; what a row says goes before `gpu` and `torch`."""
    texts = load_ground_truth().texts
    found = []
    for row in rows:
        name = row["model"]
        text, path = texts.get(name, {}).get(TOOL), folder / name
        if text is None and not path.is_file():
            raise UsageError(f"{name}: no text of the ground truth and no file")
        summary = read_summary(path) if text is None else summary_of(text)
        job = TrainingJob(
            int(row["batch"]),
            row.get("optimizer") or "adam",
            row.get("precision") or "fp32",
            torch=row.get("torch") or torch,
        )
        made_for = find_gpu(row.get("gpu") or gpu)
        made = run(estimator, summary, job, made_for)
        context = made.parts["context"] if row.get("reserved") == "1" else 0
        unsure = in_environment(made_for, environment_of(job)).context_margin_mib
        base = (made.peak_mib, made.request_mib - unsure)
        found.append(Row(name, int(row["measured_mib"]) + context, made, base))
    return found


def raw(rows: Sequence[Row]) -> Figures:
    """Without any calibration."""
    return figures([Answer(row.need_mib, row.made.peak_mib, row.made.request_mib) for row in rows])


def after_one_constant(rows: Sequence[Row]) -> Figures:
    """With the constant that all other models suggest."""
    answers = []
    for row in rows:
        others = [other for other in rows if _family(other.model) != _family(row.model)]
        if not others:
            raise UsageError("one constant needs runs of two models at least")
        constant = round(median(other.need_mib - other.base[0] for other in others))
        answers.append(Answer(row.need_mib, row.base[0] + constant, row.base[1] + constant))
    return figures(answers)


def _family(model: str) -> str:
    """The model without its input size."""
    return model.split("@")[0]


def table(rows: Sequence[Mapping[str, str]], gpu: str, torch: str, folder: Path) -> List[str]:
    """A line for each estimator, as it comes and after one constant."""
    lines = [f"{'estimator':<10} {'':<19} runs  median    P90  below   over"]
    for name in ESTIMATORS:
        made = estimates(rows, name, gpu, torch, folder)
        for label, one in (("no calibration", raw(made)), ("after one constant", after_one_constant(made))):
            lines.append(
                f"{name:<10} {label:<19} {one.count:>4} {one.median_error * 100:>5.1f} % "
                f"{one.p90_error * 100:>4.1f} % {one.under_request * 100:>4.1f} % "
                f"{one.capacity * 100 - 100:>4.0f} %"
            )
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="CSV of published runs")
    parser.add_argument("--gpu", default="a100", help="GPU of rows that name none (a100)")
    parser.add_argument("--torch", default="", help="torch.__version__ of rows that name none")
    args = parser.parse_args(argv)
    return print_lines(lambda: table(read_rows(args.file), args.gpu, args.torch, args.file.parent))


if __name__ == "__main__":
    sys.exit(main())
