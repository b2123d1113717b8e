"""Learn a site's layer from its jobs: offsets that are medians, a bound that is a quantile. Plain Python.

A run that ended well shows what it needed. One that ran out of memory shows only that it needed more than
its limit, one that was cancelled that it needed at least its peak: such values are censored, and quantiles
are taken as Kaplan and Meier do, which moves the weight of a censored run to those that needed more. Every
model weighs the same however often it ran, and a fit is judged by models that it has not seen.
"""

from __future__ import annotations

from hashlib import sha1
from math import ceil, inf, log
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.estimators.remembered import plain_gpu
from slurm_gpumem.estimators.site_layer import LEAST_WIDTH, MOST_OFFSET, MOST_QUANTILE, SiteLayer

LEAST_RUNS, LEAST_MODELS = 50, 8
COVERAGE = 0.98
FOLDS = 5
_FARTHEST = 3.0
"""|log(measured / estimated)| beyond this is another job than the estimate's, not an error of it."""
_GPU_RUNS, _GPU_MODELS = 20, 4
_MODEL_RUNS = 3
_LOWERING_USERS = 2
"""Users who must have run a model before it may ask for less: a comment can claim any estimate."""
_MOST_LOWERING = 0.3
_UNMET = 5.0
"""A job that its request did not hold costs as much as this many times its need kept in vain."""


class SiteRun(NamedTuple):
    """One job as its record has it: what was estimated, and what it took."""

    fingerprint: str
    user: str
    gpu: str
    peak_mib: int
    """As estimated, without a site's layer."""
    request_mib: int
    took_mib: int
    censored: bool
    """It needed at least `took_mib`, nobody knows how much more."""

    @property
    def ratio(self) -> float:
        """log(measured / estimated)."""
        return log(self.took_mib / self.peak_mib)

    @property
    def width(self) -> float:
        """How unsure the estimator was, as a log."""
        return max(log(self.request_mib / self.peak_mib), LEAST_WIDTH)


class LayerScore(NamedTuple):
    """How a layer does on runs."""

    runs: int
    models: int
    median_error: float
    """Of the peak, over runs whose need is known."""
    above_request: float
    """Share of runs, each model weighing the same, that needed more than the request."""
    in_vain: float
    """Median of what the request holds beyond the need."""
    cost: float
    """Mean of what is kept in vain, where a job that was not held costs `_UNMET`."""


def usable(runs: Sequence[SiteRun]) -> List[SiteRun]:
    """The runs that an error of the estimate can explain."""
    return [
        run
        for run in runs
        if min(run.peak_mib, run.request_mib, run.took_mib) > 0 and abs(run.ratio) <= _FARTHEST
    ]


def shortage(runs: Sequence[SiteRun]) -> str:
    """Why there is too little to learn from; "" when there is enough."""
    whole = [run for run in runs if not run.censored]
    models = len({run.fingerprint for run in whole})
    if len(whole) >= LEAST_RUNS and models >= LEAST_MODELS:
        return ""
    return (
        f"{len(whole)} finished runs of {models} models are too little to learn from; "
        f"at least {LEAST_RUNS} of {LEAST_MODELS} are needed"
    )


def fit(runs: Sequence[SiteRun], estimator: str, coverage: float = COVERAGE) -> SiteLayer:
    """The layer that these runs suggest."""
    offset = _middle([(r.ratio, w, r.censored) for r, w in _weighed(runs)])
    gpus = _gpu_offsets(runs, offset)
    base = {run: run.ratio - gpus.get(plain_gpu(run.gpu), offset) for run in runs}
    models = _model_terms(runs, base)
    return SiteLayer(
        estimator=estimator,
        offset=offset,
        gpus=gpus,
        models=models,
        quantile=_bound(runs, base, coverage),
        known_quantile=_bound_of_known(runs, base, models, coverage),
        coverage=coverage,
        card={},
    )


