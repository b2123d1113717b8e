"""Learn a site's layer from its jobs: a constant in MiB first, then a factor, then a bound. Plain Python.

A run that ended well shows what it needed. One that ran out of memory shows only that it needed more than
its limit, one that was cancelled that it needed at least its peak: such values are censored, and quantiles
are taken as Kaplan and Meier do, which moves the weight of a censored run to those that needed more.

An estimate and a fingerprint come from a job's comment, which its owner controls, so no single user may move
what others ask for: nothing is learnt from fewer than three users, every central value is the median of the
users' own medians, and the bound is the smallest of those that leave out one user. A fit is judged by models
that it has not seen.
"""

from __future__ import annotations

from hashlib import sha1
from math import inf, log
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.estimators.quantiles import Point, conformal, median, middle, quantile
from slurm_gpumem.estimators.remembered import plain_gpu
from slurm_gpumem.estimators.site_layer import (
    MOST_CONSTANT,
    MOST_OFFSET,
    MOST_QUANTILE,
    SiteLayer,
    width,
    with_constant,
)

LEAST_USERS = 3
LEAST_RUNS, LEAST_MODELS = 10, 5
"""Enough for a constant."""
_FACTOR_RUNS, _FACTOR_MODELS = 50, 8
"""Enough for everything else."""
COVERAGE = 0.98
FOLDS = 5
_FARTHEST = 3.0
"""|log(measured / estimated)| beyond this is another job than the estimate's, not an error of it."""
_MODEL_RUNS = 3
_MOST_LOWERING = 0.3
_UNMET = 5.0
"""A job that its request did not hold costs as much as this many times its need kept in vain."""
_SUSPECTS = 20
_BEATS = 0.85
"""A factor replaces or joins a constant where it leaves at most this share of its error."""


class SiteRun(NamedTuple):
    """One job as its record has it: what was estimated, and what it took."""

    fingerprint: str
    user: str
    gpu: str
    peak_mib: int
    """As estimated, without a site's layer and with the context of jobs that say nothing of theirs."""
    request_mib: int
    took_mib: int
    censored: bool
    """It needed at least `took_mib`, nobody knows how much more."""
    came: Tuple[int, int] = (0, 0)
    """Peak and request as they came, with what the job said of its environment; zeros: as above."""

    @property
    def ratio(self) -> float:
        """log(measured / estimated)."""
        return log(self.took_mib / self.peak_mib)

    @property
    def width(self) -> float:
        """How unsure the estimator was, as a log."""
        return width(self.peak_mib, self.request_mib)


class LayerScore(NamedTuple):
    """How a layer does on runs."""

    runs: int
    models: int
    median_error: float
    """Of the peak, over runs whose need is known."""
    above_request: float
    """Share of runs that needed more; users weigh the same, and the worst of several is left out."""
    in_vain: float
    """Median of what the request holds beyond the need."""
    cost: float
    """Mean of what is kept in vain, where a job that was not held costs `_UNMET`; median over users."""


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
    users = len({run.user for run in whole})
    if len(whole) >= LEAST_RUNS and models >= LEAST_MODELS and users >= LEAST_USERS:
        return ""
    return (
        f"{len(whole)} finished runs of {models} models by {users} users are too little to learn from; "
        f"at least {LEAST_RUNS} of {LEAST_MODELS} by {LEAST_USERS} are needed"
    )


def fit(runs: Sequence[SiteRun], estimator: str, coverage: float = COVERAGE) -> SiteLayer:
    """The layer that these runs suggest."""
    whole = [run for run in runs if not run.censored]
    enough = len(whole) >= _FACTOR_RUNS and len({run.fingerprint for run in whole}) >= _FACTOR_MODELS
    layer = _location(runs, estimator, coverage, factor=enough)
    if not enough:
        return layer
    base = {run: _rest(run, layer) for run in runs}
    models = _model_terms(runs, base)
    return layer._replace(
        models=models,
        quantile=_bound(runs, base, coverage),
        known_quantile=_bound_of_known(runs, base, models, coverage),
    )


def nothing_learned(estimator: str, coverage: float = COVERAGE) -> SiteLayer:
    """A layer that changes nothing."""
    return SiteLayer(estimator, 0.0, {}, 0.0, {}, 1.0, 1.0, coverage, {})


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
        return judge([(run, run.came[0] or run.peak_mib, run.came[1] or run.request_mib) for run in runs])
    return judge(_answers(runs, layer))


