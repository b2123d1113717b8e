"""The environment that Slurm gives a batch script: the user's, by --export, and the job's variables."""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.slurm.submit.gpu_options import Wishes, gpu_wish, nodes_of, tasks_of
from slurm_gpumem.units import parse_mib

JOB_ID = "4294900000"
"""A number that no real job has soon."""
_KEPT = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TERM", "TZ")
"""What a job has of its user with --export=NONE, besides a PATH."""
_OF_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_")


class ArrayTask(NamedTuple):
    """One task of an array."""

    task: int
    tasks: Sequence[int]


def job_environment(
    options: Wishes, environ: Mapping[str, str], name: str, task: Optional[ArrayTask] = None
) -> Dict[str, str]:
    """What the script of a job with these options would see on its first node."""
    exported = _exported(options.get("export"), environ)
    clean = {key: value for key, value in exported.items() if not key.startswith(_OF_SLURM)}
    return {**clean, **_job_variables(options, environ, name), **_array_variables(task)}


def gpus_on_node(options: Wishes) -> int:
    """GPUs of the job on its first node; one where it asks for none, which a share then gives it."""
    return max(1, gpu_wish(options, None).total // nodes_of(options))


def working_directory(options: Wishes) -> str:
    """Where the script starts."""
    return os.path.abspath(options.get("chdir") or os.getcwd())


def _exported(export: Optional[str], environ: Mapping[str, str]) -> Dict[str, str]:
    words = [word for word in (export or "ALL").split(",") if word]
    least = {"PATH": os.defpath, **{key: environ[key] for key in _KEPT if key in environ}}
    found = dict(environ) if "ALL" in words else dict(least)
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            found[key] = value
        elif key in environ:
            found[key] = environ[key]
    return found


def _job_variables(options: Wishes, environ: Mapping[str, str], name: str) -> Dict[str, str]:
    cpus = options.get("cpus-per-task") or options.get("cpus-per-gpu") or "1"
    cpus = cpus if cpus.isdigit() else "1"
    user = environ.get("USER") or environ.get("LOGNAME") or str(os.geteuid())
    node = "localhost"
    nodes, tasks, gpus = nodes_of(options), tasks_of(options), gpus_on_node(options)
    tasks_here = options.get("ntasks-per-node") or str(max(1, tasks // nodes))
    found: Dict[str, Optional[str]] = {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NAME": options.get("job-name") or name,
        "SLURM_JOB_USER": user,
        "SLURM_JOB_UID": str(os.geteuid()),
        "SLURM_JOB_PARTITION": (options.get("partition") or "").partition(",")[0] or None,
        "SLURM_JOB_ACCOUNT": options.get("account"),
        "SLURM_JOB_QOS": options.get("qos"),
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NODELIST": node,
        "SLURM_JOB_NODELIST": node,
        "SLURMD_NODENAME": node,
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_TASKS_PER_NODE": f"{tasks_here}(x{nodes})" if nodes > 1 else tasks_here,
        "SLURM_NTASKS_PER_NODE": options.get("ntasks-per-node"),
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        "SLURM_CPUS_PER_TASK": cpus if options.any_of("cpus-per-task", "cpus-per-gpu") else None,
        "SLURM_MEM_PER_NODE": _mib(options.get("mem")),
        "SLURM_MEM_PER_CPU": _mib(options.get("mem-per-cpu")),
        "SLURM_GPUS_ON_NODE": str(gpus),
        "SLURM_JOB_GPUS": ",".join(map(str, range(gpus))),
        "SLURM_RESTART_COUNT": None,
        "ENVIRONMENT": "BATCH",
    }
    return {key: value for key, value in found.items() if value is not None}


def _array_variables(task: Optional[ArrayTask]) -> Dict[str, str]:
    if task is None:
        return {}
    steps = {later - earlier for earlier, later in zip(task.tasks, task.tasks[1:])}
    return {
        "SLURM_ARRAY_JOB_ID": JOB_ID,
        "SLURM_ARRAY_TASK_ID": str(task.task),
        "SLURM_ARRAY_TASK_COUNT": str(len(task.tasks)),
        "SLURM_ARRAY_TASK_MIN": str(task.tasks[0]),
        "SLURM_ARRAY_TASK_MAX": str(task.tasks[-1]),
        "SLURM_ARRAY_TASK_STEP": str(steps.pop() if len(steps) == 1 else 1),
    }


def _mib(text: Optional[str]) -> Optional[str]:
    return str(parse_mib(text)) if text and re.fullmatch(r"[0-9]+[KMGTkmgt]?", text) else None
