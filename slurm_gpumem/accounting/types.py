"""What the store gives out: one row a job, one job in depth, sums over many.

Sizes are MiB, times are Unix seconds, durations seconds, shares parts of 1. None is "not known".
Texts come from users (model, user and job names) and may hold anything but NUL: whoever prints them
makes them harmless for their own format (`texts.py` has the terminal's and the spreadsheet's way).
Tuples, because defining dataclasses of this size would take a third of the time of `gpumem report`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Iterable, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.curve import Curve as Curve
from slurm_gpumem.formats.job_record import preallocated
from slurm_gpumem.formats.mig_profiles import profile_name

SHARED, WHOLE, OBSERVED, INSTANCE = "shared", "whole", "observed", "mig"
"""How a job held its GPUs: part of one; all of it; all of it, at a site that only observes yet; a MIG
instance."""

JUDGED_STATES = ("COMPLETED", "TIMEOUT")
"""How a job ends that ran long enough to show what it needs; others may have ended before their peak."""


def shows_need(state: str, peak_mib: Optional[int], notes: Iterable[str]) -> bool:
    """Whether a job's peak is what it needed: it ran long enough, and no framework took memory in advance."""
    return bool(peak_mib) and state in JUDGED_STATES and not preallocated(notes)


GROUPS = ("user", "account", "model", "gpu", "partition", "day")
"""What a summary can be taken by."""


class Device(NamedTuple):
    """One GPU of the cluster."""

    node: str
    uuid: str
    number: Optional[int] = None
    """Its number on the node."""
    name: str = ""
    """As the driver calls it: "NVIDIA A100-SXM4-40GB"."""
    memory_mib: Optional[int] = None

    @property
    def label(self) -> str:
        """ "n1/gpu0", "n1/gpu0:1g.18gb", or the UUID's head where the number is not known."""
        if self.number is None:
            return f"{self.node}/{self.uuid[:12]}"
        profile = profile_name(self.name)
        return f"{self.node}/gpu{self.number}{f':{profile}' if profile else ''}"


class GpuStay(NamedTuple):
    """One run of a job on one GPU."""

    device: Device
    start: float
    end: Optional[float]
    peak_mib: Optional[int] = None
    mean_mib: Optional[int] = None
    energy_j: Optional[float] = None
    sm_share: Optional[float] = None
    """The job's even part of the SM activity."""
    gpu_sm: Optional[float] = None
    """SM activity of the whole GPU while the job was there."""
    gpu_means: Mapping[str, float] = MappingProxyType({})
    """What else is known of the whole GPU in that time, by the names of GpuSample."""
    curve: Optional[Curve] = None


class Attempt(NamedTuple):
    """One run of a job on one node, as its record describes it."""

    restarts: int
    """0 for the first run."""
    node: str
    start: float
    end: Optional[float]
    state: str
    exit_code: Optional[int]
    signal: Optional[int]
    mode: str
    """How it ran on its GPU: one of the modes in formats/job_record.py."""
    shards: Optional[int]
    limit_mib: Optional[int]
    peak_mib: Optional[int]
    oom: bool
    """It ran out of GPU memory."""
    verdict: str = ""
    """What recovery made of its end; empty where nobody judged."""
    hints: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    stays: Tuple[GpuStay, ...] = ()
    events: Tuple[str, ...] = ()
    """Kinds of what hit it: "overrun", "xid", …"""
    idle_for_s: Optional[float] = None
    """How long it had done nothing on its GPUs when it was found idle."""


