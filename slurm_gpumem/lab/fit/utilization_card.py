"""The card of the fitted utilization: its figures on models that each fold's fit never saw."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from slurm_gpumem.lab.fit.utilization_rows import UtilizationRow
from slurm_gpumem.lab.ground_truth import TOOLS
from slurm_gpumem.lab.places import MODELS, TRACE_KERNELS
from slurm_gpumem.lab.score.utilization import Judged, class_lines, is_real, judged, table_lines
from slurm_gpumem.utilization.model import UtilizationModel, from_json
from slurm_gpumem.utilization.predict import SUMMARY, TRACE, predict_targets


def card_lines(
    rows: Sequence[UtilizationRow], parts: Sequence[Any], card: Mapping[str, Any], sha256: str
) -> List[str]:
    """The card as Markdown."""
    folds = [from_json(part, "the fold just fitted") for part in parts]
    everything = [_judged(row, folds[row.fold]) for row in rows]
    traced = [item for item in everything if item.source == TRACE and is_real(item.run)]
    items = [item for row, item in zip(rows, everything) if row.fullest and item.source == SUMMARY]
    real = [item for item in items if is_real(item.run)]
    groups = {"all": items, "real models": real, "drawn at random": [i for i in items if not is_real(i.run)]}
    by_tool: Dict[str, List[Judged]] = {
        tool: [item for item in everything if item.tool == tool and is_real(item.run)] for tool in TOOLS
    }
    return [
        "# Predicted utilization",
        f"Written by `make fit-utilization` (`{card['command']}`); do not edit. See docs/sharing.md.",
        "",
        f"- data: {card['data']}; sha256 of jobs and sets `{card['data_sha256']}`",
        f"- `utilization.json`: sha256 `{sha256}`, seed {card['seed']}",
        "- known gaps: one GPU type, one PyTorch version, one CPU, input made on the GPU, no torch.compile",
        "",
        f"Errors in percentage points (step time: in %) of {card['folds']} folds; a model, its sizes and",
        "namesakes are in one fold. `inside`: within the interval; `repeat`: deviation of its repeats.",
        "",
        "```",
        *table_lines(items, {name: members for name, members in groups.items() if members}),
        "```",
        "",
        "Real models by the tool that made the text:",
        "",
        "```",
        *table_lines(real, {tool: members for tool, members in by_tool.items() if members}),
        "```",
        "",
        "The published classes on real models:",
        "",
        "```",
        *class_lines(real),
        "```",
        *(_from_traces(traced) if traced else []),
    ]


def _from_traces(items: Sequence[Judged]) -> List[str]:
    file = TRACE_KERNELS.relative_to(MODELS)
    head = f"From a trace, {len(items)} jobs of real models that could be traced (`{file}`):"
    return ["", head, "", "```", *table_lines(items, {"from a trace": items}), "", *class_lines(items), "```"]


def _judged(row: UtilizationRow, model: UtilizationModel) -> Judged:
    source = TRACE if row.tool == TRACE else SUMMARY
    got = predict_targets(row.work, row.seen, row.run.gpu, model.sources[source], model.outside)
    return judged(row.run, row.tool, source, got)