def held_out(runs: Sequence[SiteRun], estimator: str, coverage: float = COVERAGE) -> LayerScore:
    """How fits do on the models that they have not seen."""
    answers: List[Tuple[SiteRun, float, float]] = []
    for fold in range(FOLDS):
        seen = [run for run in runs if _fold(run) != fold]
        if seen:
            layer = fit(seen, estimator, coverage)
            answers += _answers([run for run in runs if _fold(run) == fold], layer)
    return judge(answers)


def in_force(runs: Sequence[SiteRun], layer: Optional[SiteLayer]) -> LayerScore:
    """How the layer that the site has does on the same runs; None: it has none."""
    if layer is None:
        return judge([(run, run.peak_mib, run.request_mib) for run in runs])
    return judge(_answers(runs, layer))


def better(new: LayerScore, now: LayerScore, coverage: float = COVERAGE) -> bool:
    """Whether the new one may take the place of the one in force: it holds what it must, and costs less."""
    # Of few models one is more than the share that may be missed.
    allowed = max(now.above_request, 1 - coverage, 1 / max(new.models, 1))
    return new.above_request <= allowed and new.cost < now.cost * 0.99


def judge(answers: Sequence[Tuple[SiteRun, float, float]]) -> LayerScore:
    """Figures of (run, peak, request)."""
    weights = dict(_weighed([run for run, _, _ in answers]))
    total = sum(weights[run] for run, _, _ in answers) or 1.0
    errors = [abs(peak / run.took_mib - 1) for run, peak, _ in answers if not run.censored]
    spare = [request / run.took_mib - 1 for run, _, request in answers if not run.censored]
    unmet = cost = 0.0
    for run, _, request in answers:
        # A censored run needed more than it took, nobody knows how much: it counts as held from a tenth on.
        short = request < run.took_mib * (1.1 if run.censored else 1.0)
        unmet += weights[run] * short
        cost += weights[run] * (_UNMET if short else request / run.took_mib - 1)
    models = len({run.fingerprint for run, _, _ in answers})
    return LayerScore(len(answers), models, _median(errors), unmet / total, _median(spare), cost / total)


def _answers(runs: Sequence[SiteRun], layer: SiteLayer) -> List[Tuple[SiteRun, float, float]]:
    return [(run, *layer.move(run.peak_mib, run.request_mib, run.gpu, run.fingerprint)) for run in runs]


def _fold(run: SiteRun) -> int:
    return int(sha1(run.fingerprint.encode()).hexdigest(), 16) % FOLDS


def _weighed(runs: Sequence[SiteRun]) -> List[Tuple[SiteRun, float]]:
    counts: Dict[str, int] = {}
    for run in runs:
        counts[run.fingerprint] = counts.get(run.fingerprint, 0) + 1
    return [(run, 1 / counts[run.fingerprint]) for run in runs]


def _gpu_offsets(runs: Sequence[SiteRun], offset: float) -> Dict[str, float]:
    by_kind: Dict[str, List[SiteRun]] = {}
    for run in runs:
        by_kind.setdefault(plain_gpu(run.gpu), []).append(run)
    found = {}
    for kind, own in by_kind.items():
        models = len({run.fingerprint for run in own})
        if len(own) >= _GPU_RUNS and models >= _GPU_MODELS and len(by_kind) > 1:
            middle = _middle([(r.ratio, w, r.censored) for r, w in _weighed(own)])
            # Few models on a type of GPU are a weak word against all models of the site.
            found[kind] = _clip(offset + (middle - offset) * models / (models + 4))
    return found


def _model_terms(runs: Sequence[SiteRun], base: Dict[SiteRun, float]) -> Dict[str, float]:
    """What comes on top for a model: the median of its own runs, drawn towards nothing while they are few."""
    own: Dict[str, List[SiteRun]] = {}
    for run in runs:
        own.setdefault(run.fingerprint, []).append(run)
    terms = {}
    for name, members in own.items():
        if name and len(members) >= _MODEL_RUNS:
            terms[name] = _term(members, base)
    return terms


