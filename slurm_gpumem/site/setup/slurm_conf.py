"""What slurm.conf must say for sharing, by what is running."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.site.setup.plan import SPREAD, SPREAD_WORD, SitePlan
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names

PROLOG_TIMEOUT_S = 60
Memory = Dict[str, int]
"""Default memory of a partition's jobs: DefMemPerCPU and perhaps DefMemPerGPU, in MiB."""
LEAST_LOADED = {"LLN": "YES"}
"""On a partition: a job goes to the node with the most idle CPUs; without it nodes fill up in order."""
DEFAULT_TIME = "DefaultTime=4:00:00, or what is usual there, on the partition; users may name their own"
RECOVERY_HOOK = "epilog_slurmctld.sh"


def wanted_settings(
    running: Mapping[str, str],
    plan: SitePlan,
    *,
    lua_plugins: Sequence[str] = ("JobSubmitPlugins",),
    both: bool = False,
) -> Dict[str, str]:
    """The settings that must change, with their new values; what is right already is left out.

    `lua_plugins`: the settings that are to name Lua; what loads it must be able to.
    `both`: whether nodes outside the plan have the other kind of shares.
    """
    wanted: Dict[str, str] = {}

    def add_words(key: str, *words: str) -> None:
        have = words_of(running, key)
        missing = [word for word in words if word.lower() not in (known.lower() for known in have)]
        if missing:
            wanted[key] = ",".join([*have, *missing])

    add_words("GresTypes", "gpu", plan.gres)
    # One kind of sharing on a node: both would book the same GPU twice.
    other = "shard" if plan.gres == "mps" else "mps"
    types = wanted.get("GresTypes", value_of(running, "GresTypes") or "").split(",")
    if other in types and not both:
        wanted["GresTypes"] = ",".join(word for word in types if word != other)
    if value_of(running, "SelectType") != "select/cons_tres":
        wanted["SelectType"] = "select/cons_tres"
        units = ("CR_CPU", "CR_CORE", "CR_SOCKET")
        if not any(word.upper().startswith(units) for word in words_of(running, "SelectTypeParameters")):
            wanted["SelectTypeParameters"] = "CR_Core_Memory"
    parameters = wanted.get("SelectTypeParameters", value_of(running, "SelectTypeParameters") or "")
    placed = _with_placement([word for word in parameters.split(",") if word], plan.placement)
    if placed is not None:
        wanted["SelectTypeParameters"] = placed
    # Without slurmdbd they would be fatal from 24.11 on, which prints (null) for "none".
    if not running or "slurmdbd" in (value_of(running, "AccountingStorageType") or ""):
        # Slurm adds its own TRES (cpu, mem, node ...) by itself.
        have = [
            word for word in words_of(running, "AccountingStorageTRES") if "/" in word and word[:3] != "fs/"
        ]
        missing = [word for word in ("gres/gpu", f"gres/{plan.gres}") if word not in have]
        if missing:
            wanted["AccountingStorageTRES"] = ",".join([*have, *missing])
        add_words("AccountingStoreFlags", "job_comment")
    if not {"alloc", "contain"} & {word.lower() for word in words_of(running, "PrologFlags")}:
        add_words("PrologFlags", "Alloc")
    for key in lua_plugins:
        add_words(key, "lua")
    if value_of(running, "PrologEpilogTimeout") in (None, "65534", "INFINITE", "infinite"):
        wanted["PrologEpilogTimeout"] = str(PROLOG_TIMEOUT_S)
    return wanted


def spreads(settings: Mapping[str, str]) -> bool:
    """Whether shares go to the least loaded GPU of a node."""
    return SPREAD_WORD in (word.upper() for word in words_of(settings, "SelectTypeParameters"))


def _with_placement(words: Sequence[str], placement: str) -> Optional[str]:
    """SelectTypeParameters for a placement; None where they are right already."""
    others = [word for word in words if word.upper() != SPREAD_WORD]
    if placement == SPREAD:
        # Alone it would replace the default unit of allocation: name that too.
        return None if len(others) < len(words) else ",".join([*(others or ["CR_Core_Memory"]), SPREAD_WORD])
    return None if len(others) == len(words) else ",".join(others)


def has_default_memory(settings: Mapping[str, str]) -> bool:
    """Whether a job that names no memory gets something else than all of a node's."""
    return any(
        (value_of(settings, key) or "0") not in ("0", "UNLIMITED")
        for key in ("DefMemPerCPU", "DefMemPerNode")
    )


def without_time_limit(partitions: Iterable[Mapping[str, str]]) -> List[str]:
    """The partitions whose jobs have no time limit unless they name one: backfill cannot plan with them."""
    return [
        part["PartitionName"]
        for part in partitions
        if part.get("DefaultTime") in ("NONE", "UNLIMITED") and part.get("MaxTime") == "UNLIMITED"
    ]