def better(new: LayerScore, now: LayerScore, coverage: float = COVERAGE) -> bool:
    """Whether the new one may take the place of the one in force: it holds what it must, and costs less."""
    # Of few models one is more than the share that may be missed; it may be that of a user with few.
    allowed = max(now.above_request, 1 - coverage, 1.5 / max(new.models, 1))
    return new.above_request <= allowed and new.cost < now.cost * 0.99


def judge(answers: Sequence[Tuple[SiteRun, float, float]]) -> LayerScore:
    """Figures of (run, peak, request)."""
    weights = dict(_weighed([run for run, _, _ in answers]))
    errors = [abs(peak / run.took_mib - 1) for run, peak, _ in answers if not run.censored]
    spare = [request / run.took_mib - 1 for run, _, request in answers if not run.censored]
    unmet: Dict[str, float] = {}
    cost: Dict[str, float] = {}
    total: Dict[str, float] = {}
    for run, _, request in answers:
        # A censored run needed more than it took, nobody knows how much: it counts as held from a tenth on.
        short = request < run.took_mib * (1.1 if run.censored else 1.0)
        for sums, value in (
            (total, 1.0),
            (unmet, float(short)),
            (cost, _UNMET if short else request / run.took_mib - 1),
        ):
            sums[run.user] = sums.get(run.user, 0.0) + weights[run] * value
    models = len({run.fingerprint for run, _, _ in answers})
    return LayerScore(
        len(answers),
        models,
        median(errors),
        _without_worst([unmet[user] / total[user] for user in total]),
        median(spare),
        median([cost[user] / total[user] for user in total]),
    )


def _without_worst(shares: Sequence[float]) -> float:
    """The mean over users; where there are several without the worst, whose claims may be forged."""
    kept = sorted(shares)[: -1 if len(shares) >= LEAST_USERS else None]
    return sum(kept) / max(len(kept), 1)


def _answers(runs: Sequence[SiteRun], layer: SiteLayer) -> List[Tuple[SiteRun, float, float]]:
    return [(run, *layer.move(run.peak_mib, run.request_mib, run.gpu, run.fingerprint)) for run in runs]


def _fold(run: SiteRun) -> int:
    return int(sha1(run.fingerprint.encode()).hexdigest(), 16) % FOLDS


def _weighed(runs: Sequence[SiteRun]) -> List[Tuple[SiteRun, float]]:
    """Weights that sum to the number of models: users weigh the same, and so does each of a user's models."""
    counts: Dict[Tuple[str, str], int] = {}
    for run in runs:
        counts[run.user, run.fingerprint] = counts.get((run.user, run.fingerprint), 0) + 1
    models: Dict[str, int] = {}
    for user, _ in counts:
        models[user] = models.get(user, 0) + 1
    share = len({fingerprint for _, fingerprint in counts}) / max(len(models), 1)
    return [(run, share / models[run.user] / counts[run.user, run.fingerprint]) for run in runs]


# -- Where the peak lies ---------------------------------------------------------------------------


def _location(runs: Sequence[SiteRun], estimator: str, coverage: float, *, factor: bool) -> SiteLayer:
    """A constant, a factor, or both: whichever leaves the least error, the constant where it is close."""
    none = nothing_learned(estimator, coverage)
    constant = _of_users(runs, _constant)
    by_type = none._replace(constant=constant, constants=_constants(runs, constant))
    if not factor:
        return by_type
    scaled = none._replace(offset=_clip(_of_users(runs, _middle_ratio)))
    both = by_type._replace(
        offset=_clip(
            _of_users(runs, lambda own: middle([(_rest(r, by_type), w, r.censored) for r, w in own]))
        )
    )
    chosen, error = by_type, _error(runs, by_type)
    for other in (scaled, both):
        left = _error(runs, other)
        if left < error * _BEATS:
            chosen, error = other, left
    return chosen


def _of_users(runs: Sequence[SiteRun], value: Callable[[Sequence[Tuple[SiteRun, float]]], float]) -> float:
    """The median over the users of what each one's own runs say."""
    own: Dict[str, List[Tuple[SiteRun, float]]] = {}
    for run, weight in _weighed(runs):
        own.setdefault(run.user, []).append((run, weight))
    return median([value(members) for members in own.values()])


def _constant(own: Sequence[Tuple[SiteRun, float]]) -> float:
    """MiB: the median of measured less estimated. A MiB counts for more in a small job."""
    points = [
        (float(run.took_mib - run.peak_mib), weight / run.took_mib, run.censored) for run, weight in own
    ]
    found = quantile(points, 0.5)
    if found == inf:
        found = quantile([(value, weight, False) for value, weight, _ in points], 0.5)
    return max(-MOST_CONSTANT, min(MOST_CONSTANT, found))


