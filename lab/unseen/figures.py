"""Figures 5.11 to 5.13 again: the published estimators and ours on the publication's unseen models.

    python -m lab.unseen.figures [--svg docs/unseen.svg]

The memory that a job took and the first three answers are the published ones. Ours are computed for the same
GPU and the context of its environment (models/environments/a100-2024-eager.toml): `text` and `trace` are
requests, the others peaks.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from lab.ground_truth import TOOLS, GroundTruth, load_ground_truth
from lab.places import UNSEEN
from lab.unseen.published import CNNS, TRANSFORMERS, Published
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import Estimate, TrainingJob
from slurm_gpumem.files import write_atomic
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.svg import LIGHT_AND_DARK, Frame, document, key, line, text

GPU, LOADING, TORCH = "a100", "eager", "2.4.1"
"""As published: A100 of 40 GB, PyTorch 2.4.1."""
PUBLISHED_BARS = ("GPUMemNet", "FakeTensor", "Horus")
OURS = ("text", "trace", "gpumemnet", "horus", "horus-authors", "FakeTensorMode")
_ESTIMATORS = {"text": "corrected", "trace": "trace"}
_COLOURS = {
    "GPUMemNet": "#e0a100",
    "FakeTensor": "#b4534b",
    "Horus": "#8a63b8",
    "text": "#2f9e73",
    "trace": "#1f6fb5",
}
_TALLEST = 50_000


@dataclass(frozen=True)
class Group:
    """One job: what it took, and every answer in MiB; answers that nobody gave are not there."""

    job: Published
    answers: Mapping[str, int]
    requests: Mapping[str, int]


def groups(truth: Optional[GroundTruth] = None) -> List[Group]:
    """Every job of the three figures."""
    truth = truth or load_ground_truth()
    return [_group(job, truth) for job in (*CNNS, *TRANSFORMERS)]


def _group(job: Published, truth: GroundTruth) -> Group:
    answers: Dict[str, int] = {"GPUMemNet": job.gpumemnet, "Horus": job.horus}
    if job.faketensor is not None:
        answers["FakeTensor"] = job.faketensor
    requests: Dict[str, int] = {}
    traced = _traced(job)
    summary = _text(job, truth) if traced is None else replace(traced, trace=None)
    for name in OURS[:-1]:
        given = traced if name == "trace" and traced is not None else summary
        if name == registry.TRACE and registry.TRACE not in registry.names_for(given):
            continue  # Nobody traced it, and its trace is not among the shipped ones.
        found = _estimate(_ESTIMATORS.get(name, name), given, job)
        answers[name], requests[name] = found.peak_mib, found.request_mib
    fake = _fake_mib(job)
    if fake is not None:
        answers["FakeTensorMode"] = fake
    return Group(job, answers, requests)


def _estimate(name: str, summary: ModelSummary, job: Published) -> Estimate:
    gpu = replace(find_gpu(GPU), memory_mib=10**9)  # What does not fit is to be seen.
    training = TrainingJob(job.batch, job.optimizer, torch=TORCH, module_loading=LOADING)
    return registry.run(name, summary, training, gpu)


def _text(job: Published, truth: GroundTruth) -> ModelSummary:
    texts = truth.texts[job.text]
    return read_summary(next(texts[tool] for tool in TOOLS if tool in texts).rstrip("\n") + "\n")


def _content(job: Published) -> Optional[Mapping[str, object]]:
    path = UNSEEN / f"{job.name}.json.xz"
    if not job.build:
        return None
    if not path.exists():
        raise UsageError(f"{path} is missing: python -m lab.unseen.collect --only {job.name}")
    content: Mapping[str, object] = json.loads(lzma.decompress(path.read_bytes()))
    return content


def _traced(job: Published) -> Optional[ModelSummary]:
    content = _content(job)
    return None if content is None else read_summary(json.dumps(content["summary"]) + "\n")


def _fake_mib(job: Published) -> Optional[int]:
    content = _content(job)
    return None if content is None else int(str(content["faketensor_mib"]))


# -- Table ---------------------------------------------------------------------------------------


def table(found: Sequence[Group]) -> List[str]:
    """All groups in GiB, and below how far off each estimator is."""
    columns = (*PUBLISHED_BARS, *OURS)
    lines = [
        f"{'':<28}{'published':^{11 * len(PUBLISHED_BARS)}}{'computed here':^{15 * len(OURS)}}".rstrip(),
        f"{'model':<16}{'batch':>5}{'took':>7}"
        + "".join(f"{name:>11}" for name in PUBLISHED_BARS)
        + "".join(f"{name:>15}" for name in OURS),
    ]
    for group in found:
        cells = [_gib(group.answers.get(name)) for name in columns]
        lines.append(
            f"{group.job.name:<16}{group.job.batch:>5}{_gib(group.job.actual):>7}"
            + "".join(f"{cell:>11}" for cell in cells[: len(PUBLISHED_BARS)])
            + "".join(f"{cell:>15}" for cell in cells[len(PUBLISHED_BARS) :])
        )
    lines += ["", f"{'estimator':<16}{'jobs':>5}{'median':>9}{'worst':>9}{'too low':>9}"]
    for name in columns:
        errors = [_error(group, name) for group in found if name in group.answers]
        lines.append(_summary_line(name, errors))
    for name in ("text", "trace"):
        errors = [g.requests[name] / g.job.actual - 1 for g in found if name in g.requests]
        lines.append(_summary_line(f"{name}, request", errors))
    return lines


def _summary_line(name: str, errors: Sequence[float]) -> str:
    sizes = sorted(abs(error) for error in errors)
    low = sum(error < 0 for error in errors)
    worst = max(errors, key=abs)
    return f"{name:<16}{len(errors):>5}{sizes[len(sizes) // 2]:>9.0%}{worst:>+9.0%}{low:>9}"


def _error(group: Group, name: str) -> float:
    return group.answers[name] / group.job.actual - 1


def _gib(mib: Optional[int]) -> str:
    return "-" if mib is None else f"{mib / 1024:.1f}"


# -- Drawing -------------------------------------------------------------------------------------


def svg(found: Sequence[Group]) -> str:
    """Bars of five estimators for each job, and a line where its real memory is."""
    rows = [[g for g in found if not g.job.build], [g for g in found if g.job.build]]
    height = 300
    parts: List[str] = []
    for number, row in enumerate(rows):
        frame = Frame(960, height, 60, 16, 40, 56, (0.0, float(len(row))), (0.0, float(_TALLEST)))
        parts.append(f'<g transform="translate(0,{number * height})">')
        parts += _panel(
            frame, row, "CNNs (figures 5.11, 5.12)" if not number else "Transformers (figure 5.13)"
        )
        parts.append("</g>")
    label = "GPU memory of unseen models: what they took, what five estimators said"
    return document(960, height * len(rows), label, parts, LIGHT_AND_DARK)


def _panel(frame: Frame, row: Sequence[Group], title: str) -> List[str]:
    parts = [frame.level(gib * 1024.0, f"{gib} GiB") for gib in range(0, 49, 8)]
    parts.append(text(frame.left, 22, title, "ink"))
    for number, name in enumerate(_COLOURS):
        ours = name in _ESTIMATORS
        parts.append(
            key(frame.left + 250 + 130 * number, 12, _COLOURS[name], f"our {name}" if ours else name)
        )
    for place, group in enumerate(row):
        width = 0.84 / len(_COLOURS)
        for number, (name, colour) in enumerate(_COLOURS.items()):
            mib = group.answers.get(name)
            if mib is None:
                continue
            x, y = frame.x(place + 0.08 + number * width), frame.y(min(mib, _TALLEST))
            wide = frame.x(width) - frame.x(0)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{frame.base - y:.1f}" '
                f'fill="{colour}"><title>{name}: {mib / 1024:.1f} GiB</title></rect>'
            )
            if mib > _TALLEST:
                parts.append(text(x, frame.top - 3, f"{mib / 1024:.0f}", "ink"))
        at = frame.y(group.job.actual)
        parts.append(line((frame.x(place + 0.03), at), (frame.x(place + 0.97), at), "axis"))
        middle = frame.x(place + 0.5)
        parts.append(text(middle, frame.base + 18, group.job.name, anchor="middle", more=' font-size="10"'))
        parts.append(text(middle, frame.base + 33, f"batch {group.job.batch}", anchor="middle"))
    parts.append(text(frame.left, frame.height - 6, "black line: what the job took on an A100, as published"))
    return parts


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.unseen.figures", description=__doc__)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw it")
    options = parser.parse_args(argv)
    found = groups()
    print("\n".join(table(found)))
    if options.svg:
        write_atomic(options.svg, svg(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
