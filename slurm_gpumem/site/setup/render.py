"""The plan as text: gres.conf lines, a node's Gres=, the Lua site table, gpumem.toml."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.site.nodes import NodeGroup
from slurm_gpumem.site.setup.plan import LEVEL, ONE_SERVER, PACK, PER_USER, SPREAD, SitePlan
from slurm_gpumem.slurm.gres import gres_word
from slurm_gpumem.slurm.state.nodes import SHARES_WITHOUT_TYPE_BESIDE_INSTANCES

_RECOVERY = """\
[recovery]  # of jobs that run out of GPU memory; gpumem docs recovery
ladder = ["need+25%", "whole-gpu"]  # or ["whole-gpu"]
"""
MEAN_COMPLETION_S = {ONE_SERVER: 58, PER_USER: 89, "exclusive": 160}
"""Of 14 jobs of three users, measured on an H200 (lab/docs/sharing.md)."""
_GAIN = "Mean completion {0} s, on whole GPUs {exclusive} s."
WAYS_TO_SHARE = {
    PER_USER: (
        f"an MPS server for each user. {_GAIN.format(MEAN_COMPLETION_S[PER_USER], **MEAN_COMPLETION_S)}",
        "A fault stays with its user's jobs; busy jobs of different users take turns.",
    ),
    ONE_SERVER: (
        f"one MPS server for all users. {_GAIN.format(MEAN_COMPLETION_S[ONE_SERVER], **MEAN_COMPLETION_S)}",
        "A CUDA fault, or a job killed hard, ends all users' jobs on its GPU; they run again once.",
    ),
}
"""By [node] mps, what it is and gains, and what it risks: in gpumem.toml, and where setup asks."""
_NODE = """\
[node]
{ways}
mps = "{mps}"  # gpumem docs sharing-modes

"""
_SLOWDOWN = """\
# How many times as long a step may take beside other jobs as alone, as predicted. With {limit:g} jobs end
# in the mean at no load later than with whole GPUs, where {way}
# (simulated: gpumem docs sharing). It can differ by partition:
# [sharing.partition.NAME]
max_slowdown = {limit:g}
# A job with memory by hand, of which no run was measured, is taken to keep a GPU half busy, about
# what usual training jobs do. Without this line its memory alone decides, and it slows others down.
unknown_activity = 0.5
"""
_LIMITS = {
    LEVEL: (3.5, "shares go to idle GPUs first"),
    SPREAD: (2.0, "shares fill nodes in order"),
    PACK: (1.25, "shares fill GPUs in order"),
}
"""By how shares are placed: `python -m lab.score.loads` prints what limits do."""
_WRITTEN = "# Written by `gpumem setup`. Users may override [job] defaults in ~/.config/gpumem.toml."
_SHARING = re.compile(r"\[\s*sharing\s*\]")


def node_gres(plan: SitePlan, group: NodeGroup) -> str:
    """The value of Gres= in slurm.conf: whole GPUs and their shares, both with their type.

    The type on the shares matters: without it 22.05 refuses every srun step of a job that
    asked for a typed share.
    """
    whole = [gres_word("gpu", gpus.gpu_type, gpus.count) for gpus in group.gpus]
    divided = [gpus for gpus in group.gpus if not gpus.instance]
    shared = [gres_word(plan.gres, gpus.gpu_type, gpus.count * plan.shares(gpus)) for gpus in divided]
    if shared and not shares_have_types(plan, group):
        shared = [gres_word(plan.gres, "", sum(gpus.count * plan.shares(gpus) for gpus in divided))]
    return ",".join([*whole, *shared])


def shares_have_types(plan: SitePlan, group: NodeGroup) -> bool:
    """Whether the node's shares have a type in Gres=: without one, no srun in a job of typed shares works."""
    newer = plan.version is None or plan.version >= SHARES_WITHOUT_TYPE_BESIDE_INSTANCES
    return not newer or not any(gpus.instance for gpus in group.gpus)