def _constants(runs: Sequence[SiteRun], constant: float) -> Dict[str, float]:
    """By GPU type, where as much ran on it as a site's constant needs."""
    by_kind: Dict[str, List[SiteRun]] = {}
    for run in runs:
        by_kind.setdefault(plain_gpu(run.gpu), []).append(run)
    found = {}
    for kind, own in by_kind.items():
        if not shortage(own):
            models = len({run.fingerprint for run in own})
            # Few models on a type of GPU are weak evidence against all models of the site.
            found[kind] = constant + (_of_users(own, _constant) - constant) * models / (models + 1)
    return found


def _middle_ratio(own: Sequence[Tuple[SiteRun, float]]) -> float:
    return middle([(run.ratio, weight, run.censored) for run, weight in own])


def _rest(run: SiteRun, layer: SiteLayer) -> float:
    """log(measured / estimated) that a layer leaves, without its terms for models."""
    constant = layer.constants.get(plain_gpu(run.gpu), layer.constant)
    return log(run.took_mib / with_constant(run.peak_mib, constant)) - layer.offset


def _error(runs: Sequence[SiteRun], layer: SiteLayer) -> float:
    """The error that a layer leaves: the median over users of the means of each one's runs."""

    def mean(own: Sequence[Tuple[SiteRun, float]]) -> float:
        # A censored run above its estimate says nothing against it.
        errors = [(abs(_rest(r, layer)), w) for r, w in own if not r.censored or _rest(r, layer) > 0]
        total = sum(weight for _, weight in errors)
        return sum(error * weight for error, weight in errors) / total if total else 0.0

    return _of_users(runs, mean)


def _model_terms(runs: Sequence[SiteRun], base: Dict[SiteRun, float]) -> Dict[str, float]:
    """What comes on top for a model: the median of its own runs, drawn towards nothing while they are few."""
    own: Dict[str, List[SiteRun]] = {}
    for run in runs:
        own.setdefault(run.fingerprint, []).append(run)
    return {
        name: _term(members, base)
        for name, members in own.items()
        if name and len(members) >= _MODEL_RUNS and len({run.user for run in members}) >= LEAST_USERS
    }


def _term(members: Sequence[SiteRun], base: Dict[SiteRun, float]) -> float:
    def own_middle(own: Sequence[Tuple[SiteRun, float]]) -> float:
        return middle([(base[run], weight, run.censored) for run, weight in own])

    term = _of_users(members, own_middle) * len(members) / (len(members) + 2)
    return max(-_MOST_LOWERING, _clip(term))


# -- How wide the request is -----------------------------------------------------------------------


def _bound(runs: Sequence[SiteRun], base: Dict[SiteRun, float], coverage: float) -> float:
    return _without_one_user(
        [(run.user, (base[run] / run.width, weight, run.censored)) for run, weight in _weighed(runs)],
        coverage,
    )


def _bound_of_known(
    runs: Sequence[SiteRun], base: Dict[SiteRun, float], models: Dict[str, float], coverage: float
) -> float:
    """For models with a term of their own: each run held against the term that the others of it give."""
    points = []
    for name in models:
        members = [run for run in runs if run.fingerprint == name]
        for at, run in enumerate(members):
            rest = members[:at] + members[at + 1 :]
            value = (base[run] - _term(rest, base)) / run.width
            points.append((run.user, (value, 1.0 / len(members), run.censored)))
    # Too few to tell: then a known model is as unsure as a new one.
    return (
        _without_one_user(points, coverage) if len(points) >= _FACTOR_RUNS else _bound(runs, base, coverage)
    )


def _without_one_user(points: Sequence[Tuple[str, Point]], coverage: float) -> float:
    """The smallest of the bounds that leave out one user: nobody can widen everybody's request alone."""
    everything = _wide([point for _, point in points], coverage)
    users = {user for user, _ in points}
    if len(users) < LEAST_USERS:
        return everything
    # A user with an ordinary spread cannot have widened it: of many users only the farthest are tried.
    farthest = sorted(
        users, key=lambda user: -max(abs(value) for own, (value, _, _) in points if own == user)
    )
    return min(
        _wide([point for user, point in points if user != suspect], coverage)
        for suspect in farthest[:_SUSPECTS]
    )


def _wide(points: Sequence[Point], coverage: float) -> float:
    return min(conformal(points, coverage), MOST_QUANTILE)


def _clip(value: float) -> float:
    return max(-MOST_OFFSET, min(MOST_OFFSET, value))