def _term(members: Sequence[SiteRun], base: Dict[SiteRun, float]) -> float:
    middle = _middle([(base[run], 1.0, run.censored) for run in members])
    term = middle * len(members) / (len(members) + 2)
    if len({run.user for run in members}) < _LOWERING_USERS:
        return max(0.0, term)
    return max(-_MOST_LOWERING, term)


def _bound(runs: Sequence[SiteRun], base: Dict[SiteRun, float], coverage: float) -> float:
    points = [(base[run] / run.width, weight, run.censored) for run, weight in _weighed(runs)]
    return _conformal(points, coverage)


def _bound_of_known(
    runs: Sequence[SiteRun], base: Dict[SiteRun, float], models: Dict[str, float], coverage: float
) -> float:
    """For models with a term of their own: each run held against the term that the others of it give."""
    points = []
    for name in models:
        members = [run for run in runs if run.fingerprint == name]
        for at, run in enumerate(members):
            rest = members[:at] + members[at + 1 :]
            points.append(((base[run] - _term(rest, base)) / run.width, 1.0 / len(members), run.censored))
    fallback = _bound(runs, base, coverage)
    # Too few to tell: then a known model is as unsure as a new one.
    return _conformal(points, coverage) if len(points) >= LEAST_RUNS else fallback


def _conformal(points: Sequence[Tuple[float, float, bool]], coverage: float) -> float:
    """The quantile that holds `coverage` of the next ones too.

    Runs of one model err together, so it is the models that count (each weighs 1). The largest of m holds
    m / (m + 1) of what comes; where that is too little, a normal tail is put behind it.
    """
    count = max(2, round(sum(weight for _, weight, _ in points)))
    level = ceil((count + 1) * coverage) / count
    found = _quantile(points, min(level, 1.0))
    if found == inf:
        # The largest values are censored: nobody knows how large they are, so the widest bound is taken.
        found = max(max(value for value, _, _ in points) * 1.5, 1.0)
    if level > 1.0:
        found = max(found, _normal_bound(points, count, coverage))
    return min(max(found, 0.1), MOST_QUANTILE)


def _normal_bound(points: Sequence[Tuple[float, float, bool]], count: int, coverage: float) -> float:
    """Where `coverage` of a normal distribution with these points' mean and spread lies."""
    from statistics import NormalDist

    total = sum(weight for _, weight, _ in points)
    mean = sum(value * weight for value, weight, _ in points) / total
    spread: float = (sum(weight * (value - mean) ** 2 for value, weight, _ in points) / total) ** 0.5
    z = NormalDist().inv_cdf(coverage)
    # Student's quantile for `count` points, by the first term of its expansion, and the mean's own error.
    student = z + (z**3 + z) / (4 * (count - 1))
    wider: float = ((count + 1) / (count - 1)) ** 0.5
    return mean + student * spread * wider


def _middle(points: Sequence[Tuple[float, float, bool]]) -> float:
    """The median; where most are censored, a tenth above the median of what they took at least."""
    found = _quantile(points, 0.5)
    if found == inf:
        found = 0.1 + _quantile([(value, weight, False) for value, weight, _ in points], 0.5)
    return _clip(found)


def _quantile(points: Sequence[Tuple[float, float, bool]], level: float) -> float:
    """Kaplan and Meier's quantile of weighted (value, weight, censored); inf where only censored ones are."""
    at_risk = sum(weight for _, weight, _ in points)
    beyond = 1.0
    for value, weight, censored in sorted(points, key=lambda point: (point[0], point[2])):
        if not censored:
            beyond *= max(0.0, 1 - weight / at_risk)
            if 1 - beyond >= level - 1e-9:
                return value
        at_risk -= weight
    return inf


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _clip(value: float) -> float:
    return max(-MOST_OFFSET, min(MOST_OFFSET, value))
