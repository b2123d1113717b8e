"""From what is known of a site to the files that make its GPUs shared; writes nothing of the site's own."""

from __future__ import annotations

import difflib
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import LUA_FILES, data_path
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import RESERVE_MIB
from slurm_gpumem.site import nodes as site_nodes
from slurm_gpumem.site import queue_order
from slurm_gpumem.site.doctor.check_hooks import FILTER_PLUGIN, LUA_PLUGIN
from slurm_gpumem.site.nodes import GpuGroup, MemoryOf, NodeGroup
from slurm_gpumem.site.queue_order import flow_settings, has_patience
from slurm_gpumem.site.setup.conf_edit import (
    Change,
    edit_gres_conf,
    edit_slurm_conf,
    in_device_order,
    refuse_pending_edits,
    same_gres,
)
from slurm_gpumem.site.setup.hook_files import contents, hook_files, named, parts_among
from slurm_gpumem.site.setup.lua_files import (
    CONFIGLESS_NOTE,
    FILTER_FILE,
    filter_files,
    is_configless,
    is_in_place,
    with_our_lines,
)
from slurm_gpumem.site.setup.plan import PACK, SPREAD, SPREAD_WORD, SPREADING, SitePlan
from slurm_gpumem.site.setup.render import how_shared, lua_table, node_gres, toml_file
from slurm_gpumem.site.setup.setup_notes import (
    HOOKS_NOTE,
    has_lua_plugin,
    hook_settings,
    instance_notes,
    left_out_notes,
    level_notes,
    memory_notes,
    missing_plugin_note,
    recovery_notes,
    restart_notes,
    time_limit_notes,
)
from slurm_gpumem.site.setup.shard_size import (
    NEW_SITE_ACTIVITY,
    ShardSize,
    shard_notes,
    shard_size,
    unknown_share,
)
from slurm_gpumem.site.setup.slurm_conf import (
    LEAST_LOADED,
    level_partitions,
    partition_memory,
    running_as_conf,
    wanted_settings,
    words_of,
)
from slurm_gpumem.site.snapshot import Snapshot, cloud_notes
from slurm_gpumem.slurm.conf_file import Where
from slurm_gpumem.slurm.node_names import expand_names, fold_names

HOOKS = "gpumem"
"""The folder of the hooks beside slurm.conf."""


@dataclass(frozen=True)
class SetupOptions:
    """What the admin asked `gpumem setup` for."""

    gpus: Tuple[str, ...] = ()
    gres: Optional[str] = None
    """None: what the cluster divides its GPUs by already, else shards."""
    mode: Optional[str] = None
    """None: what gpumem.toml says, else opt-in."""
    shard_mib: Optional[int] = None
    """None: what gpumem.toml says or the cluster's shards come to, else 1 GiB."""
    reserve_mib: Optional[int] = None
    """None: RESERVE_MIB, and GPUs that are divided already stay as they are."""
    mps_per_gpu: int = 100
    placement: Optional[str] = None
    """None: SPREAD where Slurm's version has it, else PACK."""
    slurm_root: Optional[Path] = None
    """Where the cluster's Slurm is, when that is not this machine's own."""
    cli_filter: bool = True
    """Whether plain sbatch, srun and salloc are to ask for shares."""
    mps: Optional[str] = None
    """None: what gpumem.toml says, of a new site a server for each user."""
    partitions: Tuple[str, ...] = ()
    """Which share; empty: all."""
    hooks: bool = False
    """Whether slurm.conf is to run the nodes' hooks."""
    applies: bool = False
    """Whether the files are put in place in their order, and not by hand."""


