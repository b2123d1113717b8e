"""Tasks that run before the others of their array: when enough was measured, the waiting ones are changed.

The sampler only measures. What the others ask for is worked out and told to Slurm by a process of the job's
owner (submission/sweep/resize.py), who may change their own jobs and nobody else's.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from math import ceil
from typing import IO, Callable, Dict, List, Mapping, NamedTuple, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import JobRecord, Measurement
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.sampler.usage import JobUsage
from slurm_gpumem.other_user import as_user

_GROWN = 1.01
"""A peak that grew by less has not grown: allocators move by a few MiB."""
_TRIES, _PAUSE_S, _LIMIT_S = 9, 10.0, 60.0
"""Each pause is twice the one before: a controller may be away for an hour."""
_MOST_BYTES = 4096
_WELL = ("COMPLETED", "TIMEOUT")
Run = Tuple[int, int]
"""Job and restarts."""


class Order(NamedTuple):
    """What the owner's process is started with."""

    uid: int
    key: str
    gpu: str = "-"
    peak: str = "-"
    activity: str = "-"

    @property
    def words(self) -> Tuple[str, ...]:
        """Its arguments."""
        return self[1:]


class _Growth(NamedTuple):
    first: float
    last: float
    peak_mib: float


class _Started(NamedTuple):
    order: Order
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    since: float
    tries: int


def is_pilot(claim: CommentRecord) -> bool:
    """Whether tasks of its array may wait for what it takes."""
    return claim.hold is not None and bool(claim.fingerprint)


def _told_mib(claim: CommentRecord) -> float:
    """The peak by which those that wait were changed, as far as its own request shows."""
    return float(claim.estimate_mib or 0) if claim.shards else 0.0


