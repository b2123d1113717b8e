"""The demo: a separate Slurm cluster, five training jobs, and where they run.

Run by `make demo`. The daemons and the scheduling are real; the GPUs are stand-ins.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.devcluster import cluster as devcluster
from slurm_gpumem.devcluster import demo_report, jobs, ledger
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import MIB_PER_SHARD, ClusterSpec, NodeSpec, default_nodes
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.slurm.placement import Placement, placements
from slurm_gpumem.terminal.bars import speaks_unicode
from slurm_gpumem.terminal.gpu_picture import GpuRow, Segment, draw
from slurm_gpumem.text import count
from slurm_gpumem.units import format_mib

_EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_SCRIPTS = ("resnet50.sh", "bert.sh", "mobilenetv3.sh", "vit.sh", "gpt2.sh")
_PATIENCE_S = 60.0

Places = Dict[str, List[Placement]]
"""Job → its GPUs, at one moment."""


class DemoJob(NamedTuple):
    """One submitted example."""

    job_id: str
    name: str
    script: Path


class Outcome(NamedTuple):
    """The outcome of one example; sizes in MiB, None if unknown."""

    job: DemoJob
    state: str
    estimated: Optional[int]
    need: Optional[int]
    """Memory that was asked for: the estimate and a reserve."""
    share: int
    """Memory of the shards that it held; more than its need where its activity decided."""
    measured: Optional[int]


def demo() -> int:
    """Play it all; 0 when every job completed."""
    begin = time.monotonic()
    _check_examples()
    folder = Path(tempfile.mkdtemp(prefix="gpumem-demo-"))
    folder.chmod(0o755)
    cluster: Optional[Cluster] = None
    try:
        spec = ClusterSpec(nodes=default_nodes(2), state=folder / "cluster", hooks=True)
        cluster = devcluster.up(spec)
        outcomes = _play(cluster, folder, time.monotonic() - begin)
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder)
    _say(
        f"All daemons are stopped, the cluster's files are removed ({time.monotonic() - begin:.0f} s total)."
    )
    return 0 if all(outcome.state == "COMPLETED" for outcome in outcomes) else 1


def _play(cluster: Cluster, logs: Path, took: float) -> List[Outcome]:
    nodes = cluster.spec.nodes
    _title(f"1. A Slurm cluster, up in {took:.1f} s")
    _say(
        f"Slurm assigns the machines of a cluster to its users' jobs. A real Slurm now runs here,\n"
        f"with {len(nodes)} simulated machines (nodes) of {nodes[0].gpus} GPUs, "
        f"{nodes[0].gpu_memory_mib // MIB_PER_SHARD} GiB each. This computer needs no GPU:\n"
        "the GPUs are stand-ins, and so is the training. A stand-in job uses as much of its GPU's memory as\n"
        "the same training used on a real GPU, and fails like PyTorch if there is not enough."
    )
    _title("2. Five training jobs, submitted with gpusbatch")
    _say(
        "gpusbatch reads the model's summary, estimates the GPU memory needed for training,\n"
        "and asks Slurm for that share of a GPU instead of a whole one."
    )
    submitted: List[DemoJob] = []
    looks: List[Places] = []
    for name in _SCRIPTS:
        submitted.append(_submit(cluster, _EXAMPLES / name, logs))
        looks.append(_places_now(cluster, submitted))
    _title("3. Where Slurm placed them")
    _wait_for_places(cluster, submitted, looks)
    # One snapshot, not several combined: the first job may end before the last starts.
    fullest = max(looks, key=len)
    where = {job_id: places for look in looks for job_id, places in look.items()}
    rows = gpu_rows(nodes, submitted, fullest)
    print("\n".join(draw(rows, width=_width(), unicode=speaks_unicode())))
    used = sum(1 for row in rows if row.segments)
    _say(
        "Each line is a GPU, each block a job: its number, its name and its share of the GPU's memory.\n"
        f"{len(fullest)} jobs run at once on {count(used, 'GPU')}; "
        "without sharing, each job would occupy a whole GPU."
    )
    _title("4. What they need, what they held and what they used")
    outcomes = [_outcome(cluster, job, where[job.job_id]) for job in submitted]
    print("\n".join(table(outcomes)))
    _say(
        "Estimated: from the model's summary alone. Need: with a reserve. Share: the shards held, of 1 GiB;\n"
        "more than the need where the job keeps the GPU so busy that fewer jobs may run beside it.\n"
        "Measured: the most that the stand-in held, which is what PyTorch took for this model, batch size,\n"
        "optimizer and precision on an NVIDIA H200 (lab/data/ground-truth)."
    )
    _title("5. What the accounting shows")
    _say(
        "Hooks on every node measured the jobs while they ran. Their owner can see this report afterwards;\n"
        "`gpumem report -j JOB` shows one of them in detail, `gpumem report --summary` is for admins.\n"
        "\n$ gpumem report"
    )
    print(demo_report.report(cluster, [job.job_id for job in submitted]), flush=True)
    _title("6. A script that nobody prepared")
    _unprepared(cluster, logs)
    return outcomes


def _unprepared(cluster: Cluster, cache: Path) -> None:
    """Trace docs/examples/train.sh where that is possible, else show the trace that is in the repository."""
    missing = "Root may not trace" if os.geteuid() == 0 else ""
    if importlib.util.find_spec("torch") is None:
        missing = "PyTorch is not installed here"
    _say(
        "Without a summary, gpusbatch --trace runs the job's script itself: without a GPU, in a private\n"
        "copy of the files, until its training has shown what it would allocate. Neither train.sh nor\n"
        "train.py knows of this."
    )
    options = ["--trace"]
    if missing:
        _say(f"({missing}: this is from a recorded trace, docs/examples/train.json.)")
        options = ["--model", "train.json"]
    print(f"\n$ gpusbatch {' '.join(options)} --dry-run train.sh", flush=True)
    python = str(Path(sys.executable).parent)
    done = cluster.run(
        [f"{python}/gpusbatch", *options, "--dry-run", "train.sh"],
        env={"XDG_CACHE_HOME": str(cache), "PATH": f"{python}:{cluster.env['PATH']}"},
        cwd=_EXAMPLES,
        timeout_s=_PATIENCE_S,
    )
    print(done.stderr.rstrip(), flush=True)


def _submit(cluster: Cluster, script: Path, logs: Path) -> DemoJob:
    shown = f"docs/examples/{script.name}"
    print(f"\n$ gpusbatch {shown}", flush=True)
    # Show what users type, without the paths of the log and of the cluster cache.
    done = cluster.run(
        [str(Path(sys.executable).with_name("gpusbatch")), str(script)],
        env={"SBATCH_OUTPUT": f"{logs}/%x-%j.log", "XDG_CACHE_HOME": str(logs)},
        cwd=script.parent,
        timeout_s=_PATIENCE_S,
    )
    print((done.stderr + done.stdout).rstrip(), flush=True)
    job_id = done.stdout.split()[-1] if done.returncode == 0 and done.stdout.split() else ""
    if not job_id.isdecimal():
        raise DevClusterError(f"gpusbatch {shown} submitted nothing (exit code {done.returncode})")
    return DemoJob(job_id, script.stem, script)


def _wait_for_places(cluster: Cluster, submitted: Sequence[DemoJob], looks: List[Places]) -> None:
    """Poll until all jobs run at once, or until each has been seen running."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _all_seen(submitted, looks):
        if time.monotonic() > deadline:
            seen = {job_id for look in looks for job_id in look}
            waiting = [job.name for job in submitted if job.job_id not in seen]
            raise DevClusterError(f"Slurm did not start {', '.join(waiting)} within {_PATIENCE_S:.0f} s")
        time.sleep(0.1)
        looks.append(_places_now(cluster, submitted))


