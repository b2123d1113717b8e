"""The node's sampler: once a second, who uses how much of which GPU.

`python -I -m slurm_gpumem.node.sampler`, one per node while shared jobs run there. It writes `live.json`,
which `gpumem node status` and the epilog read, and a file for each user, which `gpumem top` reads, when there
is news and else every two seconds, and the job records every half minute. It also finishes jobs whose epilog
was killed, on Slurm's word, and does the work of prologs and epilogs, beside all that.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import LockTimeoutError
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import MPS_SHARED, TIMESLICE, FaultEvent, JobRecord
from slurm_gpumem.formats.live import Live, LiveGpu, LiveJob, read_live, write_live
from slurm_gpumem.formats.notes import FaultNote, write_fault_note
from slurm_gpumem.node import jobs
from slurm_gpumem.node.gpus import NodeGpu, find_gpus, is_instance
from slurm_gpumem.node.jobs import SHARED_UID, NodeJob, RunFolder
from slurm_gpumem.node.log import ProblemLog, log
from slurm_gpumem.node.mps.client_exit import Exits
from slurm_gpumem.node.mps.driver_limit import DriverLimits
from slurm_gpumem.node.mps.mps_blocklist import Fault, FaultLog, Loss, note_fault
from slurm_gpumem.node.mps.mps_limits import settle_limit
from slurm_gpumem.node.sampler.cpu_clock import CpuClock
from slurm_gpumem.node.sampler.enforcer import Enforcer
from slurm_gpumem.node.sampler.gpu_readings import Alone, Meter, Reading, claimed_alone, trains
from slurm_gpumem.node.sampler.idle import IdleWatch
from slurm_gpumem.node.sampler.own_live import OwnLiveFiles
from slurm_gpumem.node.sampler.pid_to_job import Owners, is_mps_server, job_of_user
from slurm_gpumem.node.sampler.pilots import Pilots
from slurm_gpumem.node.sampler.preallocation import Preallocators
from slurm_gpumem.node.sampler.prometheus import Exporter
from slurm_gpumem.node.sampler.slots import SlotSignals
from slurm_gpumem.node.sampler.tracked_jobs import Roster
from slurm_gpumem.node.sampler.usage import GpuUsage, JobUsage, Stretch, stretch_of, usage_from
from slurm_gpumem.node.sources.base import GoneError, GpuProcess, MetricSource, NoSource, SourceError

_ACCOUNTING_EVERY = 5
_ELSEWHERE_EVERY = 5
_LIVE_EVERY_S = 2.0
_CONFIRM_EVERY_S = 0.1


class Sampler:
    """Looks at the node's GPUs and keeps each job's sums."""

    def __init__(
        self, folder: RunFolder, config: NodeConfig, node: str, source: MetricSource, gpus: Sequence[NodeGpu]
    ) -> None:
        self.folder = folder
        self.config = config
        self.node = node
        self.source = source
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self.problems = ProblemLog(folder.root)
        self._exporter = Exporter(folder, config, node)
        self.roster = Roster(folder, config, node, self._exporter, self.problems, self)
        self._owners = Owners()
        self._preallocators = Preallocators()
        self.exits = Exits(folder, config)
        self._enforcer = Enforcer(folder, config, self.roster, self.exits)
        self._idle_jobs = IdleWatch(folder, config, self.roster)
        self._slots = SlotSignals(partial(log, folder.root))
        self._pilots = Pilots(config, partial(log, folder.root))
        self._faults = FaultLog()
        self._meter = Meter(source, config.activity_every_s)
        self._cpu_clock = CpuClock()
        self._driver_limits = DriverLimits(folder.root, self.problems)
        self._clocked = float("-inf")
        self._own_live = OwnLiveFiles(folder)
        self._trained: Dict[str, Dict[int, Optional[Alone]]] = {}
        """By GPU, the jobs that trained at the last look; some may be gone at the next."""
        self._idle: Dict[str, float] = {}
        self._left: Dict[int, JobUsage] = {}
        """Of jobs that have gone since the last look: their last seconds are still to be accounted for."""
        self._had: Dict[Tuple[int, str], bool] = {}
        self._looked = time.monotonic()
        self._epoch = time.time() - self._looked
        self._recorded = time.monotonic()
        self._ticks = 0
        self._last_written: List[Tuple[int, Optional[float], int, int, int]] = []
        self._written = float("-inf")
        self._accounted: Set[Tuple[int, float]] = set()
        self._on_instances: Set[Tuple[int, int]] = set()
        """(job, restarts) on MIG instances at the last look."""
        self._settled: Set[Tuple[int, int]] = set()
        """(job, restarts) by whose verified share the shared server's limit was set."""
        self._take_up()

    def tick(self) -> bool:
        """One look; False when no shared job is here."""
        now = time.monotonic()
        self._ticks += 1
        seconds, self._looked = min(now - self._looked, 10 * self.config.interval_s), now
        here = self.roster.refresh()
        if self.roster.ask_slurm(here):
            here = self.roster.refresh()
        if self.config.driver_limit:
            self._driver_limits.keep(here, self.roster.usage)
        sluids = {job.sluid: job.job_id for job in here.values() if job.sluid}
        uids = {job.job_id: job.uid for job in here.values()}
        gpus: Dict[str, LiveGpu] = {}
        seen: List[int] = []
        wanted = {uuid for job in here.values() for uuid in job.gpus}
        # A job may be met on a GPU that Slurm has not given it.
        for usage in (*self._left.values(), *self.roster.usage.values()):
            wanted.update(usage.gpus)
        # Jobs of which no prolog has told us are looked for on the other GPUs, which costs, so not each time.
        everywhere = self._ticks % _ELSEWHERE_EVERY == 0
        self._know_instances(here)
        for uuid in sorted(wanted | set(self.gpus) if everywhere else wanted):
            try:
                found = self.source.processes(uuid)
                by_job = self._by_job(found, sluids, uids, uuid)
                active = frozenset(job_id for job_id in by_job if job_id is not None)
                if uuid not in wanted and not active:
                    continue
                training = self._training(uuid, here, by_job)
                reading = self._meter.read(uuid, active, now, frozenset(training))
            except SourceError as error:
                # A hiccup, or a GPU off the bus: say it once, and look again next time.
                self.problems.report(uuid, str(error))
                if isinstance(error, GoneError):
                    self._note_gone(uuid, here)
                continue
            self.problems.resolved(uuid)
            seen.extend(process.pid for process in found)
            gpus[uuid] = self._account(uuid, here, reading, by_job, seconds)
            self._trained[uuid] = training
            self._enforcer.see(uuid, by_job)
            self._take_driver_peaks(uuid, by_job)
        self._read_cpus(here, now)
        self._finish_use()
        self._owners.keep_only(frozenset(seen))
        self._preallocators.keep_only(frozenset(seen))
        self._note_faults()
        self._enforcer.act(now)
        self._idle_jobs.look()
        self._slots.look(here, self.roster.usage)
        self._pilots.look(here, self.roster.usage, now)
        # Writing it costs most of a round: at once when a job, a process, a peak or a note is new,
        # since the epilog of a job that has just been cancelled reads it.
        signature = [
            (job_id, usage.peak_mib(), usage.processes(), len(usage.notes), len(usage.events))
            for job_id, usage in self.roster.usage.items()
        ]
        if signature != self._last_written or now - self._written >= _LIVE_EVERY_S:
            self._last_written, self._written = signature, now
            live = self._write_live(gpus)
            self.problems.attempt(lambda: self._exporter.write(live, now))
            self.problems.attempt(lambda: self._settle_limits(live))
        if now - self._recorded >= self.config.record_every_s:
            self._recorded = now
            self.roster.write_records()
        # A closed record that the spool does not take yet, or Slurm's word on it, is worth waiting for.
        waits = self.roster.store.has_closed() or self.roster.wants_slurms_word()
        return bool(here) or waits or self._pilots.busy

    def rest(self, until: float) -> None:
        """Until the next look; shares are confirmed meanwhile."""
        while self.roster.confirm_shares() and time.monotonic() + _CONFIRM_EVERY_S < until:
            time.sleep(_CONFIRM_EVERY_S)
        time.sleep(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Before the end: all that was seen is on disk, and nothing is left behind."""
        self._enforcer.close()
        self._pilots.close()
        self.roster.write_records()
        self.roster.close()
        self.problems.attempt(self._exporter.close)
        self.problems.attempt(self._own_live.close)
        self.source.close()

    def gone(self, job_id: int, job: Optional[NodeJob], usage: JobUsage) -> None:
        """What the job had on its GPUs a look ago, it has lost since."""
        self._left[job_id] = usage
        self._enforcer.forget(job_id)
        self._idle_jobs.forget(job_id)
        for uuid in job.gpus if job else ():
            if self._had.get((job_id, uuid)) and job:
                self._lost(job, uuid)
        self._had = {key: had for key, had in self._had.items() if key[0] != job_id}

    def ended(self, record: JobRecord) -> None:
        """Its array may wait for what it took."""
        self._pilots.ended(record, time.monotonic())

    def finishing(self) -> None:
        """What the epilog would have read."""
        self._write_live({})

    def _know_instances(self, here: Mapping[int, NodeJob]) -> None:
        """The layout may be another than when the sampler, or the job before on an instance, started."""
        runs = {(job.job_id, job.restarts) for job in here.values() if any(map(is_instance, job.gpus))}
        if runs - self._on_instances:
            found = find_gpus(self.config, self.node)
            self.gpus = {gpu.uuid: gpu for gpu in found} if found else self.gpus
        self._on_instances = runs

    def _note_gone(self, uuid: str, here: Mapping[int, NodeJob]) -> None:
        self.gpus.pop(uuid, None)
        for job_id in (job_id for job_id, job in here.items() if uuid in job.gpus):
            self.roster.usage[job_id].notes.add(f"MIG instance {uuid} was removed while it ran")

    def _by_job(
        self, found: Sequence[GpuProcess], sluids: Mapping[str, int], uids: Mapping[int, int], uuid: str
    ) -> Dict[Optional[int], List[GpuProcess]]:
        by_job: Dict[Optional[int], List[GpuProcess]] = {}
        for process in found:
            owner = self._owners.job_of(process.pid, sluids, uids)
            if owner is not None and owner not in self.roster.usage:
                self.roster.meet(owner, process.pid, uuid)
                owner = None
            elif owner is None:
                known = self.roster.jobs.values()
                owner = job_of_user(process.pid, uuid, known, self.config.mps_control)
            by_job.setdefault(owner, []).append(process)
        return by_job

    def _account(
        self,
        uuid: str,
        here: Mapping[int, NodeJob],
        reading: Optional[Reading],
        by_job: Mapping[Optional[int], List[GpuProcess]],
        seconds: float,
    ) -> LiveGpu:
        active = [job_id for job_id in by_job if job_id is not None]
        # A clock that is set while we run moves nothing on the curves.
        gpu, wall = self.gpus.get(uuid), self._epoch + time.monotonic()
        allocated = {*active, *(job.job_id for job in here.values() if uuid in job.gpus)}
        trained = self._trained.get(uuid, {})
        turns = any(here[job_id].mode == TIMESLICE for job_id in allocated if job_id in here)
        seen = None
        if reading:
            strangers = self._strangers(by_job.get(None, ()))
            seen = stretch_of(reading, len(allocated), trained, turns=turns, strangers=strangers)
        if reading is not None and seen is not None:
            for job_id in reading.sharers & self._left.keys():
                self._left[job_id].gpus[uuid].add_activity(seen, job_id, held=True, now=wall)
        for job_id in allocated:
            mine = by_job.get(job_id, [])
            sizes = [process.mib for process in mine if process.mib is not None]
            mib = sum(sizes) if sizes else (None if mine else 0.0)
            usage = self.roster.usage[job_id]
            gpu_usage = usage.gpus.get(uuid) or usage.gpus.setdefault(uuid, GpuUsage())
            if gpu_usage.memory_mib is None:
                gpu_usage.memory_mib = self._meter.last(uuid).memory_total_mib
                if gpu is not None:
                    gpu_usage.number, gpu_usage.name, gpu_usage.instance = gpu.number, gpu.name, gpu.instance
                    gpu_usage.memory_mib = gpu_usage.memory_mib or gpu.memory_mib
                if is_instance(uuid):
                    usage.note_instance(gpu_usage.memory_mib)
            gpu_usage.add_memory(mib, len(mine), seconds, wall)
            most = usage.limit_mib or gpu_usage.memory_mib
            note = self._preallocators.note((process.pid for process in mine), mib, most)
            if note:
                usage.notes.add(note)
            if reading is not None and seen is not None:
                gpu_usage.add_activity(seen, job_id, held=job_id in reading.sharers, now=wall)
            usage.samples += 1
            usage.companions.update(other for other in active if other != job_id and mine)
            if self._had.get((job_id, uuid)) and not mine:
                self._lost(here[job_id], uuid)
            else:
                self._had[job_id, uuid] = bool(mine)
        others = [process.mib for process in by_job.get(None, ()) if process.mib is not None]
        clients = [process.mps for found in by_job.values() for process in found]
        return LiveGpu(
            number=gpu.number if gpu else None,
            name=gpu.name if gpu else "",
            instance=gpu.instance if gpu else "",
            other_mib=round(sum(others), 1),
            mps_clients=None if None in clients else sum(map(bool, clients)),
            idle_s=self._idle_s(uuid, seen),
            sample=self._meter.last(uuid),
        )

    def _strangers(self, unknown: Sequence[GpuProcess]) -> bool:
        """Whether there may be processes whose job is not known; without NVML none is."""
        if self.source.name == NoSource.name:
            return True
        return any(not is_mps_server(process.pid, self.config.mps_control) for process in unknown)

    def _read_cpus(self, here: Mapping[int, NodeJob], now: float) -> None:
        if now - self._clocked >= self.config.activity_every_s:
            self._clocked = now
            for job_id, spent_s in self._cpu_clock.read(here.values()).items():
                self.roster.usage[job_id].cpu.add(spent_s, time.monotonic())

    def _idle_s(self, uuid: str, seen: Optional[Stretch]) -> Optional[float]:
        """How long jobs have held memory of a GPU that does nothing; None where its activity is not known."""
        if seen is not None:
            if not seen.activity_known:
                self._idle.pop(uuid, None)
            else:
                before = self._idle.get(uuid, 0.0)
                self._idle[uuid] = before + seen.seconds if seen.idle and seen.sharers else 0.0
        idle = self._idle.get(uuid)
        return None if idle is None else round(idle, 1)

    def _finish_use(self) -> None:
        """The records of jobs that went, closed by their epilogs, with all that was measured of them."""
        left, self._left = self._left, {}
        for job_id, usage in left.items():
            amend = partial(self.roster.store.amend_use, job_id, usage.restarts, usage.measured(), 1.0)
            self.problems.attempt(amend)

    def _training(
        self, uuid: str, here: Mapping[int, NodeJob], by_job: Mapping[Optional[int], List[GpuProcess]]
    ) -> Dict[int, Optional[Alone]]:
        """The jobs that train on a GPU now, with their activity alone."""
        found: Dict[int, Optional[Alone]] = {}
        for job_id, processes in by_job.items():
            job, usage = here.get(job_id or 0), self.roster.usage.get(job_id or 0)
            if job_id is None or usage is None:
                continue
            claim = job.claimed if job else CommentRecord()
            sizes = [process.mib for process in processes if process.mib is not None]
            if trains(sum(sizes) if sizes else None, claim.estimate_mib):
                gpu = usage.gpus.get(uuid)
                found[job_id] = (gpu.measured_alone() if gpu else None) or claimed_alone(claim)
        return found

    def _take_driver_peaks(self, uuid: str, by_job: Mapping[Optional[int], List[GpuProcess]]) -> None:
        """What the driver's own accounting saw between our looks, where the site enabled it.

        A process that is still there is its job's when it is the job's only one on the GPU. One that
        came and went unseen is the job's that was alone on the GPU in that time; else nobody's.
        """
        if self._ticks % _ACCOUNTING_EVERY:
            return
        try:
            peaks = self.source.finished(uuid)
        except SourceError:
            return
        owners = {found[0].pid: job_id for job_id, found in by_job.items() if len(found) == 1}
        present = {process.pid for found in by_job.values() for process in found}
        for pid, (mib, start, _) in peaks.items():
            owner = owners.get(pid)
            if pid not in present and (pid, start) not in self._accounted:
                self._accounted.add((pid, start))
                alone = [
                    job for job in self.roster.jobs.values() if uuid in job.gpus and job.started <= start
                ]
                owner = alone[0].job_id if len(alone) == 1 else None
            if owner is not None:
                self.roster.usage[owner].note_peak(uuid, mib)

    def _lost(self, job: NodeJob, uuid: str) -> None:
        self._had[job.job_id, uuid] = False
        self._faults.lost(Loss(job.job_id, job.uid, job.daemon_uid, uuid, time.time(), job.restarts))

    def _note_faults(self) -> None:
        for uuid, xid in self.source.xids():
            log(self.folder.root, f"Xid {xid} on {uuid}")
            if uuid is not None:
                self._faults.fault(Fault(uuid, time.time(), "xid", xid))
        for loss, event in self._faults.events(time.time()):
            log(self.folder.root, f"job {loss.job_id} lost its GPU processes: {event}")
            usage = self.roster.usage.get(loss.job_id)
            if usage is not None:
                usage.events = [old for old in usage.events if old.at != event.at] + [event]
            amend = partial(self.roster.store.amend_event, loss.job_id, loss.restarts, event, 1.0)
            self.problems.attempt(amend)
            self.problems.attempt(partial(self._tell, loss, event))

    def _tell(self, loss: Loss, event: FaultEvent) -> None:
        """Root's own word on a fault: for the task epilogs of the jobs it hit, and for later prologs."""
        note = FaultNote(round(loss.at, 1), tuple(sorted({loss.job_id, *event.others})))
        with contextlib.suppress(FileNotFoundError):  # no MPS daemon is there (any more)
            write_fault_note(self.folder.fault_note(loss.uuid, loss.daemon_uid), note)
        if loss.daemon_uid == SHARED_UID:
            note_fault(self.folder, loss.uid, loss.at, alone=not event.others)

    def _settle_limits(self, live: Live) -> None:
        """Root's limit at a shared server follows Slurm's count as soon as that is known."""
        for job_id, job in self.roster.jobs.items():
            verified = job_id in live.jobs and live.jobs[job_id].measured.shards_verified
            if job.mode == MPS_SHARED and verified and (job_id, job.restarts) not in self._settled:
                with contextlib.suppress(LockTimeoutError):  # a hook is at it: next time
                    settle_limit(self.folder, self.config, job)
                    self._settled.add((job_id, job.restarts))

    def _write_live(self, gpus: Mapping[str, LiveGpu]) -> Live:
        live = Live(
            node=self.node,
            at=round(time.time(), 3),
            interval_s=self.config.interval_s,
            source=self.source.name,
            gpus=gpus,
            jobs={
                job_id: _live_job(job, self.roster.usage[job_id]) for job_id, job in self.roster.jobs.items()
            },
        )
        self.problems.attempt(lambda: write_live(self.folder.live, live))
        self.problems.attempt(lambda: self._own_live.write(self.roster.jobs, live))
        return live

    def _take_up(self) -> None:
        """Go on where a sampler that was killed stopped."""
        live = read_live(self.folder.live)
        if live is not None:
            present = {job.job_id: job.restarts for job in jobs.all_jobs(self.folder)}
            for job_id, job in live.jobs.items():
                if present.get(job_id) == job.restarts:
                    self.roster.usage[job_id] = usage_from(job)


def _live_job(job: NodeJob, usage: JobUsage) -> LiveJob:
    return LiveJob(
        user=job.user,
        mode=job.mode,
        gpus=job.gpus,
        estimate_mib=job.claimed.estimate_mib,
        request_mib=job.claimed.request_mib,
        restarts=usage.restarts,
        now_mib=usage.now_mib(),
        processes=usage.processes(),
        notes=tuple(sorted(usage.notes)),
        measured=usage.measured(),
    )
