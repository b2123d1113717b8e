"""The demo: a separate Slurm cluster, more training jobs than GPUs, and what becomes of them.

Run by `make demo`. The daemons and the scheduling are real; the GPUs are stand-ins.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.devcluster import cluster as devcluster
from slurm_gpumem.devcluster import hooks
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import MIB_PER_SHARD, ClusterSpec, Layout, NodeSpec
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.formats.job_record import BadRecordError, JobRecord, read_job_record
from slurm_gpumem.slurm.state.queue import FINAL
from slurm_gpumem.slurm.state.running import Placement, placements
from slurm_gpumem.terminal.bars import GpuRow, Segment, draw, speaks_unicode
from slurm_gpumem.terminal.say import run_command
from slurm_gpumem.text import count

# Follow jobs in a dev cluster: where they are and when they end.


_POLL_S = 0.05
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z:/]+)=(.*?)(?=\s+[A-Za-z:/]+=|\s*$)")


def show_job(cluster: Cluster, job_id: str) -> Dict[str, str]:
    """The fields of `scontrol show job -d`; a comment that contains `word=` is cut there."""
    done = cluster.run(["scontrol", "show", "job", "-d", "-o", str(job_id)])
    if done.returncode != 0:
        raise DevClusterError(f"scontrol show job {job_id}: {done.stderr.strip()}")
    return dict(_FIELD.findall(done.stdout.strip()))


def wait_for_job(
    cluster: Cluster, job_id: str, states: Sequence[str] = FINAL, timeout_s: float = 60.0
) -> Dict[str, str]:
    """The job's fields once it is in one of `states`; raises DevClusterError if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        fields = show_job(cluster, job_id)
        if fields["JobState"] in states:
            return fields
        if time.monotonic() > deadline:
            raise DevClusterError(
                f"job {job_id} is {fields['JobState']} ({fields.get('Reason', 'no reason')}) "
                f"after {timeout_s:.0f} s, not {' or '.join(states)}"
            )
        time.sleep(_POLL_S)


# The demo's last part: the nodes' hooks measure its jobs, and `gpumem report` shows the results.

_PATIENCE_S = 60.0


def wait_for_records(cluster: Cluster, job_ids: Iterable[str], tasks: int) -> None:
    """Until the records of these jobs are closed, and those of so many tasks of arrays."""
    deadline = time.monotonic() + _PATIENCE_S
    waiting = {*job_ids}
    while (waiting or _closed_tasks(cluster.layout.records) < tasks) and time.monotonic() < deadline:
        waiting = {job_id for job_id in waiting if not _closed(cluster.layout.records, job_id)}
        time.sleep(0.1)


def report(cluster: Cluster, *words: str) -> List[str]:
    """What `gpumem report` prints."""
    done = cluster.run(
        [str(Path(sys.executable).with_name("gpumem")), "report", *words],
        env={"PYTHONIOENCODING": sys.stdout.encoding or "ascii", "XDG_CACHE_HOME": str(cluster.layout.root)},
        timeout_s=_PATIENCE_S,
    )
    return (done.stdout + done.stderr).rstrip().split("\n")