@dataclass(frozen=True)
class Proposal:
    """Files as they should be, as they are, and what the admin must know besides."""

    plan: SitePlan
    files: Mapping[str, str]
    """By their names in the folder of slurm.conf; with their whole path where they are elsewhere."""
    current: Mapping[str, str]
    notes: Tuple[str, ...]
    hooks: Mapping[str, str]
    """The nodes' hooks, by their names in their own folder."""
    parts: FrozenSet[str] = frozenset()
    """Files that are not whole, because the site's own could not be read."""
    waits_for: str = ""
    """The mode that is written once Slurm has shares."""

    def changes(self) -> Dict[str, str]:
        """The files that are not as they should be."""
        return {name: text for name, text in self.files.items() if self.current.get(name) != text}

    def diff(self) -> str:
        """A unified diff from what is there to what is proposed; "" when nothing is to change."""
        parts: List[str] = []
        for name, text in self.changes().items():
            now = self.current.get(name)
            if name in (*LUA_FILES, FILTER_FILE):
                continue
            parts += difflib.unified_diff(
                (now or "").splitlines(keepends=True),
                text.splitlines(keepends=True),
                fromfile=name if now is not None else "/dev/null",
                tofile=named(name, self.parts),
                n=1,
            )
        # Bytes that are not UTF-8 stay in the files; a terminal cannot show them.
        return "".join(parts).encode(errors="replace").decode()


def propose(options: SetupOptions, snapshot: Optional[Snapshot], memory_of: MemoryOf) -> Proposal:
    """The proposal for this site; `snapshot` is None where no Slurm is running."""
    if snapshot is not None:
        refuse_pending_edits(snapshot)
    shared = snapshot.shared_nodes() if snapshot else ()
    running = {**snapshot.config, "CliFilterPlugins": ",".join(snapshot.cli_filters)} if snapshot else {}
    current = dict(snapshot.files) if snapshot else {}
    where = snapshot.where if snapshot else Where()
    gres = options.gres or _gres_in_use(snapshot)
    size = shard_size(options.shard_mib, snapshot, memory_of)
    groups = _in_partitions(_groups(options, gres, size, snapshot, memory_of), options, snapshot)
    wanted = options.mode or (snapshot.policy.get("mode") if snapshot else None) or "opt-in"
    # A job that asks for shares before slurmctld knows of them is refused.
    waits_for = wanted if options.applies and snapshot and not shared and wanted != "observe" else ""
    plan = SitePlan(
        groups=in_device_order(groups, current, where),
        gres=gres,
        mode="observe" if waits_for else wanted,
        mps=options.mps,
        shared=() if waits_for else options.partitions,
        shard_mib=size.wanted_mib,
        reserve_mib=RESERVE_MIB if options.reserve_mib is None else options.reserve_mib,
        mps_per_gpu=options.mps_per_gpu,
        partitions=tuple(part["PartitionName"] for part in snapshot.partitions) if snapshot else (),
        default_partition=_default_partition(snapshot),
        version=snapshot.version if snapshot else None,
        placement=_placement(options.placement, snapshot),
    )
    plan = replace(plan, level=_is_level(plan, snapshot))
    tables = snapshot.tables if snapshot and current.get("gpumem.toml", "").strip() else None
    active = NEW_SITE_ACTIVITY if tables is None else tables.get("sharing", {}).get("unknown_activity")
    plan = replace(plan, unknown_share=unknown_share(how_shared(plan, tables), active))
    # To estimate and record, whole GPUs are enough: the filter's line is all that slurm.conf gets.
    if snapshot and wanted == "observe" and not shared and not options.gpus:
        return _observing(plan, options, snapshot, running, current)
    notes = shard_notes(plan, size, snapshot.nodes if snapshot else ())
    notes += cloud_notes(snapshot) if snapshot else []
    notes += instance_notes(plan)
    notes += time_limit_notes(plan, snapshot.partitions) if snapshot else []
    notes += left_out_notes(_wanted_gres(plan), snapshot.nodes) if snapshot else []
    if plan.placement == SPREAD and snapshot is None:
        notes.append(f"{SPREAD_WORD} stops every command and daemon of a Slurm before 23.11")
    if options.reserve_mib is None and any(
        gpus.shares and gpus.memory_mib - plan.usable_mib(gpus) < RESERVE_MIB
        for group in plan.groups
        for gpus in group.gpus
    ):
        notes.append(
            "the shares in use leave little or nothing for the driver and MPS servers; --reserve 1G does"
        )
    plugins = ["JobSubmitPlugins"] if _has_lua(running, options, "JobSubmitPlugins", LUA_PLUGIN) else []
    lua = bool(plugins)
    filters, words = _filter(options, running, current, notes)
    plugins += words
    if options.hooks:
        notes.append(HOOKS_NOTE)
    files = {
        **_slurm_conf(plan, running, current, snapshot, plugins, notes, hooks=options.hooks),
        **_gres_conf(plan, current, snapshot, notes),
        "gpumem.toml": toml_file(plan, current.get("gpumem.toml", "")),
    }
    if lua:
        files["job_submit.lua"] = with_our_lines(
            "job_submit.lua", current, "JobSubmitPlugins", running, notes
        )
        files["gpumem_site.lua"] = lua_table(plan)
        files.update({name: data_path("lua", name).read_text() for name in LUA_FILES})
    else:
        notes.append(missing_plugin_note(running))
    files.update(filters)
    notes += [f"{name}: copy it from DIR{name}" for name in files if Path(name).is_absolute()]
    notes += recovery_notes(running)
    hooks = hook_files(running)
    return Proposal(plan, files, current, tuple(notes), hooks, parts_among(snapshot), waits_for)


