"""Figures 5.11 to 5.13 and table 6.2: estimates of real models beside their published memory.

    python -m lab.chapter5.unseen [--make FILE]

Everybody's estimate is for the published machine: an A100 of 40 GB, PyTorch 2.4.1, CUDA loading eagerly.
`corrected` and `trace` answer twice: as shipped, and by fits that did not see the model. Texts and traces are
kept; `--make` makes them anew, which needs torch, torchinfo and the models' libraries.
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from lab.chapter5.published import FIGURES, LIGHT, SAID, Model
from lab.command import exit_code, print_lines
from lab.ground_truth import TOOLS, MeasuredRun, summary_of
from lab.places import REAL_MODELS
from lab.rows import read_rows
from lab.score.accuracy import held_out_fits
from lab.score.trace_figures import Traced
from slurm_gpumem.estimators.environment import environment_of, in_environment, widened
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.margin import within
from slurm_gpumem.estimators.registry import run as estimated
from slurm_gpumem.estimators.traced.estimator import estimate as by_trace
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.estimators.versions import with_workspaces
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

GPU = "a100-40gb"
TORCH, LOADING = "2.4.1", "eager"
OTHERS = ("horus-authors", "faketensor", "gpumemnet")
GB = 1e9
_ANSWERS = ("correc.", "asks", "unseen", "asks", "trace", "asks", "unseen")
_COLUMNS = ("6.2", "Horus", "FakeT.", "MemNet", "struct.", *_ANSWERS)


class Pair(NamedTuple):
    """A peak and a request."""

    peak: int
    request: int


class Row(NamedTuple):
    """One model at one batch."""

    model: str
    batch: int
    measured: int
    peaks: Mapping[str, int]
    """Of estimators that were fitted on no measured run."""
    answers: Mapping[str, Pair]
    """corrected and trace, as shipped and "unseen"."""


def rows(models: Sequence[Model]) -> List[Row]:
    """Every model at every batch of the table."""
    kept = {row["name"]: row for row in read_rows(REAL_MODELS)}
    found = []
    for one in models:
        text = summary_of(kept[one.name]["text"])
        traced = summary_of(kept[one.name]["trace"])
        for batch, measured in one.measured.items():
            found.append(_row(one, batch, measured, text, traced))
    return found


def _row(one: Model, batch: int, measured: int, text: ModelSummary, traced: ModelSummary) -> Row:
    gpu = find_gpu(GPU)
    job = TrainingJob(batch, one.job["optimizer"], one.job["precision"], torch=TORCH, module_loading=LOADING)
    peaks = {name: estimated(name, text, job, gpu).peak_mib for name in OTHERS}
    here = with_workspaces(in_environment(gpu, environment_of(job)), job)
    peaks["structural"] = estimated("structural", text, job, here).peak_mib
    run = _run(one, job, here, measured)
    shipped = estimated("corrected", text, job, gpu)
    unseen = held_out_fits().estimate(run, text)
    unseen = within(widened(unseen, here, traced=False, convolutions=False), gpu)
    replayed = estimated("trace", traced, job, gpu)
    answers = {
        "corrected": _pair(shipped),
        "corrected unseen": _pair(unseen),
        "trace": _pair(replayed),
        "trace unseen": _unseen_trace(run, by_trace(traced, job, here), replayed),
    }
    return Row(one.name, batch, measured, peaks, answers)


def _run(one: Model, job: TrainingJob, gpu: Gpu, measured: int) -> MeasuredRun:
    """As if we had measured it, which is what says who may answer."""
    name = one.job.get("name", one.job["build"])
    row = {"model": f"{one.job['source']}/{name.removesuffix('_cifar100')}", "source": one.job["source"]}
    return MeasuredRun(one.name, one.name, job, gpu, measured, measured, measured, row)


def _pair(made: Estimate) -> Pair:
    return Pair(made.peak_mib, made.request_mib)


def _unseen_trace(run: MeasuredRun, plain: Estimate, shipped: Estimate) -> Pair:
    """The trace's answer with the margin of a fit without the model's family; the rest was not fitted."""
    parts = plain.parts
    traced = Traced(
        key=run.key,
        model=str(run.row["model"]),
        allocated_bytes=0,
        reserved_bytes=(plain.peak_mib - parts["context"]) * MIB,
        fixed_bytes=(parts["weights"] + parts["optimizer"]) * MIB,
        context_mib=parts["context"],
        seconds=0.0,
    )
    request = held_out_fits().of_trace(run, traced, "", 0).request_mib
    return Pair(plain.peak_mib, request + shipped.request_mib - plain.request_mib)


def lines() -> List[str]:
    """The table, what the text says of bars, and sums of both parts."""
    figures, light = rows(FIGURES), rows(LIGHT)
    head = f"{'MiB of a process':<22}   B" + "".join(f"{name:>8}" for name in _COLUMNS)
    found = [head, *map(_line, figures), "", *map(_line, light)]
    for title, part in (("figures 5.11 to 5.13", figures), ("table 6.2, CIFAR-100", light)):
        found += ["", f"{title}: {len(part)} rows; off by (median), asks below table 6.2"]
        for name in (*OTHERS, "structural"):
            found.append(_sum(name, part, [Pair(row.peaks[name], row.peaks[name]) for row in part]))
        for name in ("corrected", "corrected unseen", "trace", "trace unseen"):
            found.append(_sum(name, part, [row.answers[name] for row in part]))
    found += ["", "estimated less measured, GB            published    here"]
    by_key = {(row.model, row.batch): row for row in figures}
    for said in SAID:
        row = by_key[said.model, said.batch]
        here = (row.peaks[said.estimator] - row.measured) * MIB / GB
        label = f"{said.model}, {said.batch}: {said.estimator}"
        found.append(f"{label:<40} {said.gb:>+7.1f} {here:>+7.1f}")
    return found


def _line(row: Row) -> str:
    shipped, unseen, trace = (row.answers[name] for name in ("corrected", "corrected unseen", "trace"))
    last = row.answers["trace unseen"].request
    cells = (row.measured, *row.peaks.values(), *shipped, *unseen, *trace, last)
    return f"{row.model:<22}{row.batch:>4}" + "".join(f"{cell:>8}" for cell in cells)


def _sum(name: str, part: Sequence[Row], answers: Sequence[Pair]) -> str:
    off = median(abs(made.peak / row.measured - 1) for row, made in zip(part, answers))
    below = sum(made.request < row.measured for row, made in zip(part, answers))
    return f"{name:<22} {off:>6.1%} {below:>4}"


def make(path: Path) -> int:
    """Write texts and traces of all models."""
    from lab.networks.jobs import job_of
    from lab.networks.texts import summary_texts
    from lab.score.trace_rows import trace_row
    from slurm_gpumem.summaries.parsers.own import to_json

    kept: List[Dict[str, Any]] = []
    for one in (*FIGURES, *LIGHT):
        job = job_of({**one.job, "batch": min(one.measured)})
        texts = summary_texts(job)
        text = next(texts[tool] for tool in TOOLS if tool in texts)
        kept.append({"name": one.name, "text": text, "trace": to_json(trace_row(job.as_row()))})
        print(one.name, flush=True)
    content = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept)
    path.write_bytes(lzma.compress(content.encode()))
    return 0


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.chapter5.unseen", description=__doc__)
    parser.add_argument("--make", type=Path, metavar="FILE", help="make texts and traces, and write them")
    options = parser.parse_args(argv)
    if options.make is not None:
        return exit_code(lambda: make(options.make))
    return print_lines(lines)


if __name__ == "__main__":
    raise SystemExit(main())
