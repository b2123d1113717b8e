"""What the Prolog and the sampler of a node will use: spool, MPS, driver, sampler."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from typing import Any, Dict

from slurm_gpumem.site.doctor.probe_host import NOBODY, Host, Settings, is_program, lineage, run

_UNIT = "/etc/systemd/system/multi-user.target.wants/gpumem-sampler.service"
_LIMIT_FUNCTION = "nvmlDeviceSetMemoryLimits_v1"
_LEAST_FREE = 0.01
_END_LIBRARY = "libgpumem_end.so"
_PACKAGED = "/usr/libexec/slurm-gpumem"


def check_node(host: Host, python: str, settings: Settings, node: Dict[str, Any], hooks: str) -> None:
    """What the Prolog and the sampler will use; `hooks` is their folder."""
    modes = set(node["modes"].split())
    if modes == {"off"}:
        return
    _spool(host, node["spool"])
    run_dir = settings.get("run_dir", "")
    if run_dir and "$" not in run_dir and os.path.exists(run_dir):
        host.is_safe(run_dir)
    if modes & {"per-user", "shared"}:
        _mps(host, node["mps_control"], "shared" in modes)
        _end_library(host, settings.get("end_library", ""), hooks)
    if node["ledger"] is None:
        _driver(host)
    if node["driver_limit"]:
        _driver_limit(host)
    if node["slurm_bin"] and host.is_there(os.path.join(node["slurm_bin"], "squeue")) is False:
        host.fault("no-commands", f"node.slurm_bin = {node['slurm_bin']} has no squeue")
    if node["prometheus_file"] and host.is_there(os.path.dirname(node["prometheus_file"])) is False:
        host.fault(
            "no-commands", f"the folder of node.prometheus_file = {node['prometheus_file']} is missing"
        )
    _sampler(host, python, settings)


def _mps(host: Host, control: str, shared: bool) -> None:
    """The program that starts MPS daemons, and whether it can start one for all users."""
    if host.is_there(control) is None:
        return
    if not is_program(control):
        host.fault("no-mps", f"{control} is not there")
        return
    safe = host.is_safe(control)
    if shared and safe:
        done = run([control, "-h"], env={"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
        if done is None or "-multiuser-server" not in done.stdout + done.stderr:
            host.fault("no-shared-mps", f"{control} has no -multiuser-server")


def _end_library(host: Host, named: str, hooks: str) -> None:
    """What the task prolog gives to CUDA programs, where it looks for it."""
    places = [named] if named else [os.path.join(folder, _END_LIBRARY) for folder in (hooks, _PACKAGED)]
    seen = {place: host.is_there(place) for place in places}
    there = [place for place in places if seen[place]]
    if not there:
        if None not in seen.values():
            host.fault("no-end-library", f"{places[0]} is not there")
        return
    if not host.may(NOBODY, os.R_OK, there[0]):
        host.fault("cannot-read", f"users' programs cannot load {there[0]}")
    if not host.is_safe(there[0]):
        return
    # In a process of its own, which it may then keep from ending.
    done = run([sys.executable, "-I", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", there[0]])
    if done is None or done.returncode != 0:
        why = (done.stderr.strip().splitlines() if done else []) or ["no answer"]
        host.fault("no-end-library", f"{there[0]} cannot be loaded: {why[-1]}")


def _spool(host: Host, path: str) -> None:
    """Whether a record could be written there, by root; a missing one is made by the first job."""
    if os.geteuid() != 0:
        host.unseen.append(f"{path}: only root can try to write there")
        return
    there = next(place for place in lineage(path) if os.path.lexists(place))
    trial = os.path.join(there, f".gpumem-doctor-{os.getpid()}")
    try:
        os.mkdir(trial, 0o700)
        os.rmdir(trial)
    except OSError as error:
        host.fault("spool-unusable", f"node.spool = {path} cannot be written: {there}: {error.strerror}")
        return
    if there == path and stat.S_IMODE(os.stat(path).st_mode) & 0o002:
        # A sticky bit does not help here: a planted record is believed.
        host.fault("not-only-root", f"everybody can write to {path} (the spool)")
    host.is_safe(there)
    room = os.statvfs(there)
    if room.f_blocks and room.f_bavail / room.f_blocks < _LEAST_FREE:
        host.fault("spool-full", f"node.spool = {path}: less than 1 % of its file system is free")
    elif room.f_files and room.f_ffree / room.f_files < _LEAST_FREE:
        host.fault("spool-full", f"node.spool = {path}: less than 1 % of its file system's inodes are free")


def _driver(host: Host) -> None:
    """NVML: without it nothing is measured, and the GPUs' UUIDs are not known."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        host.fault("no-driver", f"NVIDIA's driver library cannot be loaded: {error}")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    done = run(query)
    if done is None or done.returncode != 0:
        host.fault("no-driver", "nvidia-smi does not answer")
        return
    rows = [line.rpartition(",") for line in done.stdout.splitlines()]
    host.facts["gpus"] = [[name.strip(), int(mib)] for name, _, mib in rows if mib.strip().isdigit()]


def _driver_limit(host: Host) -> None:
    """What the driver needs to limit a job's cgroup: 615 or later, and version 2 of cgroups."""
    try:
        known = hasattr(ctypes.CDLL("libnvidia-ml.so.1"), _LIMIT_FUNCTION)
    except OSError:
        known = False
    if not known:
        host.fault("no-driver-limit", f"NVIDIA's driver library has no {_LIMIT_FUNCTION}")
    if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        host.fault("no-driver-limit", "/sys/fs/cgroup is not cgroup version 2")


def _sampler(host: Host, python: str, settings: Settings) -> None:
    """Jobs without a sampler are not measured."""
    if os.geteuid() != 0:
        return
    run_dir = settings.get("run_dir", "")
    jobs = os.path.join(run_dir, "jobs")
    count = len([name for name in os.listdir(jobs) if name.endswith(".json")]) if os.path.isdir(jobs) else 0
    permanent = os.path.lexists(_UNIT)
    if count == 0 and not permanent:
        return
    env = {"GPUMEM_RUN_DIR": run_dir, "GPUMEM_SITE_CONFIG": settings.get("site_config", "")}
    done = run([python, "-I", "-m", "slurm_gpumem", "node", "status", "--json"], env)
    if done is not None and done.returncode == 0 and json.loads(done.stdout)["sampler"]:
        return
    if permanent:
        host.fault("no-sampler", f"{os.path.basename(_UNIT)} is enabled and no sampler runs")
    else:
        host.fault("no-sampler", f"{count} shared job{'s' if count > 1 else ''} here and no sampler runs")
