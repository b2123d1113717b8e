"""The card of the margins: how requests do on families and on authors that were held out."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from lab.fit import folds
from lab.fit.margin_fit import COVERAGE, Need, fit_group, request
from lab.score.figures import quantile, share
from slurm_gpumem.estimators import margin
from slurm_gpumem.estimators.margin import EXPLAINED, GroupMargin, between

_HEAD = (
    "| text | code | runs | median / P90 | coverage | below need | Σ request / Σ need | > 1.5 × / > 2 × |",
    "|---|---|---|---|---|---|---|---|",
)


def card(needs: Sequence[Need], parts: Sequence[Mapping[str, Any]], whole: Mapping[str, Any]) -> List[str]:
    """Markdown: the figures on families and kinds that each fold's fit never saw."""
    by_fold = [margin.from_json(part) for part in parts]
    used = margin.from_json(whole)
    lines = [
        "# Margins of requests",
        "",
        "Written by `python -m lab.fit.margins` (`make fit`); do not edit. Every run below is",
        "answered by margins fitted without its family of models, or without all custom networks of its",
        "author, as if no model of its family had been measured.",
        "",
        *_HEAD,
    ]
    for tool in ("torchinfo_full", "torchinfo_deep", "torchsummary", "torchinfo", "print", "trace"):
        for kind in ("library", "hand-written", "generated"):
            own = [one for one in needs if one.tool == tool and one.kind == kind]
            if own:
                lines.append(_line(f"{tool} | {kind}", own, by_fold, None))
    lines += [
        "",
        "The same texts (torchinfo with all layers and columns) and traces at other coverages:",
        "",
        *_HEAD,
    ]
    chosen: Tuple[Tuple[str, str, Callable[[Need], bool]], ...] = (
        ("torchinfo_full", "library", lambda one: one.tool == "torchinfo_full" and one.kind == "library"),
        (
            "torchinfo_full",
            "custom forward",
            lambda one: one.tool == "torchinfo_full" and one.group == "written",
        ),
        ("trace", "all", lambda one: one.tool == "trace"),
    )
    for tool, name, picks in chosen:
        own = [one for one in needs if picks(one)]
        for coverage in sorted({*EXPLAINED, 0.8, 0.95, 0.96, 0.97, 0.99}) if own else ():
            lines.append(_line(f"{tool} | {name}", own, by_fold, coverage))
    lines += ["", *_authors(needs, by_fold), "", *_checks(needs)]
    lines += [
        "",
        "| group | rows | default | powers: spread, size, batch | margin of a 4 GiB job |",
        "|---|---|---|---|---|",
    ]
    for name, wide in used.items():
        own = [one for one in needs if one.group == name]
        usual = quantile(sorted(one.spread for one in own), 0.5)
        batch = round(quantile(sorted(float(one.batch) for one in own), 0.5))
        added = between(wide.steps, wide.coverage) * wide.unit_mib(4096.0, batch, usual)
        lines.append(
            f"| {name} | {len(own):,} | {wide.coverage:.0%} | {wide.spread:g}, {wide.size:g}, {wide.batch:g} "
            f"| {added:,.0f} MiB |"
        )
    return lines


def _authors(needs: Sequence[Need], by_fold: Sequence[Mapping[str, GroupMargin]]) -> List[str]:
    """What to expect of hand-written networks by somebody whose networks were not measured."""
    written = [one for one in needs if one.tool == "torchinfo_deep" and one.author]
    lines = [
        "Custom networks by the plan that measured them, each by margins without that author's networks",
        "(torchinfo with all layers), and those of the blind checks, each by margins of another one's alone:",
        "",
        *_HEAD,
    ]
    for author in folds.AUTHORS:
        own = [one for one in written if one.author == author]
        lines += [_line(f"torchinfo_deep | {author}", own, by_fold, None)] if own else []
    for taught, asked in permutations(folds.AUTHORS[2:], 2):
        pool = [one for one in written if one.group == "written"]
        teachers, own = ([one for one in pool if one.author == author] for author in (taught, asked))
        if teachers and own:
            wide = {"written": fit_group(teachers, COVERAGE["written"])}
            lines.append(_line(f"torchinfo_deep | {taught} to {asked}", own, [wide] * folds.FOLDS, None))
    return lines


def _checks(needs: Sequence[Need]) -> List[str]:
    """What to expect of traces of fresh jobs."""
    traces = [one for one in needs if one.tool == "trace" and one.kind != "generated"]
    lines = ["Traces of the blind checks' jobs, each by margins without all jobs of its check:", "", *_HEAD]
    for check in sorted({one.check for one in traces} - {""}):
        own = [one for one in traces if one.check == check]
        wide = {"trace": fit_group([one for one in traces if one.check != check], COVERAGE["trace"])}
        lines += [
            _line(f"trace | {check}", own, [wide] * folds.FOLDS, coverage) for coverage in (0.95, 0.98, 0.99)
        ]
    return lines


def _line(
    name: str, own: Sequence[Need], by_fold: Sequence[Mapping[str, GroupMargin]], coverage: Optional[float]
) -> str:
    errors = sorted(abs((one.peak + one.moved) / (one.need + one.moved) - 1) for one in own)
    asked = [request(one, by_fold[one.fold][one.group], coverage) for one in own]
    ratios = [made / (one.need + one.moved) for made, one in zip(asked, own)]
    total = sum(asked) / sum(one.need + one.moved for one in own)
    return (
        f"| {name} | {len(own):,} | {quantile(errors, 0.5):.1%} / {quantile(errors, 0.9):.1%} "
        f"| {'default' if coverage is None else f'{coverage:g}'} | {share(r < 1 for r in ratios):.1%} "
        f"| {total:.2f} | {share(r > 1.5 for r in ratios):.1%} / {share(r > 2 for r in ratios):.1%} |"
    )