def wait_until_measured(cluster: Cluster, job_id: str) -> None:
    """Until its record has its memory."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        record = _record(cluster.layout.records, job_id)
        if record is not None and record.measured.peak_mib:
            return
        time.sleep(0.1)
    raise DevClusterError(f"job {job_id} was not measured within {_PATIENCE_S:.0f} s")


def _closed(records: Path, job_id: str) -> bool:
    record = _record(records, job_id)
    return record is not None and record.end is not None


def _closed_tasks(records: Path) -> int:
    """Of which it is known that they are tasks."""
    found = (_record(records, path.name.partition(".")[0]) for path in records.glob("*.json"))
    return sum(
        one is not None and one.end is not None and one.measured.array_job is not None for one in found
    )


def _record(records: Path, job_id: str) -> Optional[JobRecord]:
    for path in records.glob(f"{job_id}.*.json"):
        with contextlib.suppress(OSError, BadRecordError):  # a moment later it is whole
            return read_job_record(path)
    return None


_EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_SCRIPTS = (
    "resnet50.sh", "search.sh", "vit.sh", "gpt2.sh", "search.sh", "larger.sh", "mobilenetv3.sh", "bert.sh",
)  # fmt: skip
_CANCELLED, _LARGER, _LAST = "vit", "larger", "bert"
_TASKS = 8
"""Of sweep.sh."""
_GPU = NodeSpec("n1", gpus=2, gpu_type="h200", gpu_memory_mib=140 * MIB_PER_SHARD, cpus=32)
_SWEEPS = NodeSpec("n2", gpus=2, gpu_type="h200", gpu_memory_mib=140 * MIB_PER_SHARD, cpus=32)
_SITE = f"""\
[sharing]
shard_mib = {MIB_PER_SHARD}
max_slowdown = 2.5
[node]
mps = "shared"
"""
"""What `gpumem setup` writes, as far as a request depends on it."""

Places = Mapping[str, List[Placement]]
"""Job → its GPUs, at one moment."""


class DemoJob(NamedTuple):
    """One submitted example."""

    job_id: str
    name: str


def demo() -> int:
    """Play it all; DevClusterError where a job does not end as it should."""
    begin = time.monotonic()
    if not all((_EXAMPLES / name).is_file() for name in (*_SCRIPTS, "sweep.sh")):
        raise DevClusterError(f"{_EXAMPLES}: the examples are missing; run the demo in a checkout: make demo")
    folder = Path(tempfile.mkdtemp(prefix="gpumem-demo-"))
    folder.chmod(0o755)
    cluster: Optional[Cluster] = None
    try:
        state = folder / "cluster"
        recovery = hooks.recovery_settings(Layout(state).hooks)
        quick = "SchedulerParameters=sched_interval=1,bf_interval=1"
        lines = (
            *(f"{key}={value}" for key, value in recovery.items()),
            quick,
            f"PartitionName=sweeps Nodes={_SWEEPS.name}",
        )
        spec = ClusterSpec(
            nodes=(_GPU, _SWEEPS),
            whole_nodes=(_SWEEPS.name,),
            state=state,
            hooks=True,
            cred_expire_s=5,
            extra_conf=lines,
        )
        cluster = devcluster.up(spec)
        (folder / "gpumem.toml").write_text(_SITE)
        _play(cluster, folder, time.monotonic() - begin)
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder)
    _say(f"\nAll daemons are stopped, the files are removed ({time.monotonic() - begin:.0f} s in all).")
    return 0


def _play(cluster: Cluster, folder: Path, took: float) -> None:
    _title(f"1. A Slurm cluster, up in {took:.1f} s")
    slurm = cluster.run(["sinfo", "--version"], check=True).stdout.split()[-1]
    _say(
        f"A real Slurm {slurm} runs here now, with two simulated machines of {_GPU.gpus} GPUs of "
        f"{_GPU.gpu_memory_mib // MIB_PER_SHARD} GiB: each is divided into\n"
        "shards of 1 GiB. This computer needs no GPU: a stand-in takes the place of each training, holds as\n"
        "much GPU memory as the same training did on an H200, and fails as PyTorch does."
    )
    _title(f"2. {len(_SCRIPTS)} training jobs, submitted with gpusbatch")
    _say(
        "gpusbatch reads the model's summary and asks Slurm for a share of a GPU: enough for the memory,\n"
        "and for how busy the job keeps the GPU, so that while sharing none is predicted to take more than\n"
        "2.5 times as long."
    )
    jobs = [_submit(cluster, name, folder) for name in _SCRIPTS]
    by_name = {job.name: job.job_id for job in jobs}
    cluster.run(["scontrol", "release", ",".join(job.job_id for job in jobs)], check=True)
    _title("3. Where Slurm placed them")
    last = by_name[_LAST]
    before = _wait(cluster, lambda now: len(now) >= len(jobs) - 1, "Slurm did not start them")
    _picture(jobs, before)
    _say(
        "Each line is a GPU, each block a job: its number, its name and its shards.\n"
        f"{len(before)} jobs run on {count(_GPU.gpus, 'GPU')} instead of {len(before)}. "
        f"Job {last} ({_LAST}) waits: its memory would fit, its activity would not."
    )
    _title(f"4. scancel {by_name[_CANCELLED]}: its neighbours go on")
    wait_until_measured(cluster, by_name[_CANCELLED])
    cluster.run(["scancel", by_name[_CANCELLED]], check=True)
    after = _wait(cluster, lambda now: last in now, f"job {last} did not start")
    _picture(jobs, after)
    _say(f"Job {last} has the room of job {by_name[_CANCELLED]}; nobody else noticed.")
    _title("5. A sweep of a script that nobody prepared")
    sweep = _sweep(cluster, folder)
    _title("6. What became of them")
    for job in jobs:
        end = "CANCELLED" if job.name == _CANCELLED else "COMPLETED"
        wait_for_job(cluster, job.job_id, (end,), timeout_s=_PATIENCE_S)
    _say(
        f"Job {by_name[_LARGER]} took far more memory than its summary showed. It was ended alone, and\n"
        "Slurm ran it again with a larger share. Hooks on the node measured all of them; their owner sees:\n"
        "\n$ gpumem report -N n1"
    )
    wait_for_records(cluster, [job.job_id for job in jobs], _TASKS)
    print("\n".join(report(cluster, "-N", _GPU.name)), flush=True)
    _say(
        "\nEst: the estimate. Need: with a reserve. Share: the shards held. Peak: what it took at most.\n"
        "SM%: its part of the GPU's activity. With: who ran on the same GPU.\n"
        f"\n$ gpumem report {sweep.job_id} | tail -5"
    )
    print("\n".join(report(cluster, sweep.job_id)[-5:]), flush=True)


def _sweep(cluster: Cluster, folder: Path) -> DemoJob:
    """An array of which nothing is known: its first task, then the others beside each other."""
    _say(
        "A search of eight runs, whose script says nothing of its model. One run starts on a whole GPU\n"
        "and is measured; the others wait, and then ask for what it took."
    )
    sweep = _submit(cluster, "sweep.sh", folder, "--partition=sweeps", f"--array=0-{_TASKS - 1}")
    cluster.run(["scontrol", "release", sweep.job_id], check=True)
    tasks = [DemoJob(f"{sweep.job_id}_{task}", sweep.name) for task in range(_TASKS)]

    def run(now: Places, wanted: Sequence[DemoJob]) -> bool:
        return all(task.job_id in now for task in wanted)

    _picture(tasks, _wait(cluster, lambda now: run(now, tasks[:1]), "its first task did not start"), _SWEEPS)
    _say("Its peak stands still, on a real machine for five minutes. Then:")
    _picture(tasks, _wait(cluster, lambda now: run(now, tasks[1:]), "its other tasks did not start"), _SWEEPS)
    _say(f"{len(tasks) - 1} tasks run on one GPU instead of {len(tasks) - 1}.")
    return sweep


def _submit(cluster: Cluster, script: str, folder: Path, *options: str) -> DemoJob:
    print(f"\n$ {' '.join(['gpusbatch', *options])} docs/examples/{script}", flush=True)
    # Held, so that all start together, however long it takes to submit them.
    done = _gpusbatch(cluster, ["--hold", *options, script], folder)
    print((done.stderr + done.stdout).rstrip(), flush=True)
    job_id = done.stdout.split()[-1] if done.returncode == 0 and done.stdout.split() else ""
    if not job_id.isdecimal():
        raise DevClusterError(f"gpusbatch {script} submitted nothing (exit code {done.returncode})")
    return DemoJob(job_id, Path(script).stem)


def _gpusbatch(cluster: Cluster, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """As users type it: paths of logs and of the site's files are in the environment."""
    python = Path(sys.executable).parent
    return cluster.run(
        [str(python / "gpusbatch"), *words],
        env={
            "SBATCH_OUTPUT": f"{folder}/%x-%j.log",
            "XDG_CACHE_HOME": str(folder),
            "GPUMEM_SITE_CONFIG": str(folder / "gpumem.toml"),
            "PATH": f"{python}:{cluster.env['PATH']}",
        },
        cwd=_EXAMPLES,
        timeout_s=_PATIENCE_S,
    )


