"""The simulation itself: events in order of time; jobs start, grow, slow each other down, crash and end."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.gpu_index import NOWHERE, GpuIndex, Places
from slurm_gpumem.simulation.gpu_state import GpuState, Task, slices_for
from slurm_gpumem.simulation.queues import Queue, check_turns, queue_for, victims_for
from slurm_gpumem.simulation.requests import Asker, speeds
from slurm_gpumem.simulation.types import MIG, MODES, WHOLE, Setup, SimJob, watts

_END, _GROW, _AGAIN, _WINDOW, _WAKE, _LEAVE = range(6)
_NEVER = float("inf")
_HAIR = 1e-6


class Run(NamedTuple):
    """One attempt of a job on its GPUs."""

    job: int
    gpus: Places
    start: float
    end: float
    granted_mib: int
    crashed: bool


class Sums(NamedTuple):
    """Integrals over the time from the first arrival to the last end."""

    joules: float
    mib_seconds: float
    active_seconds: float
    """GPUs' SM activity."""
    busy_seconds: float
    """GPUs with a job."""
    waiting_seconds: float
    """Jobs in the queue."""
    lost_seconds: float
    """GPUs (or their parts) on which jobs saved, began again from a checkpoint or lost what they had done."""
    most_waiting: int


class Outcome(NamedTuple):
    """What became of the jobs, each by its place in the trace; nan for what did not happen."""

    jobs: Sequence[SimJob]
    setup: Setup
    start: Sequence[float]
    """Of the last attempt, less the earlier runs that it goes on from: start to end is its time on GPUs."""
    end: Sequence[float]
    crashes: Sequence[int]
    over_limit: int
    """Jobs that took longer than their time limit, which Slurm would have ended."""
    refused: Tuple[int, ...]
    """Jobs that no GPU here can hold."""
    sums: Sums
    span: float
    """First arrival to last end."""
    runs: Tuple[Run, ...]
    curve: Tuple[Tuple[float, int, int, float], ...]
    """(time, GPU, MiB used, SM activity) at every change; only where recorded."""


