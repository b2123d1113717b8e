"""The card of the fitted utilization: its figures on models that each fold's fit never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping

from slurm_gpumem.memory.ground_truth import TOOLS
from slurm_gpumem.utilization.accuracy import class_lines, is_real, judge, load_folds, table_lines
from slurm_gpumem.utilization.measured import load_solo, load_texts


def card_lines(folder: Path, card: Mapping[str, Any], sha256: str, out: Path) -> List[str]:
    """The card as Markdown."""
    runs = load_solo(folder)
    texts = load_texts({run.summary: None for run in runs})
    folds = load_folds(out)
    items = judge(runs, texts, folds)
    real = [item for item in items if is_real(item.run)]
    groups = {"all": items, "real models": real, "drawn at random": [i for i in items if not is_real(i.run)]}
    by_tool: Dict[str, Any] = {}
    for tool in TOOLS:
        by_tool[tool] = [i for i in judge(runs, texts, folds, [tool]) if is_real(i.run)]
    return [
        "# Predicted utilization",
        f"Written by `make fit-utilization` (`{card['command']}`); do not edit. What it is: docs/sharing.md.",
        "",
        f"- data: {card['data']}; sha256 of jobs and sets `{card['data_sha256']}`",
        f"- `utilization.json`: sha256 `{sha256}`, seed {card['seed']}",
        "- known gaps: one GPU type, one PyTorch version, one CPU, input made on the GPU, no torch.compile",
        "",
        f"Errors in points of percent (step: in % of it) of {card['folds']} folds; a model, its sizes and",
        "namesakes are in one fold. `inside`: within the interval; `repeat`: deviation of a job's three repeats.",
        "",
        "```",
        *table_lines(items, {name: members for name, members in groups.items() if members}),
        "```",
        "",
        "Real models by the text that they were read from:",
        "",
        "```",
        *table_lines(real, {tool: members for tool, members in by_tool.items() if members}),
        "```",
        "",
        "The documents' classes on real models:",
        "",
        "```",
        *class_lines(real),
        "```",
    ]