def value_of(settings: Mapping[str, str], key: str) -> Optional[str]:
    """A setting as `scontrol show config` prints it; None for "(null)", nothing and absence."""
    value = settings.get(key, "").strip()
    return None if value in ("", "(null)", "none", "N/A") else value


def words_of(settings: Mapping[str, str], key: str) -> List[str]:
    """The comma-separated words of a setting."""
    return [word.strip() for word in (value_of(settings, key) or "").split(",") if word.strip()]


def partition_memory(
    running: Mapping[str, str],
    settings: Mapping[str, str],
    plan: SitePlan,
    partitions: Sequence[Mapping[str, str]],
    nodes: Sequence[Mapping[str, str]],
) -> Dict[str, Memory]:
    """Defaults for the partitions with shared GPUs that have none; never for the others.

    All CPUs, or all GPUs, of any node of the partition times them fit that node's memory, so that whatever
    could run without naming memory still can. Measured on 22.05, 24.11 and 26.05: with both, jobs with
    whole GPUs get DefMemPerGPU, and shared ones, which it ignores, DefMemPerCPU.
    """
    parameters = settings.get("SelectTypeParameters", value_of(running, "SelectTypeParameters") or "")
    if "memory" not in parameters.lower() or has_default_memory(running):
        return {}
    shared = {name for group in plan.groups for name in group.partitions}
    found: Dict[str, Memory] = {}
    for partition in partitions:
        name = partition["PartitionName"]
        if name not in shared or has_default_memory(partition):
            continue
        inside = [node for node in nodes if name in node.get("Partitions", "").split(",")]
        per_cpu = [_memory(node) // max(1, _number(node, "CPUTot")) for node in inside]
        limits = [_number(place, "MaxMemPerCPU") for place in (running, partition)]
        most = min([*per_cpu, *(limit for limit in limits if limit)], default=0)
        if not most:
            continue
        found[name] = {"DefMemPerCPU": most}
        gpus = [(_memory(node), node_gpus(node)) for node in inside]
        per_gpu = min((memory // count for memory, count in gpus if count), default=0)
        # A limit per CPU would make Slurm add CPUs to such a job.
        if per_gpu and not any(limits) and not any(map(_has_memory_per_gpu, (running, partition))):
            found[name]["DefMemPerGPU"] = per_gpu
    return found


class Level(NamedTuple):
    """Partitions with several nodes, by what keeps their shares from meeting while a node is idle."""

    wanted: Tuple[str, ...]
    """Need LLN=YES: all of their nodes have shared GPUs."""
    uneven: Tuple[str, ...]
    """Fill their nodes in order: other nodes are among them, which LLN would concern, too."""


def level_partitions(
    running: Mapping[str, str],
    plan: SitePlan,
    partitions: Sequence[Mapping[str, str]],
    nodes: Sequence[Mapping[str, str]],
) -> Level:
    """The partitions with shared GPUs that do not take the least loaded node yet."""
    if "CR_LLN" in (word.upper() for word in words_of(running, "SelectTypeParameters")):
        return Level((), ())
    shared = {name for group in plan.groups for name in expand_names(group.nodes)}
    wanted: List[str] = []
    uneven: List[str] = []
    for partition in partitions:
        name = partition["PartitionName"]
        inside = {node["NodeName"] for node in nodes if name in node.get("Partitions", "").split(",")}
        if len(inside) > 1 and inside & shared and partition.get("LLN") == "NO":
            (wanted if inside <= shared else uneven).append(name)
    return Level(tuple(wanted), tuple(uneven))


def node_gpus(node: Mapping[str, str]) -> int:
    """GPUs of all types on a node."""
    return sum(count for name, _, count in parse_gres(node.get("Gres", "")) if name == "gpu")


def _has_memory_per_gpu(settings: Mapping[str, str]) -> bool:
    return "DefMemPerGPU" in settings.get("JobDefaults", "") or bool(_number(settings, "DefMemPerGPU"))


def running_as_conf(
    running: Mapping[str, str], keys: Sequence[str], gres: Mapping[str, str], partitions: Sequence[str]
) -> str:
    """What is running, as lines of slurm.conf: for a cluster whose file cannot be read here."""
    lines = [f"{key}={value_of(running, key)}" for key in keys if value_of(running, key)]
    lines += [f"NodeName={node} Gres={words}" for node, words in gres.items()]
    return "\n".join([*lines, *(f"PartitionName={name}" for name in partitions), ""])


def _memory(node: Mapping[str, str]) -> int:
    return max(0, _number(node, "RealMemory") - _number(node, "MemSpecLimit"))


def _number(settings: Mapping[str, str], key: str) -> int:
    text = (value_of(settings, key) or "").partition(" ")[0]
    return int(text) if text.isascii() and text.isdigit() else 0