def gres_lines(plan: SitePlan, *, with_gpus: bool) -> List[str]:
    """Lines of gres.conf; `with_gpus` for sites that have none for the GPUs themselves yet."""
    lines = []
    for group in plan.groups:
        first = 0
        for gpus in group.gpus:
            kind = f" Type={gpus.gpu_type}" if gpus.gpu_type else ""
            if gpus.instance:
                head = f"NodeName={group.nodes} Name=gpu{kind}"
                lines += [f"{head} MultipleFiles={files}" for files in gpus.files if with_gpus]
                continue
            if with_gpus:
                files = ",".join(gpus.files) or _files(first, gpus.count)
                lines.append(f"NodeName={group.nodes} Name=gpu{kind} File={files}")
            first += gpus.count
        first = 0
        for gpus in group.gpus:
            if gpus.instance:
                continue
            kind = f" Type={gpus.gpu_type}" if gpus.gpu_type else ""
            head = f"NodeName={group.nodes} Name={plan.gres}{kind}"
            if group.mixed:
                # slurmd refuses several kinds of shares without the GPU that each belongs to.
                files_of = gpus.files or [_files(first + index, 1) for index in range(gpus.count)]
                lines += [f"{head} Count={plan.shares(gpus)} File={file}" for file in files_of]
            else:
                lines.append(f"{head} Count={gpus.count * plan.shares(gpus)}")
            first += gpus.count
    return lines


def lua_table(plan: SitePlan) -> str:
    """gpumem_site.lua: what the job_submit plug-in must know of the site; its mode is in gpumem.toml."""
    lines = [
        "-- Written by `gpumem setup`; read with job_submit.lua: `touch` that after a change.",
        "return {",
        "  schema = 1,",
        f"  gres = {_lua(plan.gres)},",
        f"  shard_mib = {plan.shard_mib},",
        f"  separator = {_lua(plan.separator)},",
        f"  min_host_mib = {SharingPolicy().min_host_mib},",
    ]
    if plan.unknown_share:
        lines.append(f"  unknown_share = {plan.unknown_share}, -- of a GPU, for jobs of unknown activity")
    if plan.default_partition:
        lines.append(f"  default_partition = {_lua(plan.default_partition)},")
    lines.append("  partitions = {")
    for name in plan.partitions or ("*",):
        inside = [group for group in plan.groups if not plan.partitions or name in group.partitions]
        entries = [entry for group in inside for entry in _lua_gpus(plan, group)]
        entries = list(dict.fromkeys(entries))
        if entries:
            lines += [f"    [{_lua(name)}] = {{", *(f"      {entry}," for entry in entries), "    },"]
        else:
            lines.append(f"    [{_lua(name)}] = {{}},")
    return "\n".join([*lines, "  },", *_lua_instances(plan), "}", ""])


class HowShared(NamedTuple):
    """How a site's jobs share GPUs: `[node] mps`, how Slurm places shares, `max_slowdown`."""

    mps: str
    placement: str
    limit: Optional[float]


def new_site(placement: str, mps: Optional[str] = None) -> HowShared:
    """What is written for a site without a gpumem.toml."""
    limit = _LIMITS[placement][0]
    # Strangers' faults end no job unless the site has said so.
    return HowShared(mps or PER_USER, placement, limit)


def how_shared(plan: SitePlan, tables: Optional[Mapping[str, Mapping[str, Any]]]) -> HowShared:
    """With what is proposed; a site with a gpumem.toml, whose tables these are, keeps what stands there."""
    found = new_site(plan.placed, plan.mps)
    if tables is None:
        return found
    limit = tables.get("sharing", {}).get("max_slowdown", SharingPolicy().max_slowdown)
    return HowShared(plan.mps or tables.get("node", {}).get("mps", NodeConfig().mps), plan.placed, limit)