def _observing(
    plan: SitePlan,
    options: SetupOptions,
    snapshot: Snapshot,
    running: Mapping[str, str],
    current: Dict[str, str],
) -> Proposal:
    """What a site with whole GPUs needs to have its jobs estimated and recorded: no daemon is concerned."""
    notes: List[str] = []
    filters, plugins = _filter(options, running, current, notes)
    now = words_of(running, "CliFilterPlugins")
    settings = {key: ",".join([*now, "lua"]) for key in plugins if "lua" not in now}
    if options.hooks:
        settings.update(hook_settings(running))
        notes += [HOOKS_NOTE, *recovery_notes(running)]
    if "slurm.conf" not in current:
        current["slurm.conf"] = running_as_conf(running, list(settings), {}, [])
    files = {
        **edit_slurm_conf(current, Change(settings, {}, {}), snapshot.where),
        "gpumem.toml": toml_file(plan, current.get("gpumem.toml", "")),
        **filters,
    }
    plan = replace(plan, groups=())
    return Proposal(plan, files, current, tuple(notes), hook_files(running), parts_among(snapshot))


def _filter(
    options: SetupOptions, running: Mapping[str, str], current: Mapping[str, str], notes: List[str]
) -> Tuple[Mapping[str, str], Sequence[str]]:
    """The filter's files, and the key of slurm.conf that names it once they are in place."""
    if not options.cli_filter:
        return {}, []
    if is_configless(running):
        notes.append(CONFIGLESS_NOTE)
        return {}, []
    if not _has_lua(running, options, "CliFilterPlugins", FILTER_PLUGIN):
        notes.append(missing_plugin_note(running, FILTER_PLUGIN))
        return {}, []
    files = filter_files(current, running, notes, applies=options.applies)
    ready = is_in_place({**current, **files} if options.applies else current)
    return files, ["CliFilterPlugins"] if ready else []


def _has_lua(running: Mapping[str, str], options: SetupOptions, key: str, plugin: str) -> bool:
    return has_lua_plugin(running, options.slurm_root, plugin) is not False or "lua" in words_of(running, key)


def _gres_in_use(snapshot: Optional[Snapshot]) -> str:
    """ "mps" where the cluster divides its GPUs by that already: its jobs ask for it."""
    now = " ".join(node.get("Gres", "") for node in snapshot.nodes) if snapshot else ""
    return "mps" if "mps:" in now and "shard:" not in now else "shard"