class Pilots:
    """Looks at the pilots of this node once a second; changes the waiting tasks in the background."""

    def __init__(self, config: NodeConfig, log: Callable[[str], None]) -> None:
        self._config = config
        self._log = log
        self._growth: Dict[Run, _Growth] = {}
        self._told: Dict[Run, float] = {}
        """The peaks by which those that wait were changed."""
        self._waited_for: Set[Run] = set()
        """Those whose array has waited for long enough."""
        self._orders: List[Tuple[Order, float, int]] = []
        """With when to start it, and how often that was tried."""
        self._started: Dict[int, _Started] = {}
        """One for each user: who stops theirs keeps nobody else waiting."""

    def look(self, here: Mapping[int, NodeJob], usage: Mapping[int, JobUsage], now: float) -> None:
        """Whose memory is steady, who grew after that, and who has run for as long as others wait."""
        present = {(job_id, job.restarts) for job_id, job in here.items() if is_pilot(job.claimed)}
        for run in present:
            job, used = here[run[0]], usage[run[0]]
            peak_mib, told = used.peak_mib() or 0.0, self._told.get(run, _told_mib(job.claimed))
            if peak_mib > told * _GROWN if told else self._is_steady(run, peak_mib, now):
                self._told[run] = peak_mib
                self._order(_order_of(job.uid, job.claimed, used.measured()), now)
            elif not told and run not in self._waited_for and self._waited_enough(job):
                self._waited_for.add(run)
                self._order(Order(job.uid, job.claimed.fingerprint), now)
        self._growth = {run: growth for run, growth in self._growth.items() if run in present}
        self._told = {run: mib for run, mib in self._told.items() if run in present}
        self._waited_for &= present
        self._work(now)

    def ended(self, record: JobRecord, now: float) -> None:
        """How Slurm says that a run ended: one that came to its end has shown what it takes.

        One that took no GPU memory, too: the others start on whole GPUs, rather than one by one.
        """
        peak_mib = record.measured.peak_mib or 0.0
        told = _told_mib(record.claimed)
        if is_pilot(record.claimed) and record.state in _WELL and (peak_mib > told or not told):
            self._order(_order_of(record.uid, record.claimed, record.measured), now)

    @property
    def busy(self) -> bool:
        """Whether something is still to be done."""
        return bool(self._orders or self._started)

    def close(self) -> None:
        """What was started goes on by itself."""
        for started in self._started.values():
            started.said.close()

    def _waited_enough(self, job: NodeJob) -> bool:
        return job.now() - job.started > self._config.pilot_wait

    def _is_steady(self, run: Run, peak_mib: float, now: float) -> bool:
        if not peak_mib:
            return False
        before = self._growth.get(run)
        if before is None or peak_mib > before.peak_mib * _GROWN:
            self._growth[run] = _Growth(before.first if before else now, now, peak_mib)
            return False
        # What grows later, as evaluations do, is seen while the task runs on, ahead of the others.
        return now - before.last >= max(self._config.pilot_steady_s, before.last - before.first)

    def _order(self, order: Order, now: float, tries: int = 0) -> None:
        """The largest measurement of a script counts, and is tried when the first of them is due."""
        same = [one for one in self._orders if one[0][:2] == order[:2]]
        self._orders = [one for one in self._orders if one not in same]
        same.append((order, now, tries))
        most = max(same, key=lambda one: int(one[0].peak) if one[0].peak.isdigit() else 0)
        self._orders.append((most[0], min(one[1] for one in same), min(one[2] for one in same)))

    def _work(self, now: float) -> None:
        for started in [*self._started.values()]:
            self._follow(started, now)
        for order, at, tries in [*self._orders]:
            if at <= now and order.uid not in self._started:
                self._orders.remove((order, at, tries))
                self._start(order, now, tries)

    def _follow(self, started: _Started, now: float) -> None:
        code = started.process.poll()
        if code is None:
            if now - started.since > _LIMIT_S:
                started.process.kill()
            return
        with started.said:
            started.said.seek(0)
            for line in started.said.read(_MOST_BYTES).decode(errors="replace").splitlines():
                self._log(f"user {started.order.uid}: {line}")
        del self._started[started.order.uid]
        if code:
            self._again(started.order, now, started.tries)

    def _again(self, order: Order, now: float, tries: int) -> None:
        if tries + 1 < _TRIES:
            self._order(order, now + _PAUSE_S * 2**tries, tries + 1)
        else:
            self._log(f"user {order.uid}: tasks that wait for a measurement were not changed")

    def _start(self, order: Order, now: float, tries: int) -> None:
        said = os.fdopen(os.memfd_create("pilot"), "w+b")
        try:
            process = self._process(order, said)
        except (OSError, KeyError, subprocess.SubprocessError) as error:
            said.close()
            self._log(f"user {order.uid}: {error}")
            self._again(order, now, tries)
            return
        self._started[order.uid] = _Started(order, process, said, now, tries)

    def _process(self, order: Order, said: IO[bytes]) -> subprocess.Popen[bytes]:
        user = pwd.getpwuid(order.uid)
        kept = {key: value for key, value in os.environ.items() if key.startswith(("SLURM_CONF", "GPUMEM_"))}
        path = os.environ.get("PATH") or os.defpath
        env = {**kept, **self._config.slurm_env, "PATH": path, "HOME": user.pw_dir, "USER": user.pw_name}
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "slurm_gpumem.submission.sweep.resize", *order.words],
            stdin=subprocess.DEVNULL,
            stdout=said.fileno(),
            stderr=subprocess.STDOUT,
            env=env,
            cwd="/",
            start_new_session=True,
            **as_user(order.uid),
        )


def _order_of(uid: int, claim: CommentRecord, measured: Measurement) -> Order:
    figures = max(measured.gpu.values(), key=lambda one: one.peak_mib or 0.0, default=None)
    alone = figures.alone_sm if figures is not None else None
    return Order(
        uid,
        claim.fingerprint,
        claim.gpu or (figures.name if figures else "") or "-",
        str(ceil(measured.peak_mib)) if measured.peak_mib else "-",
        "-" if alone is None else str(max(1, round(100 * alone))),
    )