class JobRow(NamedTuple):
    """One job with all its runs, joined with what Slurm's accounting knows of it."""

    job_id: int
    cluster: str
    user: str
    uid: int
    account: str
    partition: str
    job_name: str
    """Slurm's name for it; empty without slurmdbd."""
    # -- the model, as gpusbatch wrote it into the job's record
    model: str
    fingerprint: str
    batch: Optional[int]
    optimizer: str
    precision: str
    estimator: str
    """"corrected", "remembered", … ; "mem" where the user gave the size by hand."""
    parts: Mapping[str, int]
    """The estimate's parts; empty where they were not recorded."""
    # -- memory
    estimate_mib: Optional[int]
    request_mib: Optional[int]
    shards: Optional[int]
    """Of the last run; 0 or None: a whole GPU or MIG instance."""
    limit_mib: Optional[int]
    """What its shards stand for; the memory of its MIG instance."""
    peak_mib: Optional[int]
    """The most on any one of its GPUs, over all runs."""
    mean_mib: Optional[int]
    # -- where and how
    sharing: str
    """SHARED, WHOLE, OBSERVED or INSTANCE."""
    gpu: str
    """The GPUs' type, in short: "a100", "h200 1g.18gb" of a MIG instance."""
    gpu_memory_mib: Optional[int]
    devices: Tuple[Device, ...]
    """Of the last run."""
    companions: Tuple[int, ...]
    """Numbers of jobs that it met on its GPUs."""
    """Jobs that it met on its GPUs, in any run."""
    # -- life
    submit: Optional[float]
    start: float
    """Of the first run."""
    end: Optional[float]
    """Of the last run; None while it runs."""
    wait_s: Optional[float]
    """In the queue before the first run."""
    run_s: Optional[float]
    """Of all runs together."""
    state: str
    exit_code: Optional[int]
    signal: Optional[int]
    attempts: int
    """Runs, the first included."""
    ooms: int
    """Runs that ended for want of GPU memory."""
    # -- use
    sm_share: Optional[float]
    gpu_sm: Optional[float]
    energy_j: Optional[float]
    gpu_s: Optional[float]
    """Run time × GPUs, of all runs."""
    used_s: Optional[float]
    """GPU-seconds it took, its GPUs' time split evenly over the jobs that were there at each moment. None in
    one's own report where others' jobs were: only root's index knows when."""
    would_s: Optional[float]
    """GPU-seconds that sharing by its request would have taken of a job that had its GPU alone."""
    notes: Tuple[str, ...] = ()
    hints: Tuple[str, ...] = ()
    """What the last run's measurements suggest: "own-fault", "neighbour-fault", …"""
    oom_limit_mib: Optional[int] = None
    """What the last run that ran out of memory had been given."""
    array_job: Optional[int] = None
    """Of an array's task: the number of the array, and the task's in it. Slurm says so."""
    array_task: Optional[int] = None
    company: Tuple[str, ...] = ()
    """The names of `companions`, as `name` is this one's."""
    alone_s: Optional[float] = None
    """GPU-seconds that the last run would have taken without neighbours; None where that is not known."""
    slowdown: Optional[float] = None
    """How many times as long the last run took as it would have alone; None where not known, or alone."""
    said_slowdown: Optional[float] = None
    """What its owner was told to expect on a full GPU ..."""
    said_at_most: Optional[float] = None
    """... and the most it may be."""
    alone_by: str = ""
    """Where that is known from: "measured", "remembered" or "predicted" activity."""
    idle_s: Optional[float] = None
    """GPU-seconds in which the last run held memory and the GPU did nothing."""
    cpus: Optional[int] = None
    """CPUs that the last run held on its node."""
    cpus_mean: Optional[float] = None
    """CPUs that it kept busy, over all of its time ..."""
    cpus_high: Optional[float] = None
    """... and at most in nearly all of its busy time."""
    slots: int = 0
    """Time slots of the job that ended with a checkpoint."""

    @property
    def name(self) -> str:
        """As sacct names it: "4711", "4711_3" for a task of an array."""
        return str(self.job_id) if self.array_job is None else f"{self.array_job}_{self.array_task}"

    @property
    def judged(self) -> bool:
        """Whether it ran long enough to show its peak; a cancelled or failed job may not have."""
        return shows_need(self.state, self.peak_mib, self.notes)

    @property
    def error(self) -> Optional[float]:
        """The estimate's error as part of the measured peak; negative is an under-estimate."""
        if self.estimate_mib is None or not self.peak_mib or not self.judged:
            return None
        return self.estimate_mib / self.peak_mib - 1

    @property
    def shown_error(self) -> Optional[float]:
        """The error in whole thousandths: sums keep it so, and both must round to the same percentage."""
        return None if self.error is None else round(self.error, 3)

    @property
    def share_known(self) -> bool:
        """Whether its node has said how much of the GPU it has: not in the first seconds of a run."""
        return self.end is not None or self.shards is not None or self.peak_mib is not None

    @property
    def granted_mib(self) -> Optional[int]:
        """GPU memory that the job kept from others, on each of its GPUs."""
        if not self.share_known:
            return None
        return self.gpu_memory_mib if not self.shards else self.limit_mib

    @property
    def waste_mib(self) -> Optional[int]:
        """Memory that was granted and never used."""
        if self.granted_mib is None or self.peak_mib is None:
            return None
        return max(0, self.granted_mib - self.peak_mib)

    @property
    def recovered(self) -> bool:
        """Whether it ran out of memory and still finished, in a later run."""
        return self.ooms > 0 and self.state == "COMPLETED"


class JobDetail(NamedTuple):
    """One job in depth: its row and every run with its curves."""

    row: JobRow
    runs: Tuple[Attempt, ...]
    missing: Tuple[str, ...] = ()
    """Records that the index knows and that are not there (or not readable) any more."""


class Filters(NamedTuple):
    """Which jobs; empty is all."""

    users: Tuple[str, ...] = ()
    accounts: Tuple[str, ...] = ()
    partitions: Tuple[str, ...] = ()
    models: Tuple[str, ...] = ()
    states: Tuple[str, ...] = ()
    nodes: Tuple[str, ...] = ()
    jobs: Tuple[int, ...] = ()
    """Numbers of jobs, or of arrays with all their tasks."""
    tasks: Tuple[Tuple[int, int], ...] = ()
    """Tasks of arrays, besides `jobs`."""
    since: Optional[float] = None
    """Jobs that ran at some moment from here …"""
    until: Optional[float] = None
    """… to here, as with sacct."""


ALL = Filters()


