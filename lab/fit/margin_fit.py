"""The margin of a group of texts or of traces: the units that ask for least at its coverage."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from lab.score.figures import quantile, share
from slurm_gpumem.estimators.margin import FORMAT, LEVELS, TRACE, GroupMargin, between

COVERAGE: Mapping[str, float] = {
    "complete": 0.98,
    "shown": 0.98,
    "torchsummary": 0.98,
    "hidden": 0.98,
    "unusual": 0.8,
    "written": 0.95,
    "written-flat": 0.95,
    "shapeless": 0.9,
    TRACE: 0.99,
}
"""What is asked of each group. Where a text hides much, 98 % would ask for several times the need."""
SPREAD_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SIZE_POWERS = (0.3, 0.5, 0.7, 0.85, 1.0)
BATCH_POWERS = (0.0, 0.1, 0.2)
TRACE_SIZE_POWERS = (0.7, 0.85, 1.0)
"""What a trace may miss (workspaces, gaps between blocks) grows with the job and has no batch of its own."""
GRUMBLE = 1.5
"""A request of more than this multiple of the need counts beside the memory that it holds."""
FEW_AUTHORS = 0.7
"""Hand-written networks have more authors than were measured: this share of the allowed misses is used.
Less of it would ask for more than twice what the networks of authors who were held out need, in sum."""


class Need(NamedTuple):
    """A measured run as one text or its trace shows it: MiB with the reference context."""

    group: str
    fold: int
    unit: str
    """What counts as one draw: a family of models, or a hand-written network."""
    tool: str
    kind: str
    """"library", "hand-written" or "generated"."""
    author: str
    """Who wrote a hand-written network, as `folds.author_of`; "" for others."""
    peak: float
    spread: float
    batch: int
    need: float
    moved: float
    """The job's own context less the reference's."""
    check: str = ""
    """The blind check that the run is from; "" for others."""


def fit(needs: Sequence[Need]) -> Dict[str, Any]:
    """The margins of all groups."""
    by_group: Dict[str, List[Need]] = defaultdict(list)
    for need in needs:
        # Generated networks are scored, but teach nothing here: they are wilder than what people write.
        wild = need.kind == "generated" and (need.group.startswith("written") or need.group == TRACE)
        if not wild:
            by_group[need.group].append(need)
    return {
        "format": FORMAT,
        "groups": {name: fit_group(by_group[name], COVERAGE[name])._asdict() for name in sorted(by_group)},
    }


def fit_group(needs: Sequence[Need], coverage: float) -> GroupMargin:
    """The powers that ask for least at the coverage, and the steps in their units."""
    traces = _are_traces(needs)
    tried = [
        _with_steps(needs, GroupMargin((), *powers, coverage))
        for powers in (
            (spread, size, batch)
            for spread in SPREAD_POWERS
            for size in (TRACE_SIZE_POWERS if traces else SIZE_POWERS)
            for batch in (BATCH_POWERS[:1] if traces else BATCH_POWERS)
        )
    ]
    return min(tried, key=lambda margin: _loss(needs, margin))


def _with_steps(needs: Sequence[Need], margin: GroupMargin) -> GroupMargin:
    units = ((one, margin.unit_mib(one.peak, one.batch, one.spread)) for one in needs)
    ordered = sorted((one.need - one.peak) / unit for one, unit in units)
    count = len({one.unit for one in needs})
    # Runs of one family err together, so families are counted, not runs.
    levels = [min(1.0, level * (count + 1) / count) for level in LEVELS]
    if all(one.group.startswith("written") for one in needs):
        levels = [1 - (1 - level) * FEW_AUTHORS for level in levels]
    return margin._replace(steps=tuple(max(0.0, quantile(ordered, level)) for level in levels))


def _are_traces(needs: Sequence[Need]) -> bool:
    return all(one.group == TRACE for one in needs)


def _loss(needs: Sequence[Need], margin: GroupMargin) -> float:
    asked = [request(one, margin) for one in needs]
    ratios = [made / (one.need + one.moved) for made, one in zip(asked, needs)]
    return sum(asked) / sum(one.need + one.moved for one in needs) + share(r > GRUMBLE for r in ratios)


def request(one: Need, margin: GroupMargin, coverage: Optional[float] = None) -> float:
    """What is asked for, the job's own context included."""
    unit = margin.unit_mib(one.peak, one.batch, one.spread)
    return one.peak + between(margin.steps, coverage or margin.coverage) * unit + one.moved
