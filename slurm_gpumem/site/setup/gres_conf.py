"""gres.conf: which device is of which type, and the lines that divide the devices.

Measured on 22.05, 24.11 and 26.05: Slurm numbers a node's GPUs in the order of the types in Gres= of
slurm.conf, whatever File= says, and a job sees that number in CUDA_VISIBLE_DEVICES. So the types must
stand there in the order of their device files, and devices of one type must follow each other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import gres_lines
from slurm_gpumem.slurm.conf_file import Edit, Statement, Where, apply, read_tree
from slurm_gpumem.slurm.node_names import expand_names, fold_names

_SHARED = ("shard", "mps")


def in_device_order(
    groups: Sequence[NodeGroup], texts: Mapping[str, str], where: Where
) -> Tuple[NodeGroup, ...]:
    """The groups with their types in the order of the device files, and with those files."""
    statements = read_tree("gres.conf", {"gres.conf": "", **texts}, where).statements
    found: Dict[NodeGroup, List[str]] = {}
    for group in groups:
        if not group.mixed:
            found[group] = expand_names(group.nodes)
            continue
        for node in expand_names(group.nodes):
            # MIG instances are not divided: they keep their places.
            whole = [gpus for gpus in group.gpus if not gpus.instance]
            sorted_ones = iter(_ordered(node, whole, statements) if whole else ())
            gpus = tuple(gpus if gpus.instance else next(sorted_ones) for gpus in group.gpus)
            ordered = replace(group, nodes="", gpus=gpus)
            found.setdefault(ordered, []).append(node)
    return tuple(replace(group, nodes=fold_names(nodes)) for group, nodes in found.items())


def edit_gres_conf(
    plan: SitePlan, texts: Mapping[str, str], where: Where, gres_now: Mapping[str, str]
) -> Dict[str, str]:
    """The files that change, and gres.conf itself: old shares of the plan's nodes out, ours in."""
    known = {"gres.conf": "", **texts}
    tree = read_tree("gres.conf", known, where)
    ours = {node for group in plan.groups for node in expand_names(group.nodes)}
    edits: List[Edit] = []
    for statement in tree.statements:
        name = (statement.value("name") or "").lower()
        if name in _SHARED:
            edits += _left_to_others(statement, name, ours, gres_now)
    lines = [
        line
        for group in plan.groups
        for line in gres_lines(
            replace(plan, groups=(group,)), with_gpus=not _describes(tree.statements, group.nodes)
        )
    ]
    changed = apply(known, edits)
    text = changed["gres.conf"]
    end = "" if not text or text.endswith("\n") else "\n"
    changed["gres.conf"] = "\n".join([f"{text}{end}" + lines[0], *lines[1:], ""]) if lines else text
    return {name: text for name, text in changed.items() if name == "gres.conf" or text != known[name]}


def _describes(statements: Sequence[Statement], nodes: str) -> bool:
    """Whether gres.conf already says where the GPUs of these nodes are."""
    names = set(expand_names(nodes))
    for statement in statements:
        here = statement.value("nodename")
        if here is not None and not names & set(expand_names(here)):
            continue
        detects = (statement.value("autodetect") or "off").lower() != "off"
        if detects or (statement.value("name") or "").lower() == "gpu":
            return True
    return False


def _left_to_others(
    statement: Statement, name: str, ours: set[str], gres_now: Mapping[str, str]
) -> List[Edit]:
    """The edits that end a line of shares for our nodes; other nodes keep it."""
    listed = statement.value("nodename")
    nodes = (
        expand_names(listed)
        if listed is not None
        else [node for node, gres in gres_now.items() if re.search(rf"\b{name}:", gres)]
    )
    others = [node for node in nodes if node not in ours]
    if listed is not None and len(others) == len(nodes):
        return []
    return statement.set("NodeName", fold_names(others)) if others else [statement.removed()]


def _ordered(node: str, gpus: Sequence[GpuGroup], statements: Sequence[Statement]) -> Tuple[GpuGroup, ...]:
    """These types of a node in the order of their devices."""
    counts = {group.gpu_type: group.count for group in gpus}
    files: Dict[str, List[str]] = {}
    detects = False
    for statement in statements:
        listed = statement.value("nodename")
        if listed is not None and node not in expand_names(listed):
            continue
        detects = detects or (statement.value("autodetect") or "off").lower() != "off"
        if (statement.value("name") or "").lower() == "gpu" and statement.value("file"):
            kind = statement.value("type") or ""
            if kind not in counts:
                continue
            files.setdefault(kind, []).extend(expand_names(statement.value("file") or ""))
    if not files and not detects:
        return tuple(gpus)
    kinds = " and ".join(group.gpu_type or "(no type)" for group in gpus)
    if {kind: len(paths) for kind, paths in files.items()} != counts:
        raise UsageError(
            f"{node} has GPUs of several types ({kinds}), and gres.conf does not say which GPU is which.\n"
            "Slurm then gives jobs other devices than they asked for. Write a line for each type, like\n"
            f"NodeName={node} Name=gpu Type={gpus[0].gpu_type} File=/dev/nvidia[0-{gpus[0].count - 1}]\n"
            "with the devices that `nvidia-smi -L` shows on the node, and run gpumem setup again."
        )
    order = [kind for _, kind in sorted((_number(path), kind) for kind in files for path in files[kind])]
    runs = [kind for index, kind in enumerate(order) if index == 0 or order[index - 1] != kind]
    if len(runs) > len(files):
        raise UsageError(
            f"{node} has GPUs of several types in turn ({', '.join(order)}): Slurm numbers GPUs type by "
            "type, so CUDA_VISIBLE_DEVICES would name other devices than gres.conf does.\n"
            "Share only nodes with one type (--gpu), or swap cards so that those of a type follow each other."
        )
    by_kind = {group.gpu_type: group for group in gpus}
    return tuple(replace(by_kind[kind], files=tuple(sorted(files[kind], key=_number))) for kind in runs)


def _number(path: str) -> Tuple[int, str]:
    match = re.search(r"([0-9]+)$", path)
    return (int(match[1]) if match else 0, path)