def _wait(cluster: Cluster, enough: Callable[[Places], bool], problem: str) -> Places:
    """Poll until those jobs run that should."""
    deadline = time.monotonic() + _PATIENCE_S
    while not enough(now := _places_now(cluster)):
        if time.monotonic() > deadline:
            raise DevClusterError(f"{problem} within {_PATIENCE_S:.0f} s")
        time.sleep(0.1)
    return now


def _places_now(cluster: Cluster) -> Places:
    """The GPUs of all jobs that run at this moment."""
    found: Dict[str, List[Placement]] = {}
    for text in cluster.run(["scontrol", "show", "job", "-d"], check=True).stdout.split("\n\n"):
        task = re.search(r"ArrayJobId=([0-9]+) ArrayTaskId=([0-9]+)\s", text)
        job_id = text.strip().partition(" ")[0].partition("JobId=")[2]
        if "JobState=RUNNING" in text and (places := placements(text)):
            found["_".join(task.groups()) if task else job_id] = places
    return found


def _picture(jobs: Sequence[DemoJob], where: Places, node: NodeSpec = _GPU) -> None:
    print("\n".join(draw(gpu_rows((node,), jobs, where), width=_width(), unicode=speaks_unicode())))


def gpu_rows(nodes: Sequence[NodeSpec], jobs: Sequence[DemoJob], where: Places) -> List[GpuRow]:
    """Every GPU with the jobs that run on it, in the order they were submitted."""
    rows = []
    for node in nodes:
        for gpu in range(node.gpus):
            here = tuple(
                Segment(job.job_id, job.name, place.units, f"{place.units}")
                for job in jobs
                for place in where.get(job.job_id, ())
                if (place.node, place.gpu) == (node.name, gpu)
            )
            rows.append(GpuRow(node.name, gpu, node.gpu_memory_mib // MIB_PER_SHARD, here))
    return rows


def _width() -> int:
    return min(100, max(60, shutil.get_terminal_size((100, 24)).columns))


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(run_command(demo))