def _placement(asked: Optional[str], snapshot: Optional[Snapshot]) -> str:
    """What was asked for, else spread where this Slurm can; UsageError where it cannot do what was asked."""
    can_spread = snapshot is not None and snapshot.version >= SPREADING
    if asked == SPREAD and snapshot is not None and not can_spread:
        raise UsageError(
            f"--placement spread needs {SPREAD_WORD}, which Slurm {snapshot.version_text} does not have "
            "(23.11 and later do): shares fill one GPU after the other there. `gpumem docs placement` says "
            "what helps"
        )
    return asked or (SPREAD if can_spread else PACK)


def _is_level(plan: SitePlan, snapshot: Optional[Snapshot]) -> bool:
    """Whether idle GPUs come first on all nodes together, with what is proposed."""
    if snapshot is None or not plan.idle_first:
        return plan.idle_first and sum(len(expand_names(group.nodes)) for group in plan.groups) == 1
    return not level_partitions(snapshot.config, plan, snapshot.partitions, snapshot.nodes).uneven


def write_files(proposal: Proposal, folder: Path) -> None:
    """All proposed files into a fresh folder; an existing one must be empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder}: is there already; --output wants a fresh folder, so that nothing is overwritten"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents(proposal.files, proposal.parts).items():
            path = folder / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
        hooks = folder / HOOKS
        hooks.mkdir(exist_ok=True)
        for name, text in proposal.hooks.items():
            (hooks / name).write_text(text)
            (hooks / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def _groups(
    options: SetupOptions, gres: str, size: ShardSize, snapshot: Optional[Snapshot], memory_of: MemoryOf
) -> Tuple[NodeGroup, ...]:
    here = socket.gethostname().partition(".")[0]
    known = snapshot.nodes if snapshot else ()
    if options.gpus:
        described = site_nodes.parse_descriptions(options.gpus, here)
        return tuple(site_nodes.with_host(group, known, expand_names(group.nodes)) for group in described)
    if any("gpu" in node.get("Gres", "") for node in known):
        groups = site_nodes.ask_cluster(known, memory_of, gres, size.now_mib)
        if options.reserve_mib is None and not size.changes:
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


def _in_partitions(
    groups: Tuple[NodeGroup, ...], options: SetupOptions, snapshot: Optional[Snapshot]
) -> Tuple[NodeGroup, ...]:
    """The nodes of the partitions that are to share."""
    if not options.partitions or snapshot is None:
        return groups
    for name in options.partitions:
        if not any(name in group.partitions for group in groups):
            known = sorted({part for group in groups for part in group.partitions})
            raise UsageError(f"--partition {name}: has no GPU; partitions with GPUs: {', '.join(known)}")
    return tuple(group for group in groups if set(group.partitions) & set(options.partitions))


def _default_partition(snapshot: Optional[Snapshot]) -> Optional[str]:
    partitions = snapshot.partitions if snapshot else ()
    return next((part["PartitionName"] for part in partitions if part.get("Default") == "YES"), None)


def _slurm_conf(
    plan: SitePlan,
    running: Mapping[str, str],
    current: Dict[str, str],
    snapshot: Optional[Snapshot],
    lua_plugins: Sequence[str],
    notes: List[str],
    *,
    hooks: bool = False,
) -> Mapping[str, str]:
    gres = _wanted_gres(plan)
    known = snapshot.nodes if snapshot else ()
    other = "shard" if plan.gres == "mps" else "mps"
    replaced = [node["NodeName"] for node in known if f"{other}:" in node.get("Gres", "")]
    strays = [node for node in replaced if node not in gres]
    if len(strays) < len(replaced):
        changed = fold_names([node for node in replaced if node in gres])
        notes.append(
            f"{changed}: {other} becomes {plan.gres}; jobs that ask for {other} will be refused there"
        )
    settings = wanted_settings(running, plan, lua_plugins=lua_plugins, both=bool(strays))
    settings.update(hook_settings(running) if hooks else {})
    partitions = snapshot.partitions if snapshot else ()
    memory = partition_memory(running, settings, plan, partitions, known)
    notes += memory_notes(memory, set(gres), known)
    level = level_partitions(running, plan, partitions, known).wanted if plan.idle_first else ()
    notes += level_notes(level)
    wanted: Dict[str, Dict[str, object]] = {name: dict(values) for name, values in memory.items()}
    for name in level:
        wanted.setdefault(name, {}).update(LEAST_LOADED)
    if snapshot:
        flow = flow_settings(running, partitions)
        # It counts for the whole cluster, so it is in the diff only where all of it is shared.
        if flow and set(gres).issuperset(node["NodeName"] for node in known):
            settings.update(flow)
        elif not has_patience(running):
            notes.append(queue_order.NOTE)
    if snapshot and "slurm.conf" not in current:
        notes.append("slurm.conf cannot be read here: the diff is against what the controller says")
        now = {node["NodeName"]: node.get("Gres", "") for node in known if node["NodeName"] in gres}
        current["slurm.conf"] = running_as_conf(running, list(settings), now, list(wanted))
    if "slurm.conf" in current:
        texts: Mapping[str, str] = current
    else:
        lines = [f"NodeName={group.nodes} Gres={node_gres(plan, group)}\n" for group in plan.groups]
        texts = {"slurm.conf": "".join(lines)}
        notes.append(
            "no Slurm answers here: these are lines to add to the site's own files, not whole files. "
            "gpumem setup as root where slurmctld runs proposes whole ones"
        )
    where = snapshot.where if snapshot else Where()
    if snapshot:
        notes += restart_notes(running, settings)
    return edit_slurm_conf(texts, Change(settings, gres, wanted), where)


def _wanted_gres(plan: SitePlan) -> Dict[str, str]:
    return {node: node_gres(plan, group) for group in plan.groups for node in expand_names(group.nodes)}


def _gres_conf(
    plan: SitePlan, current: Mapping[str, str], snapshot: Optional[Snapshot], notes: List[str]
) -> Mapping[str, str]:
    now = {node["NodeName"]: node.get("Gres", "") for node in snapshot.nodes} if snapshot else {}
    same = all(same_gres(now.get(node, ""), words) for node, words in _wanted_gres(plan).items())
    if "gres.conf" in current and same:
        return {"gres.conf": current["gres.conf"]}
    if snapshot and "gres.conf" not in current:
        notes.append(
            "gres.conf is not on this host: compare File= with the nodes' own, which may have other numbers"
        )
    return edit_gres_conf(plan, current, snapshot.where if snapshot else Where(), now)


def summary_lines(plan: SitePlan) -> Sequence[str]:
    """The plan for people: one line for each kind of node."""
    if not plan.groups:
        return ["observe: jobs are estimated and recorded, none is changed; GPUs stay whole"]
    lines = []
    unit = "mps units" if plan.gres == "mps" else "shards"
    for group in plan.groups:
        for gpus in group.gpus:
            lines.append(
                f"{group.nodes}: {gpus.count} x {gpus.gpu_type or 'gpu'}, {_division(plan, gpus, unit)}"
            )
    where = "the GPU with the most free" if plan.placement == SPREAD else "the first GPU with enough"
    lines.append(f"placement: {plan.placement}: a job's {unit} are on {where}")
    return lines


def _division(plan: SitePlan, gpus: GpuGroup, unit: str) -> str:
    if gpus.instance:
        return f"MIG instances of {gpus.memory_mib} MiB, each for one job"
    used, shares = plan.usable_mib(gpus), plan.shares(gpus)
    rest = max(0, gpus.memory_mib - used)
    return f"each {shares} {unit} of {used // shares} MiB ({rest} MiB kept back)"