def toml_file(plan: SitePlan, current: str = "") -> str:
    """gpumem.toml: the site's configuration of gpusbatch and gpumem; all that the site has in it stays.

    How jobs share a GPU is written for a new site only: one with a file keeps what it had.
    """
    mode = "observe" if plan.shared else plan.mode
    ours = {"mode": f'"{mode}"', "gres": f'"{plan.gres}"', "shard_mib": str(plan.shard_mib)}
    tables = re.split(r"^(?=\[)", current, flags=re.MULTILINE)
    if current.strip() and plan.mps:
        _set(tables, "node", {"mps": f'"{plan.mps}"'})
    for name in plan.shared:
        quoted = name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'
        _set(tables, f"sharing.partition.{quoted}", {"mode": f'"{plan.mode}"'})
    sharing = next((number for number, text in enumerate(tables) if _SHARING.match(text)), None)
    if sharing is None:
        lines = [f"{key} = {value}" for key, value in ours.items()]
        lines[0] += "  # observe, opt-in, known or on"
        new = new_site(plan.placed, plan.mps)
        way = _LIMITS[plan.placed][1] if new.limit == _LIMITS[plan.placed][0] else "each user has a server"
        slowdown = _SLOWDOWN.format(limit=new.limit, way=way)
        ways = "\n".join(f'# "{name}": {what}\n#   {risk}' for name, (what, risk) in WAYS_TO_SHARE.items())
        more = [""] if current.strip() else [slowdown, _NODE.format(ways=ways, mps=new.mps)]
        tables = ["\n".join([_WRITTEN, "[sharing]", *lines, *more]), *tables]
    else:
        tables[sharing] = _with_values(tables[sharing], ours)
    text = "".join(tables)
    if re.search(r"^\[recovery\]", text, re.MULTILINE):
        return text
    return text.rstrip("\n") + "\n\n" + _RECOVERY


def _set(tables: List[str], name: str, values: Mapping[str, str]) -> None:
    """These values in the table of that name; at the end, if there is none yet."""
    head = re.compile(rf"\[\s*{re.escape(name)}\s*\]")
    at = next((number for number, text in enumerate(tables) if head.match(text)), None)
    if at is None:
        lines = [f"{key} = {value}" for key, value in values.items()]
        tables[-1] = tables[-1].rstrip("\n") + "\n\n" if tables[-1].strip() else tables[-1]
        tables.append("\n".join([f"[{name}]", *lines, ""]))
    else:
        tables[at] = _with_values(tables[at], values)


def _with_values(table: str, values: Mapping[str, str]) -> str:
    """A table of TOML with these values; its other lines and its remarks stay."""
    for key, value in values.items():
        line = re.compile(rf"^(\s*{key}\s*=\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^#\s]+)", re.MULTILINE)
        if line.search(table):
            table = line.sub(rf"\g<1>{value}", table)
        else:
            head, _, rest = table.partition("\n")
            table = f"{head}\n{key} = {value}\n{rest}"
    return table


def _lua_instances(plan: SitePlan) -> Sequence[str]:
    """MIG instances by partition, the smallest first; nothing on a site without any."""
    lines = []
    for name in plan.partitions or ("*",):
        inside = [group for group in plan.groups if not plan.partitions or name in group.partitions]
        found = {(gpus.memory_mib, gpus.gpu_type) for group in inside for gpus in group.gpus if gpus.instance}
        entries = [f"{{ type = {_lua(kind)}, memory_mib = {mib} }}" for mib, kind in sorted(found)]
        lines += [f"    [{_lua(name)}] = {{ {', '.join(entries)} }},"] if entries else []
    return ["  instances = {", *lines, "  },"] if lines else []


def _lua_gpus(plan: SitePlan, group: NodeGroup) -> Sequence[str]:
    entries = []
    for gpus in group.gpus:
        if gpus.instance:
            continue
        fields = [f"type = {_lua(gpus.gpu_type)}"] if gpus.gpu_type else []
        fields += [f"shares = {plan.shares(gpus)}", f"memory_mib = {plan.usable_mib(gpus)}"]
        if group.memory_mib:
            fields.append(f"host_mib = {group.memory_mib // group.gpu_count}")
        if group.cpus:
            fields.append(f"cpus = {max(1, group.cpus // group.gpu_count)}")
        entries.append("{ " + ", ".join(fields) + " }")
    return entries


def _files(first: int, count: int) -> str:
    last = first + count - 1
    return f"/dev/nvidia{first}" if count == 1 else f"/dev/nvidia[{first}-{last}]"


def _lua(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
