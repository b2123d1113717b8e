"""Checks of how the GPUs are divided: gres, versions' traps, partitions, memory defaults."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Mapping, Tuple

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.site.doctor.findings import Finding, critical, note, warning
from slurm_gpumem.site.nodes import divided_gpus
from slurm_gpumem.site.setup.plan import SPREAD_WORD, SPREADING
from slurm_gpumem.site.setup.slurm_conf import (
    has_default_memory,
    node_gpus,
    spreads,
    value_of,
    words_of,
)
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.gres import Entry, parse_gres
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.state.nodes import (
    SHARES_WITHOUT_TYPE_BESIDE_INSTANCES,
    WHOLE_GPU_BESIDE_SHARDS,
    gives_whole_nodes,
)

TYPED_STEPS = (23, 2, 0)
"""Measured on 22.05.8: srun steps of a typed share fail unless the node's shares have a type too."""


def sharing_is_configured(now: Snapshot) -> Iterator[Finding]:
    """GresTypes, SelectType, and at least one node with shares."""
    types = words_of(now.config, "GresTypes")
    if "shard" not in types and "mps" not in types and any(_profiles(node) for node in now.nodes):
        pass  # MIG instances divide the GPUs instead.
    elif "shard" not in types and "mps" not in types:
        yield critical(
            "gres-types",
            f"GresTypes={','.join(types) or '(unset)'} has neither shard nor mps",
            "no GPU can be shared",
            "gpumem setup prints the lines for slurm.conf and gres.conf",
        )
    elif not now.shared_nodes() and not any(_profiles(node) for node in now.nodes):
        yield critical(
            "no-shares",
            "no node has shards or mps units",
            "no GPU can be shared",
            "gpumem setup prints the Gres= of each node",
        )
    if value_of(now.config, "SelectType") != "select/cons_tres":
        yield critical(
            "select-type",
            f"SelectType={value_of(now.config, 'SelectType')}",
            "only select/cons_tres divides GPUs",
            "SelectType=select/cons_tres in slurm.conf, then restart slurmctld and all slurmd",
        )


def one_kind_of_sharing_per_node(now: Snapshot) -> Iterator[Finding]:
    """Shards and mps on one node book the same GPU twice."""
    both = [n["NodeName"] for n in now.nodes if {"shard", "mps"} <= _gres_names(n)]
    if both:
        yield critical(
            "shard-and-mps",
            f"{fold_names(both)}: both shard and mps",
            "one GPU is booked twice and CUDA_VISIBLE_DEVICES is wrong",
            "keep one of the two in Gres= and in gres.conf",
        )


def mps_serves_one_gpu_per_node(now: Snapshot) -> Iterator[Finding]:
    """Slurm gives gres/mps on one GPU of a node at a time, whatever the others do."""
    divided = [node for node in now.shared_nodes() if _gres_names(node) & {"shard", "mps"} == {"mps"}]
    several = [node["NodeName"] for node in divided if node_gpus(node) > 1]
    if several:
        yield warning(
            "mps-one-gpu",
            f"{fold_names(several)}: gres/mps on a node with several GPUs",
            "Slurm lets mps jobs use one GPU of a node at a time: what does not fit there waits, "
            "and the other GPUs stand idle",
            "gres/shard there (gpumem setup --gres shard); gres/mps only on nodes with one GPU",
        )


def instances_are_usable(now: Snapshot) -> Iterator[Finding]:
    """MIG instances whose profile nobody knows, and shares that Slurm spreads over instances."""
    unknown: Dict[str, List[str]] = {}
    spread = []
    for node in now.nodes:
        for kind in _profiles(node):
            if not closest_gpu(kind, None).entry:
                unknown.setdefault(kind, []).append(node["NodeName"])
        entries = parse_gres(node.get("Gres", ""))
        if _profiles(node) and any(name in ("shard", "mps") and not kind for name, kind, _ in entries):
            spread.append(node["NodeName"])
    for kind, names in sorted(unknown.items()):
        yield warning(
            "mig-profile",
            f"{fold_names(names)}: MIG profile {kind} is not in the table of profiles",
            "gpusbatch does not know its memory and never asks for it",
            f'["{kind}"] with memory_mib in gpumem-gpus.toml, or the type that nvidia-smi mig -lgi prints',
        )
    if spread:
        yield warning(
            "mig-shares",
            f"{fold_names(spread)}: MIG instances beside shares without a type",
            "Slurm spreads such shares over the instances as well, and nobody knows how much memory one is",
            "Name=shard Type=TYPE Count=N File=/dev/nvidiaN in gres.conf for each whole GPU, and in Gres= "
            + ("shard:TYPE:N" if now.version < SHARES_WITHOUT_TYPE_BESIDE_INSTANCES else "shard:N for all"),
        )


