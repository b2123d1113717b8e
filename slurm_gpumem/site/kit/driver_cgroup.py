"""The driver's own limit on a cgroup (615 on), tried in a cgroup of the kit's; not run on hardware yet."""

from __future__ import annotations

import contextlib
import os

from slurm_gpumem.formats.kit_file import KitRow
from slurm_gpumem.node.nvml import WHY_NO_LIMIT, NvmlError
from slurm_gpumem.node.sampler.cpu_clock import CGROUPS
from slurm_gpumem.site.calibration_context import environment_for
from slurm_gpumem.site.kit.mps import CLIENT, LIMIT_MIB, MORE_MIB, READY_S, Bench, Say, why_not

_FIRST_DRIVER = 615
_WHAT = "a cgroup is refused at the driver's limit"
_JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


def driver_limit(bench: Bench, driver: str, say: Say) -> None:
    """Only where the driver has it; the node's cgroup controllers stay as they are."""
    major = driver.partition(".")[0]
    if not major.isdigit() or int(major) < _FIRST_DRIVER:
        why = f"driver {driver} has no such limit, {_FIRST_DRIVER} and later have"
    elif os.geteuid() != 0:
        why = "only root may"
    elif not (CGROUPS / "cgroup.controllers").exists():
        why = "no cgroup version 2"
    else:
        say(_tried(bench))
        return
    say(KitRow("driver limit", _WHAT, 0, 0, False, why))


def _tried(bench: Bench) -> KitRow:
    cgroup = CGROUPS / f"gpumem-kit-{os.getpid()}"
    cgroup.mkdir()
    try:
        bench.nvml.limit_memory(bench.uuid, str(cgroup), LIMIT_MIB)
        limit = bench.nvml.memory_limit_mib(bench.uuid, str(cgroup)) or 0
        grow = [bench.python, "-m", CLIENT, "grow", str(LIMIT_MIB + MORE_MIB)]
        own = {**environment_for(os.environ), "CUDA_VISIBLE_DEVICES": bench.uuid}
        child = bench.children.start(["/bin/sh", "-c", _JOIN, str(cgroup), *grow], own)
        child.wait(READY_S)
        held, process = child.answer("held"), child.answer("process")
        bench.children.end(child)
        if held is None:
            return KitRow("driver limit", _WHAT, 0, 0, False, why_not(child))
        kept = bool(child.answer("refused")) and held <= limit
        said = f"limit {limit:.0f} MiB: {held} MiB allocated, {process} by the driver's count"
        return KitRow("driver limit", _WHAT, 1, int(kept), False, said)
    except NvmlError as error:
        return KitRow("driver limit", _WHAT, 0, 0, False, WHY_NO_LIMIT.get(error.code, str(error)))
    finally:
        with contextlib.suppress(NvmlError):
            bench.nvml.limit_memory(bench.uuid, str(cgroup), None)
        with contextlib.suppress(OSError):  # its last process may take a moment; empty, it does no harm
            cgroup.rmdir()
