"""From what is known of a site to the files that make its GPUs shared; writes nothing of the site's own."""

from __future__ import annotations

import difflib
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import RESERVE_MIB
from slurm_gpumem.site import nodes as site_nodes
from slurm_gpumem.site.nodes import ContextOf, MemoryOf, NodeGroup
from slurm_gpumem.site.plan import SitePlan
from slurm_gpumem.site.render import gres_lines, lua_table, node_gres, toml_file
from slurm_gpumem.site.slurm_conf import (
    RECOVERY_HOOK,
    edit_slurm_conf,
    running_as_conf,
    value_of,
    wanted_settings,
)
from slurm_gpumem.site.snapshot import Snapshot

LUA_FILES = ("gpumem.lua", "gpumem_read.lua", "gpumem_line.lua")
_SUBMIT = re.compile(r"^function\s+slurm_job_submit\s*\(\s*(\w+)\s*,\s*(\w+)[^)]*\)[ \t]*$", re.MULTILINE)
_LOAD = (
    'local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "/etc/slurm/"  -- gpumem\n'
    'local loaded, gpumem = pcall(dofile, here .. "gpumem.lua")  -- gpumem\n'
    'if not loaded then slurm.log_error("%s", "gpumem: " .. tostring(gpumem)) end  -- gpumem\n'
)


@dataclass(frozen=True)
class SetupOptions:
    """What the admin asked `gpumem setup` for."""

    gpus: Tuple[str, ...] = ()
    gres: str = "shard"
    mode: str = "opt-in"
    shard_mib: int = 1024
    reserve_mib: Optional[int] = None
    """None: RESERVE_MIB, and GPUs that are divided already stay as they are."""
    mps_per_gpu: int = 100


@dataclass(frozen=True)
class Proposal:
    """Files as they should be, as they are, and what the admin must know besides."""

    plan: SitePlan
    files: Mapping[str, str]
    current: Mapping[str, str]
    notes: Tuple[str, ...]

    def diff(self) -> str:
        """A unified diff from what is there to what is proposed; "" when nothing is to change."""
        parts: List[str] = []
        for name, text in self.files.items():
            now = self.current.get(name)
            if now == text or name in LUA_FILES:
                continue
            parts += difflib.unified_diff(
                (now or "").splitlines(keepends=True),
                text.splitlines(keepends=True),
                fromfile=name if now is not None else "/dev/null",
                tofile=name,
                n=1,
            )
        return "".join(parts)


def propose(
    options: SetupOptions,
    snapshot: Optional[Snapshot],
    memory_of: MemoryOf,
    context_of: Optional[ContextOf] = None,
) -> Proposal:
    """The proposal for this site; `snapshot` is None where no Slurm is running."""
    running = snapshot.config if snapshot else {}
    plan = SitePlan(
        groups=_with_contexts(_groups(options, snapshot, memory_of), context_of),
        gres=options.gres,
        mode=options.mode,
        shard_mib=options.shard_mib,
        reserve_mib=RESERVE_MIB if options.reserve_mib is None else options.reserve_mib,
        mps_per_gpu=options.mps_per_gpu,
        partitions=tuple(part["PartitionName"] for part in snapshot.partitions) if snapshot else (),
        default_partition=_default_partition(snapshot),
        version=snapshot.version if snapshot else None,
    )
    notes: List[str] = []
    if options.reserve_mib is None and any(
        gpus.shares and gpus.memory_mib - plan.usable_mib(gpus) < RESERVE_MIB
        for group in plan.groups
        for gpus in group.gpus
    ):
        notes.append(
            "the shares in use leave little or nothing for the driver and MPS servers; --reserve 1G does"
        )
    current = dict(snapshot.files) if snapshot else {}
    files = {
        "slurm.conf": _slurm_conf(plan, running, current, snapshot, notes),
        "gres.conf": _gres_conf(plan, current, snapshot),
        "job_submit.lua": _job_submit(current.get("job_submit.lua"), notes),
        "gpumem_site.lua": lua_table(plan),
        "gpumem.toml": toml_file(plan, current.get("gpumem.toml", "")),
        **{name: data_path("lua", name).read_text() for name in LUA_FILES},
    }
    notes += _recovery_notes(running)
    return Proposal(plan, files, current, tuple(notes))


def _recovery_notes(running: Mapping[str, str]) -> List[str]:
    """The lines that let a job come back after out of memory: the site's to add, with the node's hooks."""
    hook = value_of(running, "EpilogSlurmctld")
    if hook is not None and hook.endswith(RECOVERY_HOOK):
        return []
    chain = "" if hook is None else f", and next_epilog_slurmctld={hook} in hooks.conf beside it"
    return [
        f"for jobs to come back after out of memory: EpilogSlurmctld=/etc/slurm/gpumem/{RECOVERY_HOOK} and "
        f"TaskEpilog=/etc/slurm/gpumem/task_epilog.sh{chain} (docs/admin/recovery.md)"
    ]


