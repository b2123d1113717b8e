"""A site's configuration made harmless: the same nodes and partitions, nothing that reaches the site.

What is kept is listed; everything else is taken out, so that a setting that nobody thought of can neither
run a program nor reach a daemon, a port or a file of the site. Texts are edited in place: lines that Slurm
would refuse in the original are refused in the copy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from slurm_gpumem.data import LUA_FILES, data_path
from slurm_gpumem.devcluster.config import Place, cgroup_conf, own_settings
from slurm_gpumem.devcluster.spec import Layout
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.slurm.client import Version
from slurm_gpumem.slurm.conf_file import (
    Edit,
    Include,
    Statement,
    Tree,
    Where,
    apply,
    attributes_of,
    lines_of,
    read_tree,
)
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names

KEPT_SETTINGS = frozenset(
    """
    AccountingStoreFlags AllowSpecResourcesUsage DefCpuPerGPU DefMemPerCPU DefMemPerGPU
    DefMemPerNode EnforcePartLimits GresTypes JobDefaults JobSubmitPlugins Licenses MaxArraySize MaxJobCount
    MaxMemPerCPU MaxMemPerNode MaxNodeCount OverTimeLimit PluginDir PrologEpilogTimeout PrologFlags
    SchedulerParameters SchedulerType SelectType SelectTypeParameters
    """.lower().split()
)
"""What decides whether a request can be met, and what `gpumem setup` proposes.

Not AccountingStorageTRES: from 24.11 on slurmctld refuses it without a database.
"""
_PROLOG_FLAGS = ("alloc", "nohold", "serial")
"""The others need cgroups or ports."""
_OF_NODES = frozenset(
    """
    Boards CoresPerSocket CPUs Feature Features Gres MemSpecLimit Nodes Procs RealMemory Sockets
    SocketsPerBoard ThreadsPerCore TmpDisk Weight
    """.lower().split()
)
_NODE_LEAVES = ("nodeaddr", "nodehostname", "port", "bcastaddr", "state", "reason", "topology", "parameters")
_PARTITION_LEAVES = frozenset(
    """
    AllowAccounts AllowGroups AllowQos AllocNodes DenyAccounts DenyQos QOS ReqResv RootOnly State PreemptMode
    TRESBillingWeights GraceTime PowerDownOnIdle ResumeTimeout SuspendTime SuspendTimeout Topology Alternate
    """.lower().split()
)
"""Who may use a partition, and when: the trial's user is none of the site's, and there is no database."""
_GRES_LEAVES = ("cores", "cpus", "links", "autodetect")
"""Bound to the node's own hardware."""
_GPU_FILE = re.compile(r"/dev/nvidia([0-9]+)")
_STUB_LUA = """\
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@dataclass(frozen=True)
class Configuration:
    """slurm.conf, gres.conf and what they include, by their names in the site's folder."""

    texts: Mapping[str, str]
    """Also gpumem_site.lua, where our plug-in is to be tried."""
    where: Where

    @property
    def slurm(self) -> Tree:
        """The statements of slurm.conf."""
        return read_tree("slurm.conf", self.texts, self.where)

    @property
    def gres(self) -> Tree:
        """The statements of gres.conf; none without it."""
        return read_tree("gres.conf", {"gres.conf": "", **self.texts}, self.where)


def sandboxed(
    conf: Configuration, nodes: Sequence[str], layout: Layout, place: Place, version: Version
) -> Dict[str, str]:
    """The files of a trial with these nodes, by their names in its configuration folder."""
    slurm, gres = conf.slurm, conf.gres
    lost = [*slurm.missing, *gres.missing]
    if lost:
        raise DevClusterError(f"{', '.join(lost)}: cannot be read here")
    known = {"gres.conf": "", **conf.texts}
    edits = [*_slurm_edits(slurm, set(nodes), place), *_gres_edits(gres, set(nodes), place)]
    edits += [_moved(line, layout) for line in (*slurm.includes, *gres.includes)]
    changed = apply({name: known[name] for name in {*slurm.files, *gres.files}}, edits)
    files = {_inside(name): text for name, text in changed.items()}
    files["slurm.conf"] = _ended(files["slurm.conf"]) + _own_settings(layout, place)
    files["gres.conf"] = (
        "AutoDetect=off\n" + _ended(files["gres.conf"]) + _found_gpus(slurm, gres, nodes, place)
    )
    files["cgroup.conf"] = cgroup_conf(version)
    files.update(_lua(conf.texts.get("gpumem_site.lua")))
    return files


