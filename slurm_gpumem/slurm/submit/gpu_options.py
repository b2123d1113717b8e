"""What a job asks of Slurm, put together from the command line, the environment and the script.

sbatch lets the command line win over SBATCH_* variables, and those over #SBATCH lines.
From that follow the GPUs a job wants and whether it can live with a part of one.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.slurm.gres import GPU_GRES, parse_gpus, parse_gres
from slurm_gpumem.slurm.submit.sbatch_options import Option
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.units import ceil_div, parse_mib

REPLACED = frozenset(
    {
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "cpus-per-gpu",
        "mem-per-gpu",
        "ntasks-per-gpu",
    }
)
"""Options that a shared job cannot keep: Slurm refuses them beside shards, or they ask for whole GPUs."""

ENVIRONMENT = {
    "array": "SBATCH_ARRAY_INX",
    "clusters": "SBATCH_CLUSTERS",
    "cpus-per-gpu": "SBATCH_CPUS_PER_GPU",
    "exclusive": "SBATCH_EXCLUSIVE",
    "export": "SBATCH_EXPORT",
    "gpus": "SBATCH_GPUS",
    "gpus-per-node": "SBATCH_GPUS_PER_NODE",
    "gpus-per-socket": "SBATCH_GPUS_PER_SOCKET",
    "gpus-per-task": "SBATCH_GPUS_PER_TASK",
    "gres": "SBATCH_GRES",
    "mem": "SBATCH_MEM_PER_NODE",
    "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "mem-per-gpu": "SBATCH_MEM_PER_GPU",
    "no-requeue": "SBATCH_NO_REQUEUE",
    "open-mode": "SBATCH_OPEN_MODE",
    "partition": "SBATCH_PARTITION",
}
"""sbatch's input variables for the options that matter here."""
_PREFIXES = {"srun": "SLURM_", "salloc": "SALLOC_"}

_INNER_SRUN = r"(?m)^[^#\n]*\bsrun\b[^#\n]*\s(?:--gres[= ]+\S*gpu|--gpus(?:-per-[a-z]+)?[= ]|-G[ =]?[0-9a-z])"


class OptionValue(NamedTuple):
    """The value in force of one option and where it comes from."""

    value: str
    origin: str
    """ "command line", "environment" or "script"."""


class Wishes(NamedTuple):
    """The options in force for a job."""

    options: Mapping[str, OptionValue]

    def get(self, name: str) -> Optional[str]:
        """The value in force; "" for an option without one; None when it is not given."""
        asked = self.options.get(name)
        return None if asked is None else asked.value

    def any_of(self, *names: str) -> bool:
        """Whether one of these is given."""
        return any(name in self.options for name in names)


class GpuWish(NamedTuple):
    """The GPUs a job asked for in Slurm's own words."""

    gpus: int = 0
    """How many on one node; 0 when it asked for none."""
    total: int = 0
    """... on all of its nodes together."""
    gpu_type: Optional[str] = None
    keep_whole: Optional[str] = None
    """Why the job cannot live with a part of a GPU; None when it can."""
    shared_gres: Optional[str] = None
    """The shard or mps request that the user wrote by hand."""
    other_gres: Tuple[str, ...] = ()
    """Entries of --gres that are no GPUs and stay as they are."""


def input_variables(program: str) -> Mapping[str, str]:
    """The same variables for srun and salloc, which begin otherwise; option → variable."""
    prefix = _PREFIXES.get(program, "SBATCH_")
    return {name: variable.replace("SBATCH_", prefix) for name, variable in ENVIRONMENT.items()}


def merge_wishes(
    command_line: Sequence[Option],
    environ: Mapping[str, str],
    script: Sequence[Option],
    variables: Mapping[str, str] = ENVIRONMENT,
) -> Wishes:
    """Options in force, by sbatch's precedence."""
    found: Dict[str, OptionValue] = {}
    for option in script:
        found[option.name] = OptionValue(option.value or "", "script")
    for name, variable in variables.items():
        if variable in environ:
            found[name] = OptionValue(environ[variable], "environment")
    for option in command_line:
        if not option.ours:
            found[option.name] = OptionValue(option.value or "", "command line")
    return Wishes(found)