def _profiles(node: Mapping[str, str]) -> List[str]:
    """The GPU types of a node that are MIG profiles."""
    entries = parse_gres(node.get("Gres", ""))
    return [kind for name, kind, _ in entries if name == "gpu" and kind and profile_name(kind)]


def shares_divide_evenly(now: Snapshot) -> Iterator[Finding]:
    """Shares that do not divide by the GPUs leave some memory to nobody."""
    for node in now.shared_nodes():
        entries = parse_gres(node.get("Gres", ""))
        gpus = sum(count for name, _, count in entries if name == "gpu")
        untyped = sum(count for name, kind, count in entries if name in ("shard", "mps") and kind is None)
        for kind, count, units in _typed_shares(entries):
            if count == 0 or units % count:
                yield warning(
                    "uneven-shares",
                    f"{node['NodeName']}: {units} shares of type {kind} for {count} GPUs of that type",
                    "Slurm cannot give each GPU the same number",
                    "make the count a multiple of the GPUs (gpumem setup)",
                )
        if gpus == 0 or untyped % gpus:
            yield warning(
                "uneven-shares",
                f"{node['NodeName']}: {untyped} shares for {gpus} GPUs",
                "Slurm cannot give each GPU the same number",
                "make the count a multiple of the GPUs (gpumem setup)",
            )


def _typed_shares(entries: List[Entry]) -> Iterator[Tuple[str, int, int]]:
    """Type, GPUs and shares of that type."""
    for kind in sorted({kind for name, kind, _ in entries if kind and name in ("shard", "mps")}):
        gpus = sum(count for name, other, count in entries if (name, other) == ("gpu", kind))
        units = sum(count for name, other, count in entries if name in ("shard", "mps") and other == kind)
        yield kind, gpus, units


def shares_have_types(now: Snapshot) -> Iterator[Finding]:
    """22.05 refuses srun steps of typed shares where the node's shares have no type."""
    if now.version >= TYPED_STEPS:
        return
    bare = []
    for node in now.shared_nodes():
        entries = parse_gres(node.get("Gres", ""))
        typed_gpu = any(name == "gpu" and kind for name, kind, _ in entries)
        if typed_gpu and any(name in ("shard", "mps") and kind is None for name, kind, _ in entries):
            bare.append(node["NodeName"])
    if bare:
        yield warning(
            "untyped-shares",
            f"{fold_names(bare)}: GPUs have a type, their shares have none",
            f"on Slurm {now.version_text} every srun inside a job that asked for shard:TYPE:N fails",
            "write shard:TYPE:N in Gres= and Name=shard Type=TYPE in gres.conf (gpumem setup)",
        )


def whole_and_shared_jobs_keep_apart(now: Snapshot) -> Iterator[Finding]:
    """Before 23.02.6 a gpu:1 job can be started on a GPU whose shards are in use."""
    if now.version >= WHOLE_GPU_BESIDE_SHARDS:
        return
    shared = {part for node in now.shared_nodes() for part in node.get("Partitions", "").split(",") if part}
    asked: dict[str, set[str]] = {}
    for job in now.jobs:
        names = asked.setdefault(job.partition, set())
        names |= {gres for gres in ("gpu", "shard", "mps") if re.search(rf"\b{gres}\b", job.tres)}
    fix = "give whole-GPU jobs a partition with nodes of their own, or upgrade to 23.02.6 or later"
    why = f"Slurm {now.version_text} can start both on one GPU"
    mixed = [name for name in sorted(shared) if _both_asked(asked.get(name, set()))]
    open_to_both = [name for name in sorted(shared) if name not in mixed]
    if mixed:
        what = f"whole-GPU and shared jobs are queued in partition{'s' * (len(mixed) > 1)} {', '.join(mixed)}"
        yield critical("mixed-jobs", what, why, fix)
    if open_to_both:
        take = "partitions {} take" if len(open_to_both) > 1 else "partition {} takes"
        what = f"{take.format(', '.join(open_to_both))} whole-GPU and shared jobs"
        yield warning("mixed-jobs", what, why, fix)