def devices_needed(conf: Configuration, nodes: Sequence[str]) -> int:
    """How many device files the GPUs of these nodes need."""
    known = attributes_of(lines_of(conf.slurm.statements, "nodename"))
    counts = [
        sum(count for name, _, count in parse_gres(known.get(node, {}).get("gres", "")) if name == "gpu")
        for node in nodes
    ]
    paths = {
        path
        for statement in conf.gres.statements
        for key in ("file", "multiplefiles")
        for path in expand_names(statement.value(key) or "")
    }
    numbers = [int(match[1]) + 1 for path in paths if (match := _GPU_FILE.fullmatch(path))]
    others = sum(not _GPU_FILE.fullmatch(path) for path in paths)
    return max([*counts, *numbers], default=0) + others


def _slurm_edits(tree: Tree, nodes: set[str], place: Place) -> List[Edit]:
    sets = {
        name
        for line in lines_of(tree.statements, "nodeset")
        if "feature" in line.attributes or nodes & set(expand_names(line.attributes.get("nodes", "")))
        for name in line.names
    }
    edits: List[Edit] = []
    for statement in tree.statements:
        if statement.kind == "nodename":
            edits += _node_edits(statement, nodes, place)
        elif statement.kind == "nodeset" and statement.value("nodeset") not in sets:
            edits.append(statement.removed())
        elif statement.kind in ("partitionname", "nodeset"):
            edits += _group_edits(statement, nodes | sets)
        else:
            edits += _setting_edits(statement)
    return edits


def _node_edits(statement: Statement, nodes: set[str], place: Place) -> List[Edit]:
    edits = [edit for key in _NODE_LEAVES for edit in statement.without(key)]
    name = statement.value("nodename") or ""
    if name.upper() == "DEFAULT":
        return edits
    here = [node for node in expand_names(name) if node in nodes]
    if not here:
        return [statement.removed()]
    ports = ",".join(str(place.node_ports[node]) for node in here)
    where = (
        f" NodeHostname={place.hostname} NodeAddr=127.0.0.1 Port={ports if len(here) == 1 else f'[{ports}]'}"
    )
    return [*edits, *statement.set("NodeName", ",".join(here)), statement.appended(where)]


def _group_edits(statement: Statement, known: set[str]) -> List[Edit]:
    edits = [edit for key in _PARTITION_LEAVES for edit in statement.without(key)]
    nodes = statement.value("nodes")
    if nodes is None:
        return edits
    here = [word for word in expand_names(nodes) if word in known or word.upper() == "ALL"]
    return edits + (statement.set("Nodes", ",".join(here)) if here else statement.without("nodes"))


def _setting_edits(statement: Statement) -> List[Edit]:
    kept = [pair for pair in statement.pairs if pair.key.lower() in KEPT_SETTINGS]
    if not statement.pairs or any(pair.key.lower() in _OF_NODES for pair in statement.pairs):
        # Part of a node's or partition's line that stands alone: for Slurm to judge.
        return []
    if not kept:
        return [statement.removed()]
    edits = [
        edit
        for key in {pair.key.lower() for pair in statement.pairs} - KEPT_SETTINGS
        for edit in statement.without(key)
    ]
    for pair in kept:
        words = [word for word in pair.value.split(",") if word.strip()]
        if pair.key.lower() == "prologflags":
            edits += statement.only_words(pair.key, [word for word in words if word.lower() in _PROLOG_FLAGS])
        elif pair.key.lower() == "jobsubmitplugins":
            # Other plug-ins may be the site's own programs.
            names = [word for word in words if word.lower().replace("job_submit/", "") == "lua"]
            edits += statement.only_words(pair.key, names)
    return edits