class Engine:
    """One run of a trace. `simulate` is the way in; queues use what has no underscore."""

    def __init__(self, jobs: Sequence[SimJob], setup: Setup) -> None:
        if setup.mode not in MODES:
            raise UsageError(f"unknown mode {setup.mode!r}; known: {', '.join(MODES)}")
        if setup.mode == MIG and not setup.policy.granted:
            raise UsageError(
                f"mode mig: the policy {setup.policy.name} gives out no instances; use slurm-pack"
            )
        if (setup.mode == MIG) != bool(setup.mig):
            raise UsageError("mode mig needs --mig with a layout, like 2x3g+2g+1g; other modes take none")
        self.setup = setup
        self.policy, self.timing = setup.policy, setup.timing
        check_turns(setup)
        self.jobs = sorted(jobs, key=lambda job: job.arrival)
        self.place_of = {job.number: place for place, job in enumerate(self.jobs)}
        if len(self.place_of) != len(self.jobs):
            raise UsageError("two jobs of the trace have the same number")
        self.asker = Asker(setup)
        self.index = GpuIndex(setup.fleet, setup.policy, setup.mig)
        self.asks: Dict[int, Optional[int]] = {}
        self.steps: Dict[int, int] = {}
        self.ends: List[Tuple[float, int, Task]] = []
        """Running jobs by the end of their time limits, for backfill."""
        self.now = 0.0
        self._events: List[Tuple[float, int, int, Any, int]] = []
        self._sequence = 0
        count = len(self.jobs)
        self._start = array("d", [float("nan")]) * count
        self._end = array("d", [float("nan")]) * count
        self._crashes = array("H", [0]) * count
        self._kept: Dict[int, Tuple[float, float]] = {}
        """Of jobs with a checkpoint: seconds of work left, and on GPUs so far."""
        self._room: Dict[int, List[Task]] = {}
        """Who makes room for a job by leaving."""
        self._lost_s = 0.0
        self._unfinished = 0
        """Jobs that arrived and have not ended; events after the last of them are out of date."""
        self._over_limit = 0
        self._refused: List[int] = []
        self._runs: List[Run] = []
        self._curve: List[Tuple[float, int, int, float]] = []
        self._since = self._joules = self._mib_s = self._active_s = self._busy_s = self._waiting_s = 0.0
        self._watts = self._active = 0.0
        self._used = self._busy = self._most_waiting = 0
        for gpu in self.index.gpus:
            gpu.watts = watts(setup.fleet, 0.0, 0.0)
            self._watts += gpu.watts
        self.queue: Queue = queue_for(self)

    def run(self) -> Outcome:
        """Play the trace to its end."""
        events, jobs = self._events, self.jobs
        arrived = 0
        self.now = self._since = jobs[0].arrival if jobs else 0.0
        last_end = self.now
        while arrived < len(jobs) or self._unfinished:
            due = events[0][0] if events else _NEVER
            if arrived < len(jobs) and jobs[arrived].arrival <= due:
                due = jobs[arrived].arrival
            self._advance(due)
            freed = False
            while arrived < len(jobs) and jobs[arrived].arrival == due:
                self._arrive(jobs[arrived])
                arrived += 1
            while events and events[0][0] == due:
                _, _, kind, what, version = heappop(events)
                if kind == _END:
                    if what.version == version:
                        self._finish(what)
                        last_end, freed = due, True
                elif kind == _GROW:
                    freed |= what.version >= 0 and self._grow(what)
                elif kind == _AGAIN:
                    self.queue.add_again(what)
                elif kind == _LEAVE:
                    freed |= what.version >= 0 and self._make_room(what, saves=bool(version))
                elif kind == _WINDOW:
                    freed |= self._window(self.index.gpus[what], version)
                else:
                    self.queue.wake(version)
            self.queue.schedule(freed)
            self._most_waiting = max(self._most_waiting, len(self.queue))
            if self._unfinished and arrived == len(jobs) and not events:
                raise UsageError("the simulation stands still: jobs wait and nothing will ever be freed")
        return Outcome(
            jobs, self.setup, self._start, self._end, self._crashes, self._over_limit, tuple(self._refused),
            Sums(
                self._joules, self._mib_s, self._active_s, self._busy_s, self._waiting_s, self._lost_s,
                self._most_waiting,
            ),
            last_end - (jobs[0].arrival if jobs else 0.0), tuple(self._runs), tuple(self._curve),
        )  # fmt: skip

    # -- For queues --------------------------------------------------------------------------------

    def wake_at(self, moment: float, phase: int) -> None:
        """Wake the queue then, for that phase of its work."""
        self._at(moment, _WAKE, None, phase)

    def place(
        self, job: SimJob, *, banned: AbstractSet[int] = NOWHERE, idle: bool = True, share: bool = True
    ) -> bool:
        """Start the job if it finds its place; `idle` and `share` say which kinds of places to look at."""
        asked = self.asks[job.number]
        places: Optional[Places] = None
        if asked == WHOLE:
            places = self.index.whole(job.gpus, banned) if idle else None
        else:
            if self.policy.idle_first and idle:
                places = self.index.whole(job.gpus, banned)
            if places is None and share:
                need = self.need_mib(asked)
                places = self.index.shared(job.gpus, need, self.now, banned)
        if places is None:
            return False
        self._begin(job, places, asked)
        return True

    def need_mib(self, asked: Optional[int]) -> int:
        """Free memory that a GPU must have for a request."""
        return min((asked or 0) + self.policy.margin_mib, self.setup.fleet.memory_mib)

    def limit_of(self, job: SimJob) -> float:
        """Its time limit, for backfill."""
        limit = job.limit or self.timing.default_limit_s
        return min(limit, self.setup.turns.slot_s or limit)

    def preempt(self, job: SimJob) -> bool:
        """Have running jobs make room for it; whether some do."""
        turns = self.setup.turns
        if not turns.preempt:
            return False
        if any(task.version >= 0 for task in self._room.get(job.number, ())):
            return True
        saves = turns.save_s <= turns.grace_s
        self._room[job.number] = leaving = victims_for(self, job)
        for task in leaving:
            task.leaves = True
            self._at(self.now + (turns.save_s if saves else turns.grace_s), _LEAVE, task, int(saves))
        return bool(leaving)

    # -- Events ------------------------------------------------------------------------------------

    def _at(self, moment: float, kind: int, what: Any, version: int = 0) -> None:
        self._sequence += 1
        heappush(self._events, (moment, self._sequence, kind, what, version))

    def _arrive(self, job: SimJob) -> None:
        fleet = self.setup.fleet
        asked = self.asker.ask(job)
        # Sooner or later: in an instance that turns out too small it fails.
        needs_unsplit = bool(self.setup.mig) and (not asked or job.peak_mib > asked)
        no_gpus = job.gpus > fleet.gpus or (needs_unsplit and not self.index.has_unsplit(job.gpus))
        if no_gpus or job.peak_mib > fleet.memory_mib:
            self._refused.append(job.number)
            return
        self._unfinished += 1
        self.asks[job.number] = asked
        self.queue.add(job)

    def _begin(self, job: SimJob, places: Places, asked: Optional[int]) -> None:
        memory = self.setup.fleet.memory_mib
        whole = asked == WHOLE
        granted = memory if whole else (asked or 0)
        task = Task(job, places, granted, self.now, whole=whole, slices=slices_for(granted, memory))
        turns = self.setup.turns
        left, ran = self._kept.get(job.number, (0.0, 0.0))
        if ran:
            task.go_on(left, turns.restart_s)
            self._lose(task, turns.restart_s)
        if turns.slot_s:
            self._at(self.now + turns.slot_s, _LEAVE, task, 1)
        self._start[self.place_of[job.number]] = self.now - ran
        if len(places) > 1:
            task.speeds = dict.fromkeys(places, 1.0)
        gpus = [self.index.gpus[place] for place in places]
        crowded = any(gpu.used_mib + task.use_mib > memory for gpu in gpus)
        for gpu in gpus:
            gpu.tasks.append(task)
            gpu.granted_mib += granted
            gpu.used_mib += task.use_mib
            self._used += task.use_mib
            self._touch(gpu, was_idle=len(gpu.tasks) == 1)
        if self.policy.backfill:
            task.limit_end = self.now + self.limit_of(job)
            insort(self.ends, (task.limit_end, job.number, task))
        if crowded:
            self._crash(task)
        elif not task.trains:
            self._at(self.now + (turns.restart_s if ran else job.startup_s), _GROW, task)
        elif job.peak_mib > task.use_mib:
            self._grow(task)

    def _grow(self, task: Task) -> bool:
        """From start-up to its peak; whether it crashed."""
        more = task.job.peak_mib - task.use_mib
        gpus = [self.index.gpus[place] for place in task.gpus]
        too_much = self.policy.granted and task.job.peak_mib > task.granted_mib
        if too_much or any(gpu.used_mib + more > self.setup.fleet.memory_mib for gpu in gpus):
            self._crash(task)
            return True
        task.use_mib, task.trains = task.job.peak_mib, True
        for gpu in gpus:
            gpu.used_mib += more
            self._used += more
            self._touch(gpu, was_idle=False)
        return False

    def _crash(self, task: Task) -> None:
        """Out of memory: the job goes back to wait, asking for more."""
        job = task.job
        self._leave(task, crashed=True)
        place = self.place_of[job.number]
        self._crashes[place] += 1
        self._start[place] = float("nan")
        step = self.steps.get(job.number, 0)
        self.steps[job.number] = step + 1
        asked = WHOLE
        if step < len(self.setup.ladder) and task.granted_mib:
            more = task.granted_mib * (100 + self.setup.ladder[step]) // 100
            if more < self.setup.fleet.memory_mib:
                asked = self.asker.granted(job, more) if self.policy.granted else more
        self.asks[job.number] = asked
        self._at(self.now + self.timing.recovery_s, _AGAIN, job)

    def _make_room(self, task: Task, *, saves: bool) -> bool:
        """End of a slot, or of a preempted job's grace time: it waits again, behind the others."""
        number = task.job.number
        turns, ran = self.setup.turns, self.now - task.start
        before, earlier = self._kept.get(number, (task.job.work, 0.0))
        if saves:
            left = min(before, task.left_at(self.now) + turns.save_s * task.speed)
            self._kept[number] = (left, earlier + ran)
        self._lose(task, turns.save_s if saves else ran)
        self._leave(task, crashed=False)
        self._start[self.place_of[number]] = float("nan")
        self._at(self.now + self.timing.recovery_s, _AGAIN, task.job)
        return True

    def _lose(self, task: Task, seconds: float) -> None:
        part = task.granted_mib / self.setup.fleet.memory_mib if self.policy.granted else 1.0
        self._lost_s += seconds * part * len(task.gpus)

    def _finish(self, task: Task) -> None:
        job = task.job
        self._leave(task, crashed=False)
        self._end[self.place_of[job.number]] = self.now
        self._unfinished -= 1
        self.asker.learn(job)
        self.asks.pop(job.number, None)
        if job.limit and self.now - task.start > job.limit + _HAIR:
            self._over_limit += 1

    def _leave(self, task: Task, *, crashed: bool) -> None:
        task.version = -1
        if self.policy.backfill:
            del self.ends[bisect_left(self.ends, (task.limit_end, task.job.number))]
        for place in task.gpus:
            gpu = self.index.gpus[place]
            gpu.tasks.remove(task)
            gpu.granted_mib -= task.granted_mib
            gpu.used_mib -= task.use_mib
            self._used -= task.use_mib
            self._touch(gpu, was_idle=False)
        if self.setup.record:
            run = Run(task.job.number, task.gpus, task.start, self.now, task.granted_mib, crashed)
            self._runs.append(run)

    def _window(self, gpu: GpuState, version: int) -> bool:
        """The mean activity passes the policy's bound; whether the GPU lets jobs in again."""
        if version != gpu.version:
            return False
        before = gpu.eligible
        self._judge(gpu)
        if gpu.eligible != before:
            self.index.changed(gpu, self.now, was_idle=not gpu.tasks)
        return gpu.eligible and not before

    # -- A GPU after a change ----------------------------------------------------------------------

    def _touch(self, gpu: GpuState, *, was_idle: bool) -> None:
        tasks = gpu.tasks
        active = dram = 0.0
        if tasks:
            training = [task for task in tasks if task.trains]
            rates = dict(zip(training, speeds(self.setup.mode, training)))
            for task in tasks:
                # A job that starts up leaves the GPU alone, and its neighbours do not slow it down.
                rate = rates.get(task, 1.0)
                if task.trains:
                    active += task.load.active * rate
                    dram += task.load.dram * rate
                if task.speeds:
                    task.speeds[gpu.index] = rate
                    rate = min(task.speeds.values())
                if rate != task.speed:
                    self._change_speed(task, rate)
        active = min(1.0, active)
        self._active += active - gpu.active
        gpu.active, gpu.dram = active, min(1.0, dram)
        power = watts(self.setup.fleet, active, gpu.dram)
        self._watts += power - gpu.watts
        gpu.watts = power
        self._busy += (1 if tasks else 0) - (0 if was_idle else 1)
        if self.policy.max_active < 1.0:
            gpu.note_activity(self.now, active, self.policy.window_s)
            self._judge(gpu)
        self.index.changed(gpu, self.now, was_idle=was_idle)
        self._note(gpu)

    def _judge(self, gpu: GpuState) -> None:
        bound, window = self.policy.max_active + _HAIR, self.policy.window_s
        gpu.eligible = gpu.mean_active(self.now, window) <= bound
        gpu.version += 1
        if window:
            crossing = gpu.next_crossing(bound, self.now, window)
            if crossing < _NEVER:
                # A moment later, so that the mean has passed the bound for sure.
                self._at(max(crossing, self.now) + _HAIR, _WINDOW, gpu.index, gpu.version)

    def _change_speed(self, task: Task, rate: float) -> None:
        task.left = task.left_at(self.now)
        task.since, task.speed = self.now, rate
        task.version += 1
        self._at(self.now + task.left / rate, _END, task, task.version)

    def _note(self, gpu: GpuState) -> None:
        if self.setup.record:
            self._curve.append((self.now, gpu.index, gpu.used_mib, gpu.active))

    def _advance(self, moment: float) -> None:
        passed = moment - self._since
        self._joules += self._watts * passed
        self._mib_s += self._used * passed
        self._active_s += self._active * passed
        self._busy_s += self._busy * passed
        self._waiting_s += len(self.queue) * passed
        self.now = self._since = moment


def simulate(jobs: Sequence[SimJob], setup: Setup) -> Outcome:
    """Run a trace once."""
    return Engine(jobs, setup).run()