def _both_asked(names: set[str]) -> bool:
    return "gpu" in names and bool(names & {"shard", "mps"})


def spreading_exists(now: Snapshot) -> Iterator[Finding]:
    """LL_SHARED_GRES before 23.11 stops every Slurm command."""
    if now.version < SPREADING and SPREAD_WORD.lower() in now.files.get("slurm.conf", "").lower():
        yield spreading_finding(now.version_text)


def placement_is_known(now: Snapshot) -> Iterator[Finding]:
    """Which GPU of a node a shared job goes to: no error, but nobody sees it in a job's request."""
    if not any("shard" in _gres_names(node) and node_gpus(node) > 1 for node in now.shared_nodes()):
        return
    if spreads(now.config):
        what = f"placement: spread ({SPREAD_WORD})"
        why = "a shared job goes to the GPU of its node with the most free shares; fewer GPUs stay empty"
        fix = "nothing to do; gpumem setup --placement pack where whole GPUs must stay free"
    else:
        what = f"placement: pack (no {SPREAD_WORD})"
        why = "shared jobs fill one GPU of a node before the next: they may share one while others stand idle"
        fix = (
            "gpumem setup --placement spread, unless whole GPUs must stay free"
            if now.version >= SPREADING
            else "nothing before Slurm 23.11: `gpumem docs placement` says what helps"
        )
    yield note("placement", what, why, fix)


def spreading_finding(version: str) -> Finding:
    """The finding also made when Slurm's commands already fail for it."""
    return critical(
        "ll-shared-gres",
        f"slurm.conf has {SPREAD_WORD}",
        f"Slurm {version or 'before 23.11'} does not know it, and every command and daemon fails to start",
        "take it out of SelectTypeParameters, or upgrade to 23.11",
    )


def shared_jobs_have_default_memory(now: Snapshot) -> Iterator[Finding]:
    """With memory as a consumable resource, a job that names none gets all of a node's."""
    consumes = any("MEMORY" in word.upper() for word in words_of(now.config, "SelectTypeParameters"))
    if not consumes or has_default_memory(now.config):
        return
    bare = [part["PartitionName"] for part in shared_partitions(now) if not has_default_memory(part)]
    if bare:
        yield warning(
            "default-memory",
            f"partition {', '.join(bare)}: no DefMemPerCPU or DefMemPerNode",
            "a shared job without --mem takes all memory of its node, and nothing else runs there",
            f"DefMemPerCPU={_memory_per_cpu(now)} on its PartitionName line (DefMemPerGPU ignores shares)",
        )


def no_exclusive_partition_shares(now: Snapshot) -> Iterator[Finding]:
    """In an OverSubscribe=EXCLUSIVE partition shard jobs wait forever."""
    for part in shared_partitions(now):
        if gives_whole_nodes(part):
            yield warning(
                "exclusive-partition",
                f"partition {part['PartitionName']}: OverSubscribe=EXCLUSIVE",
                "shared jobs there wait forever, even on idle nodes",
                "OverSubscribe=NO, or take its nodes' shards out",
            )


def shares_per_gpu(now: Snapshot) -> List[Tuple[str, int]]:
    """Gres name and the most shares that one GPU of the cluster has, for each gres in use."""
    most = {}
    for gres in ("shard", "mps"):
        counts = [shares for node in now.nodes for _, _, shares in divided_gpus(node, gres)]
        if max(counts, default=0):
            most[gres] = max(counts)
    return list(most.items())


def shared_partitions(now: Snapshot) -> List[Mapping[str, str]]:
    """The partitions that have a node with shares."""
    names = {part for node in now.shared_nodes() for part in node.get("Partitions", "").split(",")}
    return [part for part in now.partitions if part["PartitionName"] in names]


def _memory_per_cpu(now: Snapshot) -> int:
    known = [
        int(node["RealMemory"]) // int(node["CPUTot"])
        for node in now.shared_nodes()
        if node.get("RealMemory", "").isdigit()
        and node.get("CPUTot", "0").isdigit()
        and node.get("CPUTot") != "0"
    ]
    return min(known, default=2048)


def _gres_names(node: Mapping[str, str]) -> set[str]:
    return {name for name, _, count in parse_gres(node.get("Gres", "")) if count}
