"""The card of the fitted utilization: its figures on models that each fold's fit never saw."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from lab.fit.folds import is_hand_written
from lab.fit.utilization_rows import UtilizationRow
from lab.places import TRACE_KERNELS, shown
from lab.score.utilization import (
    Judged,
    class_lines,
    code_lines,
    collection_lines,
    fullest,
    is_library,
    judge,
    table_lines,
)
from slurm_gpumem.utilization.model import from_json
from slurm_gpumem.utilization.predict import SUMMARY, TRACE


def card_lines(
    rows: Sequence[UtilizationRow], parts: Sequence[Any], card: Mapping[str, Any], sha256: str
) -> List[str]:
    """The card as Markdown."""
    folds = [from_json(part) for part in parts]
    everything = judge(rows, folds)
    traced = [item for item in everything if item.source == TRACE]
    items = [item for item in fullest([i for i in everything if i.source == SUMMARY]) if not item.unknown]
    real = [item for item in items if is_library(item.run)]
    return [
        "# Predicted utilization",
        f"Written by `make fit-utilization` (`{card['command']}`); do not edit. See docs/sharing.md.",
        "",
        f"- data: {card['data']}; sha256 of jobs and sets `{card['data_sha256']}`",
        f"- `utilization.json`: sha256 `{sha256}`",
        "- known gaps: one GPU type, one PyTorch version, machines of one kind, input made on the GPU,",
        "  no torch.compile",
        "",
        "The CPU's time beside the usual, by measuring session (fitted on traces):",
        "",
        "```",
        *(f"{name:<42}{factor:>6.2f}" for name, factor in sorted(card["sessions"].items())),
        "```",
        "",
        "Collections of jobs that were left out as a whole, answered by the fit without them (`check`,",
        "`fresh` and `third` are the blind checks). Errors in points (step time: in %). `unknown`:",
        "the text shows too little, or the interval says nothing; `inside`: within the interval, whose mean",
        "width is beside it.",
        "",
        "```",
        *collection_lines(everything),
        "```",
        "",
        f"All jobs, each by one of {card['folds']} fits: without its collection, or, where it is of none,",
        "without its family of models. `repeat`: deviation of its repeats.",
        "",
        "```",
        *code_lines(everything),
        "```",
        "",
        "Library models, from the fullest text:",
        "",
        "```",
        *table_lines(real, {"library models": real}),
        "```",
        "",
        "The published classes on library models:",
        "",
        "```",
        *class_lines(real),
        "```",
        *_from_traces(traced),
    ]


def _from_traces(items: Sequence[Judged]) -> List[str]:
    file = shown(TRACE_KERNELS)
    head = f"From a trace, {len(items)} jobs that could be traced (`{file}`):"
    real = [item for item in items if is_library(item.run)]
    groups = {"library models": real, "hand-written": [i for i in items if is_hand_written(i.run.row)]}
    return ["", head, "", "```", *table_lines(items, groups), "", *class_lines(real), "```"]
