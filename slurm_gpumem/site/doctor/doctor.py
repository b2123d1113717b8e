"""Check a running cluster: each check is a small function over one snapshot."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Callable, Collection, Iterator, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.site.complete_snapshot import look_here
from slurm_gpumem.site.doctor import (
    check_accounting,
    check_filter,
    check_gpus,
    check_hooks,
    check_hosts,
    check_nodes,
    check_queue,
    check_recovery,
)
from slurm_gpumem.site.doctor.findings import Diagnosis, Finding, Severity, diagnose
from slurm_gpumem.site.doctor.hosts import HostReport
from slurm_gpumem.site.setup.plan import SPREAD_WORD, SPREADING
from slurm_gpumem.site.snapshot import Snapshot, gather
from slurm_gpumem.slurm.client import Commands, slurm_version

Check = Callable[[Snapshot], Iterator[Finding]]

CHECKS: Tuple[Check, ...] = (
    check_gpus.sharing_is_configured,
    check_gpus.one_kind_of_sharing_per_node,
    check_gpus.mps_serves_one_gpu_per_node,
    check_gpus.instances_are_usable,
    check_gpus.shares_divide_evenly,
    check_gpus.shares_have_types,
    check_gpus.whole_and_shared_jobs_keep_apart,
    check_gpus.spreading_exists,
    check_gpus.placement_is_known,
    check_gpus.shared_jobs_have_default_memory,
    check_gpus.no_exclusive_partition_shares,
    check_queue.small_shares_flow_around_large_ones,
    check_queue.idle_gpus_come_first,
    check_nodes.nodes_are_usable,
    check_nodes.gres_files_agree,
    check_nodes.shares_fit_the_memory,
    check_nodes.names_are_known,
    check_accounting.shares_are_accounted,
    check_accounting.comments_are_kept,
    check_accounting.estimates_hold,
    check_accounting.faults_were_recorded,
    check_accounting.limits_have_twins,
    check_accounting.billing_has_twins,
    check_hooks.plugin_is_in_use,
    check_hooks.lua_files_are_there,
    check_hooks.lua_loads,
    check_filter.filter_is_safe,
    check_filter.filter_loads,
    check_filter.filter_is_in_use,
    check_hooks.site_table_matches,
    check_hooks.site_files_agree,
    check_hooks.site_file_is_right,
    check_hooks.prolog_runs_at_allocation,
    check_hooks.hooks_are_complete,
    check_hooks.driver_limit_is_untried,
    check_hooks.way_of_sharing_is_chosen,
    check_hosts.hosts_are_sound,
    check_hosts.hooks_were_seen,
    check_hosts.versions_are_equal,
    check_hosts.one_site_file,
    check_recovery.recovery_is_whole,
    check_recovery.recovery_runs,
    check_recovery.preempted_jobs_can_save,
    check_recovery.no_job_is_left_held,
    check_hooks.everything_was_asked,
)


CHECKS_HERE: Tuple[Check, ...] = (
    check_nodes.shares_fit_the_memory,
    check_filter.filter_is_safe,
    check_filter.filter_loads,
    check_hooks.site_file_is_right,
    check_hosts.hosts_are_sound,
    check_hosts.hooks_were_seen,
    check_hosts.versions_are_equal,
    check_hosts.one_site_file,
    check_hooks.everything_was_asked,
)
"""Of one node, of many that are asked at once."""


def examine(now: Snapshot) -> Diagnosis:
    """The diagnosis of all checks on one snapshot."""
    return diagnose([finding for check in CHECKS for finding in check(now)], now.version_text)


def examine_here(now: Snapshot) -> Diagnosis:
    """The diagnosis of this host alone, which is the same text on hosts that have the same."""
    here = now.here or HostReport()
    now = replace(now, nodes=tuple(node for node in now.nodes if node["NodeName"] in here.nodes))
    findings = [finding for check in CHECKS_HERE for finding in check(now)]
    return replace(diagnose(findings, now.version_text), host=here.mark)


def examine_cluster(accepted: Collection[str] = (), *, here: bool = False) -> Diagnosis:
    """The diagnosis of the running cluster, or of this host, without the accepted checks.

    UNKNOWN when the cluster cannot be asked.
    """
    # Unix times, to compare with files' times.
    client = Commands({"SLURM_TIME_FORMAT": "%s"})
    try:
        now = gather(client)
    except SlurmError as error:
        return _no_answer(error).without(accepted)
    now = look_here(now, client)
    return (examine_here(now) if here else examine(now)).without(accepted)


def _no_answer(error: SlurmError) -> Diagnosis:
    conf = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    if SPREAD_WORD in str(error) or (_mentions_spreading(conf) and _is_old()):
        return diagnose([check_gpus.spreading_finding("")], "")
    return diagnose(
        [
            Finding(
                Severity.UNKNOWN,
                "controller",
                str(error).partition("\n")[0],
                "nothing could be checked",
                "start slurmctld (its log says why it does not), or run this where Slurm's commands work",
            )
        ],
        "",
    )


def _mentions_spreading(conf: Path) -> bool:
    try:
        return SPREAD_WORD.lower() in conf.read_text(errors="replace").lower()
    except OSError:
        return False


def _is_old() -> bool:
    try:
        return slurm_version() < SPREADING
    except SlurmError:
        # 22.05's `sinfo --version` itself stops at the word it does not know.
        return True
