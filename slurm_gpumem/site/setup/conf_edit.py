"""The smallest edit of slurm.conf and the files it includes that makes them say what sharing needs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Mapping, NamedTuple, Sequence, Set, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import gres_lines
from slurm_gpumem.site.setup.slurm_conf import words_of
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf_file import (
    Edit,
    Line,
    Statement,
    Where,
    apply,
    attributes_of,
    lines_of,
    read_tree,
)
from slurm_gpumem.slurm.gres import GPU_GRES, parse_gres
from slurm_gpumem.slurm.node_names import expand_names, fold_names

_ONE_PER_NODE = ("nodeaddr", "nodehostname", "port", "bcastaddr")
"""Lists that must be as long as the list of names."""


class Change(NamedTuple):
    """What slurm.conf is to say."""

    settings: Mapping[str, str]
    gres: Mapping[str, str]
    """Node name → the GPU part of its Gres=."""
    partitions: Mapping[str, Mapping[str, object]]
    """Partition → its DefMemPerCPU, LLN and the like."""


def edit_slurm_conf(texts: Mapping[str, str], change: Change, where: Where) -> Dict[str, str]:
    """The files that change, and slurm.conf itself; UsageError where a node or partition has no line."""
    tree = read_tree("slurm.conf", texts, where)
    edits: List[Edit] = []
    left = dict(change.settings)
    for statement in tree.statements:
        for key in {pair.key.lower() for pair in statement.pairs}:
            wanted = next((name for name in change.settings if name.lower() == key), None)
            if wanted is not None and statement.kind not in ("nodename", "partitionname"):
                edits += statement.set(wanted, change.settings[wanted])
                left.pop(wanted, None)
    nodes, node_edits = _nodes(lines_of(tree.statements, "nodename"), change.gres)
    partitions, part_edits = _partitions(lines_of(tree.statements, "partitionname"), change.partitions)
    _all_found("NodeName", change.gres, nodes, tree.missing)
    _all_found("PartitionName", change.partitions, partitions, tree.missing)
    changed = apply(texts, [*edits, *node_edits, *part_edits])
    if left:
        text = changed["slurm.conf"]
        end = "" if not text or text.endswith("\n") else "\n"
        lines = [f"{key}={value}" for key, value in left.items()]
        changed["slurm.conf"] = "\n".join([f"{text}{end}", "# Sharing of GPUs", *lines, ""])
    return {name: text for name, text in changed.items() if name == "slurm.conf" or text != texts.get(name)}


def merged_gres(now: str, wanted: str) -> str:
    """A node's Gres= with this GPU part, and with whatever else it has."""
    others = [word for word in now.split(",") if word and word.split(":")[0].lower() not in GPU_GRES]
    return ",".join([wanted, *others])


def same_gres(now: str, wanted: str) -> bool:
    """Whether a Gres= already has this GPU part; the order matters only between several types."""
    words = [
        word for word in re.sub(r"\([^)]*\)", "", now).split(",") if word.split(":")[0].lower() in GPU_GRES
    ]
    needed = wanted.split(",")
    several = len(needed) > 2
    return words == needed if several else set(words) == set(needed)


def _nodes(lines: Sequence[Line], gres: Mapping[str, str]) -> Tuple[Set[str], List[Edit]]:
    found: Set[str] = set()
    edits: List[Edit] = []
    for line in lines:
        now = line.attributes.get("gres", "")
        groups: Dict[str, List[str]] = {}
        for name in line.names:
            found.add(name)
            kept = name not in gres or same_gres(now, gres[name])
            groups.setdefault(now if kept else merged_gres(now, gres[name]), []).append(name)
        if len(groups) > 1:
            edits.append(_split(line, groups))
        elif set(groups) != {now}:
            edits += line.statement.set("Gres", next(iter(groups)))
    return found, edits