def _all_seen(submitted: Sequence[DemoJob], looks: Sequence[Places]) -> bool:
    """Whether every job is in one of the snapshots (Slurm forgets a job's GPUs when it ends)."""
    return {job.job_id for job in submitted} <= {job_id for look in looks for job_id in look}


def _places_now(cluster: Cluster, submitted: Sequence[DemoJob]) -> Places:
    """The GPUs of all jobs that run at this moment."""
    found: Places = {}
    for text in cluster.run(["scontrol", "show", "job", "-d"], check=True).stdout.split("\n\n"):
        job_id = text.strip().partition(" ")[0].partition("JobId=")[2]
        places = placements(text)
        if places and any(job.job_id == job_id for job in submitted):
            found[job_id] = places
    return found


def gpu_rows(
    nodes: Sequence[NodeSpec], submitted: Sequence[DemoJob], where: Mapping[str, List[Placement]]
) -> List[GpuRow]:
    """Every GPU with the jobs that run on it, in the order they were submitted."""
    rows = []
    for node in nodes:
        for gpu in range(node.gpus):
            here = tuple(
                Segment(job.job_id, job.name, place.units, f"{place.units}G")
                for job in submitted
                for place in where.get(job.job_id, ())
                if (place.node, place.gpu) == (node.name, gpu)
            )
            rows.append(GpuRow(node.name, gpu, node.gpu_memory_mib // MIB_PER_SHARD, here))
    return rows


def _outcome(cluster: Cluster, job: DemoJob, places: Sequence[Placement]) -> Outcome:
    ended = jobs.wait_for_job(cluster, job.job_id, timeout_s=_PATIENCE_S)
    record = parse_record(ended.get("Comment", ""))
    return Outcome(
        job,
        ended["JobState"],
        record.estimate_mib if record else None,
        record.request_mib if record else None,
        sum(place.units for place in places) * MIB_PER_SHARD,
        ledger.job_peaks(cluster.layout.ledger).get(job.job_id),
    )


def table(outcomes: Sequence[Outcome]) -> List[str]:
    """Estimated memory, need, share and measured memory, one line per job."""
    lines = [f"{'Job':<5}{'Model':<14}{'Estimated':>10}{'Need':>10}{'Share':>10}{'Measured':>10}  State"]
    for outcome in outcomes:
        lines.append(
            f"{outcome.job.job_id:<5}{outcome.job.name:<14}{_size(outcome.estimated):>10}"
            f"{_size(outcome.need):>10}{_size(outcome.share):>10}{_size(outcome.measured):>10}"
            f"  {outcome.state}"
        )
    return lines


def _check_examples() -> None:
    if not all((_EXAMPLES / name).is_file() for name in _SCRIPTS):
        raise DevClusterError(f"{_EXAMPLES}: the examples are missing; run the demo in a checkout: make demo")


def _size(mib: Optional[int]) -> str:
    return "?" if mib is None else format_mib(mib)


def _width() -> int:
    return min(100, max(60, shutil.get_terminal_size((100, 24)).columns))


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)
