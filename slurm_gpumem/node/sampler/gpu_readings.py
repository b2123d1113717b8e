"""Activity, power and energy of the GPUs, read as seldom as that may be.

Process lists are looked at every second, since a peak between two looks is lost. These values are not
like that: GPM's activity is a counter, so that two readings some seconds apart hold all that was
between them. A reading is due every few seconds, and whenever other jobs are on the GPU than
at the last one or other ones of them have begun to train, so that each stretch belongs to one set of jobs.

The driver's energy counter is exact and by far the most expensive value (4 ms of CPU time on an H200). It is
read when the jobs change and else once a minute; until then power times time is used, and the difference
is made up for at the next reading of the counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, Mapping, NamedTuple, Optional

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import BASES, PREDICTED, REMEMBERED
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sources.base import MetricSource, SourceError

COUNTER_EVERY_S = 60.0


@dataclass(frozen=True)
class Reading:
    """What a GPU did in the stretch that has just ended."""

    sample: GpuSample
    seconds: float
    energy_j: Optional[float]
    """Negative when more was given before than the counter says."""
    sharers: FrozenSet[int]
    """The jobs that held memory of the GPU in that stretch."""
    training: FrozenSet[int] = frozenset()
    """Those of them that had begun their steps."""


@dataclass(frozen=True)
class _State:
    at: float
    sharers: FrozenSet[int]
    training: FrozenSet[int]
    sample: GpuSample


@dataclass
class _Energy:
    """The counter when it was last read, and what has been given to the jobs since."""

    counter_j: Optional[float] = None
    read_at: float = float("-inf")
    given_j: float = 0.0


class Meter:
    """The last reading of every GPU."""

    def __init__(self, source: MetricSource, every_s: float) -> None:
        self._source = source
        self._every_s = every_s
        self._states: Dict[str, _State] = {}
        self._energies: Dict[str, _Energy] = {}

    def read(
        self, uuid: str, active: FrozenSet[int], now: float, training: FrozenSet[int] = frozenset()
    ) -> Optional[Reading]:
        """A reading when one is due, else None; raises SourceError like its source."""
        before = self._states.get(uuid)
        same = before is not None and (before.sharers, before.training) == (active, training)
        if before is not None and same and now - before.at < self._every_s:
            return None
        # When the GPU does not answer now, the stretch goes on until it does.
        sample = self._source.sample(uuid)
        energy_j = self._energy(uuid, before, _State(now, active, training, sample))
        self._states[uuid] = _State(now, active, training, sample)
        if before is None:
            return Reading(sample, 0.0, None, active, training)
        return Reading(sample, now - before.at, energy_j, before.sharers, before.training)

    def last(self, uuid: str) -> GpuSample:
        """The values of the last reading, for whoever looks at the screen."""
        state = self._states.get(uuid)
        return GpuSample() if state is None else state.sample

    def _energy(self, uuid: str, before: Optional[_State], now: _State) -> Optional[float]:
        """Of the stretch that ends now; between two readings of the counter the jobs stay the same."""
        energy = self._energies.setdefault(uuid, _Energy())
        by_power = None if before is None else _by_power(before, now)
        changed = before is not None and before.sharers != now.sharers
        due = changed or energy.counter_j is None or now.at - energy.read_at >= COUNTER_EVERY_S
        # Jobs that come and go every second must not make it expensive: then power times time is used.
        if not due or now.at - energy.read_at < self._every_s:
            if changed:
                self._energies[uuid] = _Energy(read_at=energy.read_at)
            else:
                energy.given_j += by_power or 0.0
            return by_power
        counter_j = self._counter(uuid)
        self._energies[uuid] = _Energy(counter_j, now.at)
        # The counter starts again from 0 when the driver is loaded again.
        if counter_j is None or energy.counter_j is None or counter_j < energy.counter_j:
            return by_power
        return counter_j - energy.counter_j - energy.given_j

    def _counter(self, uuid: str) -> Optional[float]:
        try:
            return self._source.energy_j(uuid)
        except SourceError:
            # The reading itself stands; this GPU's energy is computed from its power until the next.
            return None


def _by_power(before: _State, now: _State) -> Optional[float]:
    """Half by the power at its beginning, half by that at its end."""
    known = [state.sample.power_w for state in (before, now) if state.sample.power_w is not None]
    return sum(known) / len(known) * (now.at - before.at) if known else None


# How much of its speed alone each job had beside the others of a GPU, from what the GPU was seen to do.
#
# A step needs the same work of the multiprocessors wherever it runs. So while all jobs of a GPU train, the
# GPU's activity is the sum of each one's activity alone times its speed:
#
#     speed = the GPU's activity / sum of the jobs' activities alone
#
# as one figure for all of them: who of them lost more is not seen. While all train, the GPU is at least as
# active as the most active of them would be alone, or as they are in the mean where they take turns. Where
# it was less, they waited for something else in that part of the time (input, a checkpoint), and neighbours
# cost them nothing then.

LEAST_ALONE_S = 10.0
"""Activity of a job that had the GPU to itself counts as measured from this time on."""
TRAINS_FROM = 0.25
"""A job that holds less than this part of its estimated peak has not begun its steps yet."""
IDLE_BELOW = 0.01
"""SM activity, or the part of time with any kernel, of a GPU that does nothing."""
_LEAST_ACTIVITY = 0.02


class Alone(NamedTuple):
    """A job's activity with the GPU to itself, a part of 1, and where that is known from."""

    activity: float
    basis: str


def claimed_alone(claim: CommentRecord) -> Optional[Alone]:
    """What the job's comment says of it."""
    if claim.sm is None:
        return None
    return Alone(claim.sm / 100, REMEMBERED if claim.sm_by == REMEMBERED else PREDICTED)


def speed_beside(
    training: Mapping[int, Optional[Alone]], activity: Optional[float], *, turns: bool = False
) -> Optional[float]:
    """The speed of each of these jobs as a part of its speed alone; None where it cannot be known."""
    if len(training) < 2:
        return 1.0
    # A comment may say anything.
    known = [max(_LEAST_ACTIVITY, min(1.0, alone.activity)) for alone in training.values() if alone]
    if activity is None or len(known) < len(training):
        return None
    least = sum(known) / len(known) if turns else max(known)
    together = min(1.0, activity / least)
    return 1.0 - together * (1.0 - min(1.0, activity / sum(known)))


def trains(mib: Optional[float], estimate_mib: Optional[int]) -> bool:
    """Whether a job that holds that much memory has begun its steps."""
    return mib is None or estimate_mib is None or mib >= TRAINS_FROM * estimate_mib


def weakest_basis(training: Mapping[int, Optional[Alone]]) -> str:
    """Where what is said of jobs side by side is known from; "" of one job, or where nothing is known."""
    if len(training) < 2:
        return ""
    return max((alone.basis for alone in training.values() if alone), key=BASES.index, default="")
