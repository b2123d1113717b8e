"""A configuration is tried before it is shown: harmless copies, before and after, are asked the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.devcluster import trial
from slurm_gpumem.devcluster.sandbox import Configuration
from slurm_gpumem.devcluster.trial import Answer, Trial
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.site.doctor.lua_report import try_lua
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import shares_have_types
from slurm_gpumem.site.setup.setup import Proposal
from slurm_gpumem.site.setup.slurm_conf import value_of
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf_file import attributes_of, lines_of, read_tree
from slurm_gpumem.slurm.gres import gres_word, parse_gres
from slurm_gpumem.slurm.node_names import expand_names, fold_names
from slurm_gpumem.slurm.state.nodes import Record, gives_whole_nodes, number_of

# Requests that a cluster must still meet after a change, for each partition and kind of node.


MOST_NODES = 24
"""Daemons that a trial starts at most."""


class Request(NamedTuple):
    """One request, in words and as options of sbatch."""

    what: str
    options: Tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} (sbatch {' '.join(self.options)})"


class NewRequest(NamedTuple):
    """A request for shares: it must be met after the change wherever `instead_of` is met before."""

    request: Request
    instead_of: Request


def kinds_of_nodes(nodes: Sequence[Record], wanted: Mapping[str, str]) -> Tuple[List[str], int]:
    """One node of each kind, and how many kinds were left out because there are too many."""
    first_of_kind: Dict[Tuple[str, ...], str] = {}
    for node in nodes:
        keys = ("Partitions", "CPUTot", "RealMemory", "MemSpecLimit", "Gres", "AvailableFeatures")
        kind = (*(node.get(key, "") for key in keys), wanted.get(node["NodeName"], ""))
        first_of_kind.setdefault(kind, node["NodeName"])
    # Nodes that change come first.
    chosen = sorted(first_of_kind.values(), key=lambda name: name not in wanted)
    return chosen[:MOST_NODES], max(0, len(chosen) - MOST_NODES)


def requests_of_today(nodes: Sequence[Record], gone: str) -> List[Request]:
    """What is asked before and after; shares of the kind `gone`, which the admin replaces, are left out."""
    found = []
    for node, partition, where in _places(nodes):
        cpus = node.get("CPUTot", "1")
        memory = number_of(node, "RealMemory") - number_of(node, "MemSpecLimit")
        found.append(Request(f"1 CPU in {partition}", (*where, "-n1")))
        found.append(Request(f"all CPUs of a node in {partition}", (*where, "-N1", f"-n{cpus}")))
        found.append(Request(f"all memory of a node in {partition}", (*where, f"--mem={memory}")))
        for name, kind, count in parse_gres(node.get("Gres", "")):
            if count and name != gone:
                found += [
                    Request(f"{name} in {partition}", (*where, f"--gres={word}"))
                    for word in dict.fromkeys([f"{name}:1", gres_word(name, kind, 1)])
                ]
                if name not in ("shard", "mps"):
                    # A job's shares are on one GPU, so all of a node's are more than it can have.
                    words = f"--gres={gres_word(name, kind, count)}"
                    found.append(Request(f"every {name} of a node in {partition}", (*where, words)))
    return list(dict.fromkeys(found))


def requests_for_shares(
    nodes: Sequence[Record], partitions: Sequence[Record], plan: SitePlan
) -> List[NewRequest]:
    """What must work after the change: one share, and all shares of one GPU, with and without its type."""
    whole = {part["PartitionName"] for part in partitions if gives_whole_nodes(part)}
    groups = {name: group for group in plan.groups for name in expand_names(group.nodes)}
    found = []
    for node, partition, where in _places(nodes):
        if node["NodeName"] not in groups or partition in whole:
            continue
        for gpus in groups[node["NodeName"]].gpus:
            if gpus.instance:
                continue
            gpu = Request("1 GPU", (*where, f"--gres={gres_word('gpu', gpus.gpu_type, 1)}"))
            most = plan.shares(gpus)
            words = [f"{plan.gres}:1", *(gres_word(plan.gres, gpus.gpu_type, count) for count in (1, most))]
            for word in dict.fromkeys(words):
                request = Request(f"shares of a GPU in {partition}", (*where, f"--gres={word}"))
                found.append(NewRequest(request, gpu))
    return found


def _places(nodes: Sequence[Record]) -> List[Tuple[Record, str, Tuple[str, str]]]:
    return [
        (node, partition, (f"-p{partition}", f"-w{node['NodeName']}"))
        for node in nodes
        for partition in node.get("Partitions", "").split(",")
        if partition
    ]


Answers = Dict[Request, Answer]


@dataclass(frozen=True)
class Verdict:
    """What came of a trial."""

    not_tried: str = ""
    """Why there was none, and where there could be one."""
    broken_before: bool = False
    """Whether that is because the configuration as it is now does not start either."""
    broken: Tuple[str, ...] = ()
    """What would not work any more, or not at all."""
    said: str = ""
    """What was tried, for people."""


def try_proposal(proposal: Proposal, now: Optional[Snapshot], slurm_root: Optional[Path] = None) -> Verdict:
    """Start a copy of the running configuration, then one of the proposed one, and compare their answers."""
    reason = _cannot_try(now, slurm_root)
    if now is None or reason:
        return Verdict(not_tried=reason)
    broken_lua = _lua_problems(proposal.files)
    if broken_lua:
        return Verdict(broken=broken_lua)
    plan = proposal.plan
    wanted = {node: group.nodes for group in plan.groups for node in expand_names(group.nodes)}
    lines = lines_of(read_tree("slurm.conf", now.files, now.where).statements, "nodename")
    configured = attributes_of(lines)
    names, left_out = kinds_of_nodes([n for n in now.nodes if n["NodeName"] in configured], wanted)
    nodes = [node for node in now.nodes if node["NodeName"] in names]
    today = requests_of_today(nodes, gone="shard" if plan.gres == "mps" else "mps")
    shares = requests_for_shares(nodes, now.partitions, plan)
    whole = [new.instead_of for new in shares]
    conf = {name: text for name, text in now.files.items() if not name.endswith((".lua", ".toml"))}
    try:
        with trial.started(Configuration(conf, now.where), names, slurm_root) as running:
            before = _ask(running, [*today, *whole])
    except DevClusterError as error:
        reason = f"a copy of the configuration as it is now does not start: {_reason(error)}"
        return Verdict(not_tried=f"{reason}\n--untried prints the proposal anyway", broken_before=True)
    new = {**conf, **{name: text for name, text in proposal.files.items() if _is_tried(name)}}
    try:
        with trial.started(Configuration(new, now.where), names, slurm_root) as running:
            after = _ask(running, [*today, *(new.request for new in shares)])
            wrong = _wrong_devices(running, proposal, nodes)
    except DevClusterError as error:
        return Verdict(broken=(f"Slurm does not start with it: {_reason(error)}",))
    lost = [*_lost(before, after, today), *_no_shares(before, after, shares), *wrong]
    untried = f", {left_out} kinds of nodes left out" if left_out else ""
    return Verdict(
        broken=tuple(lost),
        said=f"tried on a copy of this cluster ({fold_names(names)}, Slurm {now.version_text}{untried}): "
        f"{len(today)} requests answered as before, {len(shares)} for shares accepted",
    )


def _cannot_try(now: Optional[Snapshot], slurm_root: Optional[Path]) -> str:
    if now is None:
        return "no running cluster to compare with; run gpumem setup on its controller"
    host = (value_of(now.config, "SlurmctldHost") or "the controller").partition("(")[0]
    if "slurm.conf" not in now.files:
        return f"slurm.conf cannot be read here; run gpumem setup on {host}, as root"
    missing = [
        name
        for file in ("slurm.conf", "gres.conf")
        if file in now.files
        for name in read_tree(file, now.files, now.where).missing
    ]
    if missing:
        return f"{', '.join(missing)} cannot be read here; run gpumem setup on {host}, as root"
    try:
        found = trial.installed_version(slurm_root)
    except DevClusterError as error:
        return f"{error}\nor run gpumem setup on {host}"
    if found[:2] != now.version[:2]:
        there = f"{found[0]}.{found[1]:02d}"
        return f"slurmctld here is {there}, the cluster's is {now.version_text}; run gpumem setup on {host}"
    return ""


def _is_tried(name: str) -> bool:
    return name == "gpumem_site.lua" or not name.endswith((".lua", ".toml"))


def _ask(running: Trial, requests: Sequence[Request]) -> Answers:
    return {request: running.test_only(request.options) for request in dict.fromkeys(requests)}


def _lost(before: Answers, after: Answers, requests: Sequence[Request]) -> List[str]:
    return [
        f"works now and would not: {request}: {after[request].said}"
        for request in requests
        if before[request].accepted and not after[request].accepted
    ]


def _no_shares(before: Answers, after: Answers, requests: Sequence[NewRequest]) -> List[str]:
    return [
        f"would not work: {new.request}: {after[new.request].said}"
        for new in requests
        if before[new.instead_of].accepted and not after[new.request].accepted
    ]


def _wrong_devices(running: Trial, proposal: Proposal, nodes: Sequence[Record]) -> List[str]:
    """Shares that are on other devices than gres.conf says; it can only happen with several types."""
    groups = {name: group for group in proposal.plan.groups for name in expand_names(group.nodes)}
    found = []
    for node in nodes:
        group = groups.get(node["NodeName"])
        partition = next(filter(None, node.get("Partitions", "").split(",")), None)
        if group is None or not group.mixed or partition is None:
            continue
        typed = shares_have_types(proposal.plan, group)
        if not typed and sum(not gpus.instance for gpus in group.gpus) > 1:
            continue  # steps cannot tell them apart there
        first = 0
        for gpus in group.gpus:
            right = {str(number) for number in range(first, first + gpus.count)}
            first += gpus.count
            if gpus.instance:
                continue
            kind = gpus.gpu_type if typed else ""
            gres = gres_word(proposal.plan.gres, kind, proposal.plan.shares(gpus))
            where = (f"-p{partition}", f"-w{node['NodeName']}", "-n1", "--mem=1", f"--gres={gres}")
            given = running.devices(where) or "none"
            if given not in right:
                found.append(
                    f"--gres={gres} on {node['NodeName']} got GPU {given}, not one of {gpus.gpu_type}"
                )
    return found


def _lua_problems(files: Mapping[str, str]) -> Tuple[str, ...]:
    """Why the proposed Lua files do not load; the site's own is compiled and never run."""
    if "job_submit.lua" not in files:
        return ()
    with tempfile.TemporaryDirectory(prefix="gpumem-lua-") as folder:
        for name, text in files.items():
            if name.endswith(".lua"):
                Path(folder, name).write_text(text, encoding="utf-8", errors="surrogateescape")
        report = try_lua(Path(folder))
    broken = report.broken if report else ()
    return tuple(f"{name} does not load: {why.replace(f'{folder}/', '')}" for name, why in broken)


def _reason(error: DevClusterError) -> str:
    """The line of a daemon's log that says why, or all that is known."""
    lines = str(error).splitlines()
    fatal = [line.partition("fatal: ")[2] for line in lines if "fatal: " in line]
    return f"{lines[0]} {fatal[0]}" if fatal else "\n".join(lines)
