"""Checks of this host: what the probe found on it."""

from __future__ import annotations

import os
from typing import Iterator, Mapping, NamedTuple

import slurm_gpumem
from slurm_gpumem.site.doctor.findings import Finding, Severity, warning
from slurm_gpumem.site.snapshot import Snapshot

_HOOKS_AGAIN = "install the hooks again (gpumem docs node)"


class Fault(NamedTuple):
    """What one of the probe's checks means."""

    severity: Severity
    why: str
    fix: str


FAULTS: Mapping[str, Fault] = {
    "not-only-root": Fault(
        Severity.CRITICAL,
        "root or slurmctld believes or runs what is there, so whoever can change it is root",
        "chown root:root and chmod go-w, the folders above it too",
    ),
    "group-may-write": Fault(
        Severity.WARNING,
        "root or slurmctld believes or runs what is there, so everybody in that group is root",
        "chmod g-w",
    ),
    "hook-missing": Fault(
        Severity.CRITICAL,
        "slurmd drains a node whose Prolog or Epilog cannot be started; without its TaskProlog a job fails",
        _HOOKS_AGAIN,
    ),
    "hook-not-run": Fault(
        Severity.CRITICAL,
        "the hook never runs; a Prolog or Epilog that cannot be started drains the node",
        "chmod 755 it and the folders above it; install it again if its first line is broken",
    ),
    "next-hook": Fault(
        Severity.CRITICAL,
        "the site's own hook does not run, and its exit code drains the node",
        "correct next_* in hooks.conf",
    ),
    "no-package": Fault(
        Severity.CRITICAL,
        "the hooks do nothing: no job is limited, measured or run again",
        "python= in hooks.conf must name a Python 3.9 or newer that has slurm_gpumem",
    ),
    "hook-older": Fault(
        Severity.CRITICAL,
        "hook and package are of different versions, and the hook does nothing",
        f"{_HOOKS_AGAIN}, from the version that is installed",
    ),
    "no-filter": Fault(
        Severity.WARNING,
        "plain sbatch, srun and salloc may share nothing: jobs go as they are typed",
        "python= in hooks.conf, root's with mode 0644, must name a Python that has this slurm_gpumem",
    ),
    "cannot-read": Fault(
        Severity.CRITICAL,
        "the hook runs with other settings than the site's, or not at all",
        "chmod a+rX it and the folders above it",
    ),
    "may-not-look": Fault(
        Severity.UNKNOWN, "what depends on it was not checked", "run gpumem doctor as root"
    ),
    "site-file-missing": Fault(
        Severity.WARNING, "the hooks use the defaults", "put it there, or correct site_config= in hooks.conf"
    ),
    "spool-unusable": Fault(
        Severity.CRITICAL, "no job's record is kept", "correct node.spool in gpumem.toml, or make the folder"
    ),
    "spool-full": Fault(Severity.WARNING, "soon no job's record is kept", "gpumem collect, or more room"),
    "no-mps": Fault(
        Severity.CRITICAL,
        "no job is limited: each can take a GPU's whole memory",
        'install it, or set node.mps = "timeslice"',
    ),
    "no-shared-mps": Fault(
        Severity.WARNING,
        "jobs run in time slices, without MPS and its memory limits",
        'a newer driver, or node.mps = "per-user"',
    ),
    "no-end-library": Fault(
        Severity.WARNING,
        "a job that ends may take its neighbours at the same MPS server along",
        "install gcc and run build_end.sh beside the hooks, or copy the library from a node that has one",
    ),
    "no-driver-limit": Fault(
        Severity.WARNING,
        "node.driver_limit is on, and jobs there have no such limit: MPS's own is all there is",
        "driver 615 or later and cgroup version 2, or node.driver_limit = false",
    ),
    "no-driver": Fault(
        Severity.CRITICAL, "no job is measured or limited", "install NVIDIA's driver (nvidia-smi must answer)"
    ),
    "no-commands": Fault(Severity.WARNING, "the sampler cannot do its work", "correct it in gpumem.toml"),
    "no-sampler": Fault(
        Severity.WARNING,
        "the memory of shared jobs is not measured",
        "journalctl -t gpumem says why it ended; the next shared job's Prolog, or systemctl, starts one",
    ),
    "no-device": Fault(
        Severity.CRITICAL,
        "slurmd does not start, or drains the node",
        "correct File= in gres.conf, or load the driver",
    ),
}


def hosts_are_sound(now: Snapshot) -> Iterator[Finding]:
    """What the probe found."""
    for check, what in now.here.faults if now.here else ():
        known = FAULTS[check]
        yield Finding(known.severity, check, what, known.why, known.fix)


def hooks_were_seen(now: Snapshot) -> Iterator[Finding]:
    """A hook that is not on this host may be missing on the nodes as well."""
    if now.hooks_unseen:
        yield warning(
            "hook-unseen",
            f"{', '.join(now.hooks_unseen)}: not on this host",
            "whether the nodes have it was not checked",
            "run gpumem doctor --here on the nodes, with ssh, pdsh or clush (gpumem docs doctor)",
        )


def versions_are_equal(now: Snapshot) -> Iterator[Finding]:
    """Hooks, gpusbatch and reports read each other's files: one version on all hosts."""
    mine = slurm_gpumem.__version__
    version = now.here.facts.get("version", mine) if now.here else mine
    if version != mine:
        yield warning(
            "versions-differ",
            f"the hooks run slurm_gpumem {version}, this is {mine}",
            "jobs are treated differently, and records may not be readable",
            "install the same version on every host",
        )


def one_site_file(now: Snapshot) -> Iterator[Finding]:
    """The hooks and gpusbatch should read the same gpumem.toml."""
    theirs = "" if now.here is None else str(now.here.facts.get("site_config", ""))
    if now.site_file and os.path.exists(theirs) and not os.path.samefile(theirs, now.site_file):
        yield warning(
            "site-files-differ",
            f"the hooks read {theirs}, not {now.site_file}",
            "a change in one of them is not seen by the other",
            "site_config= in hooks.conf must name the same file",
        )
    own = now.submits_by
    if now.site_file and own and not (os.path.exists(own) and os.path.samefile(own, now.site_file)):
        yield warning(
            "site-files-differ",
            f"gpusbatch reads {own}, not {now.site_file}",
            "jobs are submitted with other settings than the site's",
            f"link {own} to it, or set GPUMEM_SITE_CONFIG={now.site_file} for users (/etc/profile.d)",
        )