def write_files(proposal: Proposal, folder: Path) -> None:
    """All proposed files into a fresh folder; an existing one must be empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder}: is there already; --output wants a fresh folder, so that nothing is overwritten"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in proposal.files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def _groups(
    options: SetupOptions, snapshot: Optional[Snapshot], memory_of: MemoryOf
) -> Tuple[NodeGroup, ...]:
    here = socket.gethostname().partition(".")[0]
    known = snapshot.nodes if snapshot else ()
    if options.gpus:
        described = site_nodes.parse_descriptions(options.gpus, here)
        return tuple(
            site_nodes.with_host(group, known, site_nodes.expand_names(group.nodes)) for group in described
        )
    if any("gpu" in node.get("Gres", "") for node in known):
        groups = site_nodes.ask_cluster(known, memory_of, options.gres, options.shard_mib)
        if options.reserve_mib is None:
            return groups
        return tuple(
            replace(group, gpus=tuple(replace(gpus, shares=0) for gpus in group.gpus)) for group in groups
        )
    found = site_nodes.ask_nvidia_smi(here)
    if found is None:
        raise UsageError(
            "no GPU found: neither nvidia-smi here nor the running cluster names one.\n"
            "Describe the nodes: gpumem setup --gpu 'n[1-4]=a100:4:40G'"
        )
    return (site_nodes.with_host(found, known, [found.nodes]),)


def _with_contexts(groups: Tuple[NodeGroup, ...], context_of: Optional[ContextOf]) -> Tuple[NodeGroup, ...]:
    if context_of is None:
        return groups
    return tuple(
        replace(
            group,
            gpus=tuple(
                replace(gpus, context=context_of(gpus.gpu_type, gpus.memory_mib)) for gpus in group.gpus
            ),
        )
        for group in groups
    )


def _default_partition(snapshot: Optional[Snapshot]) -> Optional[str]:
    partitions = snapshot.partitions if snapshot else ()
    return next((part["PartitionName"] for part in partitions if part.get("Default") == "YES"), None)


def _slurm_conf(
    plan: SitePlan,
    running: Mapping[str, str],
    current: Dict[str, str],
    snapshot: Optional[Snapshot],
    notes: List[str],
) -> str:
    settings = wanted_settings(running, plan, snapshot.partitions if snapshot else ())
    gres = {
        node: node_gres(plan, group) for group in plan.groups for node in site_nodes.expand_names(group.nodes)
    }
    other = "shard" if plan.gres == "mps" else "mps"
    strays = [
        node["NodeName"]
        for node in (snapshot.nodes if snapshot else ())
        if node["NodeName"] not in gres and f"{other}:" in node.get("Gres", "")
    ]
    if strays:
        notes.append(
            f"{site_nodes.fold_names(strays)}: has {other}; a cluster has one of the two, so name these too"
        )
    if snapshot and "slurm.conf" not in current:
        notes.append("slurm.conf cannot be read here: the diff is against what the controller says")
        now = {node["NodeName"]: node.get("Gres", "") for node in snapshot.nodes if node["NodeName"] in gres}
        current["slurm.conf"] = running_as_conf(running, list(settings), now)
    text = current.get("slurm.conf")
    if text is None:
        text = "".join(f"NodeName={group.nodes} Gres={node_gres(plan, group)}\n" for group in plan.groups)
        notes.append("no Slurm is running here: the slurm.conf lines are those to add to yours")
    edit = edit_slurm_conf(text, settings, gres)
    notes += edit.notes
    changed = [key for key in ("SelectType", "GresTypes") if key in settings]
    if changed and snapshot:
        notes.append(
            f"{' and '.join(changed)}: slurmctld and every slurmd must be restarted, not only reconfigured"
        )
    return edit.text


def _gres_conf(plan: SitePlan, current: Mapping[str, str], snapshot: Optional[Snapshot]) -> str:
    now = {node["NodeName"]: node.get("Gres", "") for node in snapshot.nodes} if snapshot else {}
    wanted = {
        node: node_gres(plan, group) for group in plan.groups for node in site_nodes.expand_names(group.nodes)
    }
    if "gres.conf" in current and all(_same_gres(now.get(node, ""), words) for node, words in wanted.items()):
        return current["gres.conf"]
    lines = (current.get("gres.conf") or "").splitlines()
    kept = [line for line in lines if not re.search(r"(?i)\bName=(shard|mps)\b", line)]
    has_gpus = any(re.search(r"(?i)\bName=gpu\b|^\s*AutoDetect=(?!off)", line) for line in kept)
    ours = gres_lines(plan, with_gpus=not has_gpus)
    return "\n".join([*kept, *ours, ""])


def _same_gres(running: str, wanted: str) -> bool:
    """Whether a node already has these words, whatever sockets or other gres it names besides."""
    return set(wanted.split(",")) <= set(re.sub(r"\([^)]*\)", "", running).split(","))


def _job_submit(text: Optional[str], notes: List[str]) -> str:
    """The site's own job_submit.lua with our lines in it, or our example where it has none."""
    if text is None:
        return data_path("lua", "job_submit.lua").read_text()
    if "gpumem" in text:
        return text
    match = _SUBMIT.search(text)
    if match is None:
        notes.append("job_submit.lua: no `function slurm_job_submit(` found; put in the marked lines by hand")
        return text
    call = f"\n  pcall(function() gpumem.job_submit({match[1]}, {match[2]}) end)  -- gpumem"
    return _LOAD + text[: match.end()] + call + text[match.end() :]


def summary_lines(plan: SitePlan) -> Sequence[str]:
    """The plan for people: one line for each kind of node."""
    lines = []
    unit = "mps units" if plan.gres == "mps" else "shards"
    for group in plan.groups:
        for gpus in group.gpus:
            size = plan.usable_mib(gpus) // plan.shares(gpus)
            lines.append(
                f"{group.nodes}: {gpus.count} x {gpus.gpu_type or 'gpu'}, each {plan.shares(gpus)} {unit} "
                f"of {size} MiB ({gpus.memory_mib - plan.usable_mib(gpus)} MiB kept back)"
            )
    return lines