def gpu_wish(wishes: Wishes, script: Optional[BatchScript]) -> GpuWish:
    """What the job's options say of GPUs."""
    gres = parse_gres(wishes.get("gres") or "")
    named = [(entry[0][0], item) for item in _gres_items(wishes) if (entry := parse_gres(item))]
    shared = ",".join(item for name, item in named if name in ("shard", "mps"))
    other = tuple(item for name, item in named if name not in GPU_GRES)
    entries = [(kind, count, "--gres") for name, kind, count in gres if name == "gpu" and count]
    for option in ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"):
        for kind, count in parse_gpus(wishes.get(option) or ""):
            entries.append((kind, count, f"--{option}"))
    types = [kind for kind, _, _ in entries if kind]
    return GpuWish(
        gpus=max((count for _, count, _ in entries), default=0),
        total=max((_in_all(wishes, count, origin) for _, count, origin in entries), default=0),
        gpu_type=types[-1] if types else None,
        keep_whole=_why_whole(wishes, [(count, origin) for _, count, origin in entries], script),
        shared_gres=shared or None,
        other_gres=other,
    )


def nodes_of(wishes: Wishes) -> int:
    """How many nodes the job asks for, at least."""
    number = re.match(r"[0-9]+", wishes.get("nodes") or "")
    return max(1, int(number[0])) if number else 1


def tasks_on_node(wishes: Wishes) -> int:
    """How many tasks a step has on each node, at most, that says nothing else."""
    tasks, on_node = wishes.get("ntasks") or "", wishes.get("ntasks-per-node") or ""
    if tasks.isdigit():
        return max(1, ceil_div(int(tasks), nodes_of(wishes)))
    return max(1, int(on_node)) if on_node.isdigit() else 1


def tasks_of(wishes: Wishes) -> int:
    """How many tasks a step has that says nothing else."""
    tasks, on_node = wishes.get("ntasks") or "", wishes.get("ntasks-per-node") or ""
    if tasks.isdigit():
        return max(1, int(tasks))
    return max(1, int(on_node)) * nodes_of(wishes) if on_node.isdigit() else 1


def _in_all(wishes: Wishes, count: int, origin: str) -> int:
    """GPUs of all nodes or tasks, of what an option says of one."""
    if origin in ("--gres", "--gpus-per-node"):
        return count * nodes_of(wishes)
    return count * tasks_of(wishes) if origin == "--gpus-per-task" else count


def _why_whole(
    wishes: Wishes, counts: Sequence[Tuple[int, str]], script: Optional[BatchScript]
) -> Optional[str]:
    if wishes.any_of("exclusive"):
        return "--exclusive takes whole nodes"
    for name in ("gpu-bind", "gpu-freq"):
        if wishes.get(name) not in (None, "none"):
            # Slurm refuses the second beside shards; by the first, steps may find no GPU in them.
            return f"--{name} is for whole GPUs"
    if wishes.any_of("tres-per-task"):
        return "--tres-per-task asks for its GPUs"
    nodes, tasks = nodes_of(wishes), tasks_on_node(wishes)
    each = f" on each of {nodes} nodes" if nodes > 1 else ""
    for count, origin in counts:
        if nodes > 1 and origin == "--gpus":
            return f"--gpus counts the GPUs of its {nodes} nodes together (--gres=gpu:1 would share)"
        count *= tasks if origin == "--gpus-per-task" else 1
        if count > 1:
            return f"it asks for {count} GPUs{each} ({origin})"
    if len(counts) > 1 and len({origin for _, origin in counts}) < len(counts):
        return "it asks for several kinds of GPUs"
    if tasks > 1 and not wishes.get("nodes") and wishes.get("ntasks"):
        return f"its {tasks} tasks may run on several nodes (-N 1 would share)"
    if tasks > 1 and nodes > 1:
        return f"it runs {tasks} tasks on one GPU{each} (--ntasks-per-node=1 would share)"
    if script is not None and has_gpu_step(script.text()):
        return f"an srun in {script.name} asks for a GPU itself"
    return None


def has_gpu_step(script: str) -> bool:
    """Whether an srun in it asks for a GPU: in an allocation that has shards only, such a step is refused."""
    return "srun" in script and re.search(_INNER_SRUN, script) is not None


def _gres_items(wishes: Wishes) -> Sequence[str]:
    return [item.strip() for item in (wishes.get("gres") or "").split(",") if item.strip()]


# The environment that Slurm gives a batch script: the user's, by --export, and the job's variables.

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
    users = exported(options.get("export"), environ)
    clean = {key: value for key, value in users.items() if not key.startswith(_OF_SLURM)}
    return {**clean, **_job_variables(options, environ, name), **_array_variables(task)}


def gpus_on_node(options: Wishes) -> int:
    """GPUs of the job on its first node; one where it asks for none, which a share then gives it."""
    return max(1, gpu_wish(options, None).total // nodes_of(options))


def working_directory(options: Wishes) -> str:
    """Where the script starts."""
    return os.path.abspath(options.get("chdir") or os.getcwd())


def exported(export: Optional[str], environ: Mapping[str, str]) -> Dict[str, str]:
    """What a job has of its user's environment, by --export."""
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