def _split(line: Line, groups: Mapping[str, Sequence[str]]) -> Edit:
    """One line for each kind of node, in the place of a line for all."""
    statement = line.statement
    listed = [key for key in _ONE_PER_NODE if re.search(r"[\[,]", statement.value(key) or "")]
    if listed:
        raise UsageError(
            f"{statement.file}: the nodes of {statement.value('nodename')} will differ in Gres=, and their "
            f"{listed[0]} is a list.\n"
            "Split this line by hand, one for each kind of node, and run gpumem setup again."
        )
    parts = []
    for gres, names in groups.items():
        alone = Statement(statement.file, 0, 0, statement.text, tuple(range(len(statement.text))))
        edits = alone.set("NodeName", fold_names(names))
        edits += alone.set("Gres", gres) if gres else alone.without("gres")
        text = apply({statement.file: statement.text}, edits)[statement.file]
        parts.append(re.sub(r"\s+", " ", text).strip() + "\n")
    return Edit(statement.file, statement.start, statement.end, "".join(parts))


def _partitions(
    lines: Sequence[Line], values: Mapping[str, Mapping[str, object]]
) -> Tuple[Set[str], List[Edit]]:
    found: Set[str] = set()
    edits: List[Edit] = []
    for line in lines:
        found.update(line.names)
        wanted = {key: value for name in line.names for key, value in values.get(name, {}).items()}
        # Those that the line has are changed in place; the others are put at its end, in one edit.
        known = [key for key in wanted if line.statement.value(key) is not None]
        edits += [edit for key in known for edit in line.statement.set(key, str(wanted[key]))]
        added = "".join(f" {key}={value}" for key, value in wanted.items() if key not in known)
        edits += [line.statement.appended(added)] if added else []
    return found, edits


def _all_found(key: str, wanted: Mapping[str, object], found: Set[str], missing: Sequence[str]) -> None:
    lost = [name for name in wanted if name not in found]
    if not lost:
        return
    where = f"; {', '.join(missing)} cannot be read here" if missing else ""
    raise UsageError(
        f"{fold_names(lost)}: no {key}= line in slurm.conf or the files that it includes{where}.\n"
        "Run gpumem setup where they can be read, or name only the nodes that have one with --gpu."
    )


# Edits of slurm.conf that slurmctld has not read yet: a proposal from what runs would undo them.

_LISTS = ("GresTypes", "JobSubmitPlugins")


def refuse_pending_edits(now: Snapshot) -> None:
    """UsageError where slurm.conf has other GPUs, gres or plug-ins than the cluster runs with."""
    if "slurm.conf" not in now.files:
        return
    statements = read_tree("slurm.conf", now.files, now.where).statements
    for key in _LISTS:
        written = next((v for s in reversed(statements) if (v := s.value(key.lower())) is not None), "")
        known = {word.lower() for word in words_of(now.config, key)}
        new = [word for word in written.split(",") if word.strip() and word.strip().lower() not in known]
        if new and "none" not in new:
            _refuse(f"{key}={written}", f"{key}={now.config.get(key, '')}")
    lines = attributes_of(lines_of(statements, "nodename"))
    for node in now.nodes:
        about = lines.get(node["NodeName"])
        if about is not None and _gpus(about.get("gres", "")) != _gpus(node.get("Gres", "")):
            name = node["NodeName"]
            _refuse(
                f"{name} with Gres={about.get('gres') or '(none)'}",
                f"{name} with {node.get('Gres') or 'none'}",
            )


def _gpus(gres: str) -> int:
    return sum(count for name, _, count in parse_gres(gres) if name == "gpu")


def _refuse(written: str, running: str) -> None:
    raise UsageError(
        f"slurm.conf has {written}, the cluster runs with {running}.\n"
        "A proposal would undo an edit that slurmctld has not read. Put it in use first (restart slurmctld, "
        "then every slurmd), or take it back, and run gpumem setup again."
    )


# gres.conf: which device is of which type, and the lines that divide the devices.
#
# Measured on 22.05, 24.11 and 26.05: Slurm numbers a node's GPUs in the order of the types in Gres= of
# slurm.conf, whatever File= says, and a job sees that number in CUDA_VISIBLE_DEVICES. So the types must
# stand there in the order of their device files, and devices of one type must follow each other.

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
    types = " and ".join(group.gpu_type or "(no type)" for group in gpus)
    if {kind: len(paths) for kind, paths in files.items()} != counts:
        raise UsageError(
            f"{node} has GPUs of several types ({types}), and gres.conf does not say which GPU is which.\n"
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
