"""The cluster's configuration files as text, configured like real sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.devcluster.hooks import hook_settings, site_tables
from slurm_gpumem.devcluster.spec import MIB_PER_SHARD, ClusterSpec, Layout, NodeSpec
from slurm_gpumem.slurm.state.nodes import SHARES_WITHOUT_TYPE_BESIDE_INSTANCES

_LINES_THAT_REPEAT = ("nodename", "partitionname", "nodeset", "downnodes", "include", "switchname")


@dataclass(frozen=True)
class Place:
    """What the files need to know about the machine: names, ports and device files."""

    hostname: str
    user: str
    is_root: bool
    controller_port: int
    node_ports: Mapping[str, int]
    database_port: int
    devices: Sequence[str]


def slurm_conf(spec: ClusterSpec, layout: Layout, place: Place, version: Tuple[int, ...]) -> str:
    """slurm.conf; a key in `spec.extra_conf` replaces ours."""
    settings = _settings(spec, layout, place)
    repeating: List[str] = []
    for line in spec.extra_conf:
        key = line.split("=", 1)[0].strip()
        if key.lower() in _LINES_THAT_REPEAT:
            repeating.append(line)
        else:
            # If given twice, every Slurm command would complain on stderr.
            clash = next((known for known in settings if known.lower() == key.lower()), key)
            settings[clash] = line.split("=", 1)[1].strip()
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [_node_line(spec, node, place, version) for node in spec.nodes]
    lines += _partition_lines(spec)
    return "\n".join([*lines, *repeating, ""])


def gres_conf(spec: ClusterSpec, place: Place) -> str:
    """gres.conf: each node's device files and how they are shared."""
    lines = ["AutoDetect=off"]
    for node in spec.nodes:
        at = node.gpus
        for kind in node.instances:
            files = ",".join(place.devices[at : at + kind.number])
            lines.append(f"NodeName={node.name} Name=gpu Type={kind.gpu_type} File={files}")
            at += kind.number
        if not node.gpus:
            continue
        files = ",".join(place.devices[: node.gpus])
        lines.append(f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={files}")
        shared = f"NodeName={node.name} Name={spec.gres} Type={node.gpu_type}"
        if node.instances:
            # Without a file Slurm spreads them over the instances as well, and the node becomes invalid.
            each = spec.shared_per_gpu(node)
            lines += [f"{shared} Count={each} File={device}" for device in place.devices[: node.gpus]]
        else:
            lines.append(f"{shared} Count={node.gpus * spec.shared_per_gpu(node)}")
    return "\n".join([*lines, ""])


def cgroup_conf(version: Tuple[int, ...]) -> str:
    """A cgroup.conf that keeps Slurm away from this machine's cgroups."""
    if version >= (24, 5):
        return "CgroupPlugin=disabled\n"
    # Older ones load a plug-in whatever else says: v1's does nothing by itself, v2's makes a cgroup at once,
    # and where that is not allowed slurmd does not start.
    return "CgroupPlugin=cgroup/v1\n"


def slurmdbd_conf(layout: Layout, place: Place) -> str:
    """slurmdbd.conf; only its owner may read it, or slurmdbd refuses it."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={place.database_port}",
            f"SlurmUser={place.user}",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={place.user}",
            "StorageLoc=slurm_acct_db",
            f"LogFile={layout.log / 'slurmdbd.log'}",
            f"PidFile={layout.run / 'slurmdbd.pid'}",
            "",
        ]
    )


def site_config(spec: ClusterSpec, layout: Layout) -> str:
    """The gpumem.toml of this cluster's site."""
    measured = site_tables(layout) if spec.hooks else []
    return "\n".join(
        [
            "# Written by gpumem devcluster.",
            "[sharing]",
            'mode = "opt-in"',
            f'gres = "{spec.gres}"',
            f"shard_mib = {MIB_PER_SHARD}",
            *measured,
            "",
        ]
    )


def own_settings(name: str, layout: Layout, place: Place) -> Dict[str, str]:
    """What keeps a cluster on this host and in its own folder."""
    return {
        "ClusterName": name,
        "SlurmctldHost": f"{place.hostname}(127.0.0.1)",
        "SlurmctldPort": str(place.controller_port),
        "SlurmUser": place.user,
        "SlurmdUser": place.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "CredType": "cred/munge",
        "StateSaveLocation": str(layout.controller),
        "SlurmdSpoolDir": str(layout.spool / "%n"),
        "SlurmctldPidFile": str(layout.run / "slurmctld.pid"),
        "SlurmdPidFile": str(layout.run / "slurmd-%n.pid"),
        "SlurmctldLogFile": str(layout.log / "slurmctld.log"),
        "SlurmdLogFile": str(layout.log / "slurmd-%n.log"),
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "ReturnToService": "2",
        "SlurmdParameters": "config_overrides",
    }


def _settings(spec: ClusterSpec, layout: Layout, place: Place) -> Dict[str, str]:
    settings = {
        **own_settings("devcluster", layout, place),
        "ProctrackType": "proctrack/linuxproc" if place.is_root else "proctrack/pgid",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "GresTypes": f"gpu,{spec.gres}",
        "EnforcePartLimits": "ALL",
        "MaxJobCount": "10000",
        "MaxArraySize": "1001",
        "KillWait": "5",
        "SlurmdTimeout": "30",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,bf_interval=5,bf_window=2940",
    }
    if spec.cred_expire_s is not None:
        settings["AuthInfo"] += f",cred_expire={spec.cred_expire_s}"
    if spec.job_submit_lua is not None:
        settings["JobSubmitPlugins"] = "lua"
    if spec.cli_filter:
        settings["CliFilterPlugins"] = "lua"
    if spec.hooks:
        settings.update(hook_settings(layout))
    if spec.accounting:
        settings["AccountingStorageTRES"] = f"gres/gpu,gres/{spec.gres}"
        settings["AccountingStorageType"] = "accounting_storage/slurmdbd"
        settings["AccountingStorageHost"] = "127.0.0.1"
        settings["AccountingStoragePort"] = str(place.database_port)
        settings["AccountingStoragePass"] = str(layout.munge_socket)
        settings["AccountingStoreFlags"] = "job_comment"
        settings["JobAcctGatherType"] = "jobacct_gather/linux"
        settings["JobAcctGatherFrequency"] = "5"
    return settings


def _node_line(spec: ClusterSpec, node: NodeSpec, place: Place, version: Tuple[int, ...]) -> str:
    line = (
        f"NodeName={node.name} NodeHostname={place.hostname} NodeAddr=127.0.0.1 "
        f"Port={place.node_ports[node.name]} CPUs={node.cpus} RealMemory={node.memory_mib} State=UNKNOWN"
    )
    gres = [f"gpu:{kind.gpu_type}:{kind.number}" for kind in node.instances]
    if node.gpus:
        shared = node.gpus * spec.shared_per_gpu(node)
        # If the shares have no type too, 22.05 refuses the srun steps of jobs that ask for the type.
        untyped = node.instances and version >= SHARES_WITHOUT_TYPE_BESIDE_INSTANCES
        kind = "" if untyped else f"{node.gpu_type}:"
        gres = [f"gpu:{node.gpu_type}:{node.gpus}", *gres, f"{spec.gres}:{kind}{shared}"]
    return f"{line} Gres={','.join(gres)}" if gres else line


def _partition_lines(spec: ClusterSpec) -> List[str]:
    whole = spec.whole_nodes or tuple(node.name for node in spec.nodes)
    shared = [node.name for node in spec.nodes if node.name not in spec.whole_nodes]
    # A job that requests no memory would get the node's whole RAM: sites set a default per CPU.
    memory = min(node.memory_mib // node.cpus for node in spec.nodes)
    limits = f"DefMemPerCPU={memory} DefaultTime=01:00:00 State=UP"
    return [
        f"PartitionName=gpu Nodes={','.join(shared)} Default=YES MaxTime=2-00:00:00 {limits}",
        f"PartitionName=whole Nodes={','.join(whole)} MaxTime=12:00:00 {limits}",
    ]