def _gres_edits(tree: Tree, nodes: set[str], place: Place) -> List[Edit]:
    devices = _Devices(place.devices)
    edits: List[Edit] = []
    for statement in tree.statements:
        name = statement.value("nodename")
        here = [node for node in expand_names(name or "") if node in nodes]
        if (name is not None and not here) or statement.value("name") is None:
            edits.append(statement.removed())
            continue
        edits += [edit for key in _GRES_LEAVES for edit in statement.without(key)]
        if name is not None:
            edits += statement.set("NodeName", ",".join(here))
        for key in ("file", "multiplefiles"):
            value = statement.value(key)
            if value is not None:
                edits += statement.set(key, ",".join(map(devices.for_path, expand_names(value))))
    return edits


class _Devices:
    """Device files of this machine in the place of a node's, the same one for the same path."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._free = list(devices)
        self._numbered = list(devices)
        self._given: Dict[str, str] = {}

    def for_path(self, path: str) -> str:
        if path not in self._given:
            gpu = _GPU_FILE.fullmatch(path)
            wanted = self._numbered[int(gpu[1])] if gpu and int(gpu[1]) < len(self._numbered) else None
            if wanted not in self._free:
                # From the far end: GPUs keep their numbers, which jobs see in CUDA_VISIBLE_DEVICES.
                wanted = self._free[-1] if self._free else None
            if wanted is None:
                raise DevClusterError(f"{path}: this machine has too few device files to stand for GPUs")
            self._free.remove(wanted)
            self._given[path] = wanted
        return self._given[path]


def _found_gpus(slurm: Tree, gres: Tree, nodes: Sequence[str], place: Place) -> str:
    """GPUs of nodes for which gres.conf names no device: AutoDetect would find them on the node itself."""
    known = attributes_of(lines_of(slurm.statements, "nodename"))
    lines = []
    for node in nodes:
        described = any(
            (statement.value("name") or "").lower() == "gpu"
            and (statement.value("file") or statement.value("multiplefiles"))
            and node in expand_names(statement.value("nodename") or node)
            for statement in gres.statements
        )
        first = 0
        for name, kind, count in parse_gres(known.get(node, {}).get("gres", "")):
            if name == "gpu" and count and not described:
                files = ",".join(place.devices[first : first + count])
                lines.append(f"NodeName={node} Name=gpu{f' Type={kind}' if kind else ''} File={files}\n")
                first += count
    return "".join(lines)


def _own_settings(layout: Layout, place: Place) -> str:
    settings = {
        **own_settings("trial", layout, place),
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "ProctrackType": "proctrack/pgid",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _lua(site_table: Optional[str]) -> Dict[str, str]:
    """Our own plug-in, where its table is part of the configuration; never the site's own code."""
    if site_table is None:
        return {"job_submit.lua": _STUB_LUA}
    ours = {name: data_path("lua", name).read_text() for name in ("job_submit.lua", *LUA_FILES)}
    return {**ours, "gpumem_site.lua": site_table}


def _moved(include: Include, layout: Layout) -> Edit:
    statement, name = include.statement, include.statement.include or ""
    start = statement.text.rindex(name)
    # With its whole path: versions differ in where a relative one starts.
    path = str(layout.conf / _inside(include.file))
    return Edit(statement.file, statement.offsets[start], statement.offsets[start + len(name) - 1] + 1, path)


def _inside(name: str) -> str:
    """A file's name in the folder of the trial, wherever the original is."""
    return re.sub(r"^(?:\.\./)+", "", name.lstrip("/"))


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