class JobTotals(NamedTuple):
    """Sums over the jobs of one group, or of all."""

    group: str
    """The user's, model's … name, or "2026-11-15"; "" for all."""
    jobs: int = 0
    estimated: int = 0
    """Jobs with an estimate and a measured peak; the figures of accuracy are of these."""
    median_error: Optional[float] = None
    """Median of |error|, a part of 1."""
    p95_error: Optional[float] = None
    """95 % of the jobs have a smaller |error|."""
    under_estimate: int = 0
    """Peak above the estimate."""
    under_request: int = 0
    """Peak above the request."""
    remembered: int = 0
    """Jobs whose estimate was a remembered peak."""
    shared: int = 0
    observed: int = 0
    gpu_s: float = 0.0
    """Run time × GPUs, of runs that ended."""
    used_s: Optional[float] = 0.0
    """GPU-seconds in which a GPU was taken by these jobs; None where jobs of others were there, too, whose
    records are not ours to read."""
    alone_s: float = 0.0
    """GPU-seconds that exclusive use would have taken, of the runs in `alone_run_s`: those that did not fail
    and whose time alone is known."""
    alone_used_s: Optional[float] = 0.0
    """What those runs took; None as `used_s`."""
    alone_run_s: float = 0.0
    """Run time × GPUs of those runs."""
    alone_unknown: int = 0
    """Runs that did not fail and whose time alone is not known."""
    alone_seen: int = 0
    """Runs that shared their GPUs and whose time alone is known by measured or remembered activity …"""
    alone_guessed: int = 0
    """… and by predicted activity."""
    redone: int = 0
    """Runs whose work a later run did again."""
    redone_s: Optional[float] = 0.0
    """What those took: exclusive use would not have had them."""
    failed_runs: int = 0
    """Last runs that failed."""
    failed_s: Optional[float] = 0.0
    strangers: int = 0
    """Runs that met such jobs; none in root's index."""
    would_s: float = 0.0
    """GPU-seconds with sharing, for the jobs in `would_of_s`."""
    would_of_s: float = 0.0
    """GPU-seconds of jobs that had a GPU alone and whose request is known: what `would_s` is held against."""
    ooms: int = 0
    """Runs that ended for want of GPU memory."""
    oom_recovered: int = 0
    """Jobs that ran out of memory and finished in a later run."""
    oom_lost: int = 0
    """Jobs that ran out of memory and did not finish."""
    oom_avoided: int = 0
    """Jobs whose peak was above their estimate and within what they were given: the reserve held them."""
    failed: int = 0
    energy_j: float = 0.0
    idle_energy_j: float = 0.0
    """While jobs had a GPU and none of them held memory of it: nobody's."""
    idle_s: float = 0.0
    """GPU-seconds in which jobs held memory and the GPU did nothing."""
    idle_jobs: int = 0
    """Jobs that did nothing on their GPUs for longer than the site allows ..."""
    idle_ended: int = 0
    """... and were cancelled for it."""
    unmeasured: int = 0
    """Jobs whose SM activity was not measured."""
    cpu_held_s: float = 0.0
    """CPU-seconds that jobs held ..."""
    cpu_used_s: float = 0.0
    """... and what the same jobs used of them."""
    energy_jobs: int = 0
    granted_mib_s: float = 0.0
    """Memory kept from others × time."""
    peak_mib_s: float = 0.0
    """Memory needed at most × time, of the same jobs."""
    wait_s: float = 0.0
    wait_jobs: int = 0
    sm_s: float = 0.0
    """SM activity × GPU-seconds, of jobs in `sm_gpu_s`."""
    sm_gpu_s: float = 0.0
    sm_used_s: Optional[float] = 0.0
    """What those jobs took of their GPUs: sm_s / sm_gpu_s is the activity that exclusive GPUs would have
    shown, sm_s / sm_used_s what these did."""

    @property
    def jobs_per_gpu(self) -> Optional[float]:
        """Average number of jobs on a GPU that has any."""
        return self.gpu_s / self.used_s if self.used_s else None

    @property
    def saved(self) -> Optional[float]:
        """Part of the exclusive GPU time that sharing saved, runs done again counted against it.

        None where the runs whose time alone is known are less than half of all run time.
        """
        if self.alone_used_s is None or self.redone_s is None or not self.alone_s:
            return None
        if self.alone_run_s < self.gpu_s / 2:
            return None
        return 1 - (self.alone_used_s + self.redone_s) / self.alone_s

    @property
    def unused(self) -> Optional[float]:
        """Part of the granted memory × time that no job ever needed."""
        return 1 - self.peak_mib_s / self.granted_mib_s if self.granted_mib_s else None


class Waster(NamedTuple):
    """Who keeps the most memory from others without using it."""

    user: str
    jobs: int
    granted_mib_s: float
    wasted_mib_s: float
    worst_job: Optional[int]
    """The job that wasted the most ..."""
    worst_name: str = ""
    """... as `JobRow.name` names it."""


class Freshness(NamedTuple):
    """How far the store is up to date, and what was left out."""

    records: int
    bad: int
    """Records that could not be used."""
    bad_reasons: Mapping[str, int]
    indexed_at: Optional[float]
    slurm: str
    """"" when Slurm's accounting is joined; else why not."""
    everybody: bool
    """Whether all users' jobs are seen, or the caller's own only."""
