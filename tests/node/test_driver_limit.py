"""The driver's own limit on a job's cgroup, against a stand-in for NVML 615 made from NVIDIA's documentation.

No driver of that kind was to be had: nothing here ran on hardware. The cgroups are real where this machine
has version 2; the kernel's dmem controller is played by plain files.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from ctypes import CFUNCTYPE, c_char_p, c_int, c_void_p, memmove, string_at
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.log import ProblemLog
from slurm_gpumem.node.mps.driver_limit import DriverLimits
from slurm_gpumem.node.nvml import WHY_NO_LIMIT, Nvml, NvmlError
from slurm_gpumem.node.sampler.usage import JobUsage
from slurm_gpumem.units import MIB
from tests.node.conftest import needs_root
from tests.node.desk import Desk
from tests.support.waiting import until

MAX = (1 << 64) - 1
JOB, UUID, OTHER = 771021, "GPU-aa", "GPU-bb"
GROUP = f"system.slice/slurmstepd.scope/job_{JOB}"
Start = Callable[[], "subprocess.Popen[bytes]"]


class Driver615:
    """Limits by GPU and cgroup, called as a C library is: the structs arrive as bytes."""

    def __init__(self) -> None:
        self.limits: Dict[Tuple[int, str], Tuple[int, int]] = {}
        self.refuses: Optional[int] = None
        self.forgets = False
        by_uuid = CFUNCTYPE(c_int, c_char_p, c_void_p)
        by_device = CFUNCTYPE(c_int, c_void_p, c_void_p)
        self.nvmlInit_v2 = CFUNCTYPE(c_int)(lambda: 0)
        self.nvmlDeviceGetHandleByUUID = by_uuid(self._handle)
        self.nvmlDeviceSetMemoryLimits_v1 = by_device(self._set)
        self.nvmlDeviceGetMemoryLimits_v1 = by_device(self._get)

    def _handle(self, uuid: bytes, to: int) -> int:
        memmove(to, struct.pack("=Q", {UUID: 7, OTHER: 8}[uuid.decode()]), 8)
        return 0

    def _set(self, device: int, limits: int) -> int:
        name, soft, hard = struct.unpack("=QQQ", string_at(limits, 24))
        group = Path(string_at(name).decode())
        if self.refuses is not None:
            return self.refuses
        if not group.is_absolute() or not group.is_dir() or soft > hard:
            return 2
        if self._dmem(group) and not (group / "dmem.max").exists():
            return 6
        if not self.forgets:
            self.limits[device, str(group)] = (soft, hard)
        return 0

    def _get(self, device: int, limits: int) -> int:
        name = struct.unpack("=Q", string_at(limits, 8))[0]
        soft, hard = self.limits.get((device, string_at(name).decode()), (0, MAX))
        memmove(limits + 8, struct.pack("=QQQ", soft, hard, 4096), 24)
        return 0

    @staticmethod
    def _dmem(group: Path) -> bool:
        """Whether the kernel counts, as the topmost group above says."""
        files = [
            path for path in (folder / "cgroup.controllers" for folder in group.parents) if path.exists()
        ]
        return bool(files) and "dmem" in files[-1].read_text().split()


def hard_mib(driver: Driver615, group: Path, device: int = 7) -> Optional[float]:
    soft, hard = driver.limits.get((device, str(group)), (0, MAX))
    assert soft == 0
    return None if hard == MAX else hard / MIB


def test_the_structs_are_those_of_the_header(tmp_path: Path) -> None:
    driver = Driver615()
    nvml = Nvml(driver)
    assert nvml.memory_limit_mib(UUID, str(tmp_path)) is None
    nvml.limit_memory(UUID, str(tmp_path), 8192)
    assert driver.limits == {(7, str(tmp_path)): (0, 8192 * MIB)}
    assert nvml.memory_limit_mib(UUID, str(tmp_path)) == 8192
    nvml.limit_memory(UUID, str(tmp_path), None)
    assert driver.limits == {(7, str(tmp_path)): (0, MAX)}


def test_an_older_driver_says_that_it_has_no_such_limit(tmp_path: Path) -> None:
    driver: Any = Driver615()
    del driver.nvmlDeviceSetMemoryLimits_v1
    with pytest.raises(NvmlError) as raised:
        Nvml(driver).limit_memory(UUID, str(tmp_path), 8192)
    assert "615" in WHY_NO_LIMIT[raised.value.code]


class Node:
    """Limits at work in a cgroup hierarchy."""

    def __init__(self, root: Path, cgroups: Path) -> None:
        self.driver = Driver615()
        self.root, self.cgroups = root, cgroups
        self.limits = self.after_a_restart()
        self.usage = JobUsage(0, shards=8, verified=True, limit_mib=8192)

    def after_a_restart(self) -> DriverLimits:
        return DriverLimits(self.root, ProblemLog(self.root), lambda: Nvml(self.driver), self.cgroups)

    def keep(self, *, gpus: Tuple[str, ...] = (UUID,), here: bool = True) -> None:
        job = NodeJob(JOB, 65534, "nobody", gpus, "timeslice", time.time())
        self.limits.keep({JOB: job} if here else {}, {JOB: self.usage})

    @property
    def group(self) -> Path:
        return self.cgroups / GROUP

    def mib(self, device: int = 7) -> Optional[float]:
        return hard_mib(self.driver, self.group, device)


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that is called as root's slurmstepd of the job."""
    program = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    started: List[subprocess.Popen[bytes]] = []

    def make() -> subprocess.Popen[bytes]:
        title = f"slurmstepd: [{JOB}.batch]"
        started.append(subprocess.Popen(["bash", "-c", f"exec -a '{title}' {program} 600"]))
        until(lambda: processes.command_line(started[-1].pid).startswith(title))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def played(tmp_path: Path, step: Start, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A hierarchy of plain files with dmem at its top, as kernels from 6.14 on have it; Slurm's groups."""
    cgroups = tmp_path / "cgroup"
    (cgroups / GROUP).mkdir(parents=True)
    (cgroups / "cgroup.controllers").write_text("cpu memory dmem pids\n")
    for folder in (cgroups, *list((cgroups / GROUP).parents)[:2]):
        (folder / "cgroup.subtree_control").write_text("cpu memory pids\n")
    text = f"0::/{GROUP}/step_batch/slurm\n"
    monkeypatch.setattr(processes, "cgroup_text", lambda pid: text)
    step()
    return Node(tmp_path, cgroups)


def test_dmem_is_asked_for_above_the_jobs_group_and_not_in_it(played: Node) -> None:
    played.keep()
    # As long as the kernel has not made the file, the driver finds no group that it could limit.
    assert played.mib() is None
    assert played.usage.notes == {"no limit by the driver: the cgroup has no dmem files"}
    asked = [(folder / "cgroup.subtree_control").read_text() for folder in list(played.group.parents)[:2]]
    assert asked == ["+dmem", "+dmem"]
    assert (played.cgroups / "cgroup.subtree_control").read_text() == "+dmem"
    assert not (played.group / "cgroup.subtree_control").exists()


def test_with_dmem_the_limit_is_the_jobs_shards_on_each_of_its_gpus(played: Node) -> None:
    (played.group / "dmem.max").touch()
    played.keep(gpus=(UUID, OTHER, "MIG-cc"))
    assert (played.mib(7), played.mib(8), played.usage.notes) == (8192, 8192, set())


def test_a_driver_that_refuses_is_noted_once_and_asked_again_later(
    played: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (played.group / "dmem.max").touch()
    played.driver.refuses = 3
    played.keep()
    played.driver.refuses = None
    played.keep()
    assert played.mib() is None
    assert [note.partition(": ")[0] for note in played.usage.notes] == ["no limit by the driver"]
    assert (played.root / "log").read_text().count("no limit by the driver") == 1
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    played.keep()
    assert (played.mib(), played.usage.notes) == (8192, set())


def test_a_limit_that_the_driver_does_not_report_back_is_none(played: Node) -> None:
    (played.group / "dmem.max").touch()
    played.driver.forgets = True
    played.keep()
    assert played.usage.notes == {
        f"no limit by the driver: the driver took the limit of {UUID} and reports none"
    }


def test_cgroup_version_1_is_named_as_the_reason(played: Node) -> None:
    (played.cgroups / "cgroup.controllers").unlink()
    played.keep()
    assert played.usage.notes == {f"no limit by the driver: {played.cgroups} is not cgroup version 2"}


@pytest.mark.parametrize("change", [{"verified": False}, {"shards": None, "limit_mib": None}])
def test_only_slurms_own_count_of_shards_makes_a_limit(played: Node, change: Dict[str, Any]) -> None:
    (played.group / "dmem.max").touch()
    for name, value in change.items():
        setattr(played.usage, name, value)
    played.keep()
    assert played.driver.limits == {}


@pytest.mark.parametrize(
    ("settings", "mib"),
    [({}, None), ({"driver_limit": True}, 4096)],
)
def test_the_sampler_limits_a_job_where_the_site_wants_it_once_slurm_has_counted_its_shards(
    played: Node, make_desk: Callable[..., Desk], settings: Dict[str, bool], mib: Optional[float]
) -> None:
    (played.group / "dmem.max").touch()
    desk = make_desk(squeue=f"echo {JOB} {os.getuid()} RUNNING 0 0 1 gres:shard:4", **settings)
    desk.sampler._driver_limits = played.limits
    desk.job(JOB, gpus=(UUID,), claim=CommentRecord(shards=40, request_mib=40960))
    assert desk.live()[str(JOB)]["shards_verified"] is False
    assert played.driver.limits == {}
    until(lambda: desk.live()[str(JOB)]["shards_verified"])
    desk.sampler.tick()
    assert played.mib() == mib


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Node]:
    """A real hierarchy of version 2; the limits' own top is a group in it."""
    for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        top = root / f"gpumem-limit-{os.getpid()}"
        controllers = root / "cgroup.controllers"
        # Where the kernel has dmem, this would enable it for the whole machine.
        if os.geteuid() == 0 and controllers.exists() and "dmem" not in controllers.read_text().split():
            try:
                top.mkdir()
            except OSError:
                continue
            yield Node(tmp_path, root)
            for folder in sorted(top.rglob("*"), key=lambda path: -len(path.parts)):
                if folder.is_dir():
                    until(lambda: not (folder / "cgroup.procs").read_text())  # noqa: B023 - called here
                    folder.rmdir()
            top.rmdir()
            return
    pytest.skip("needs root and a writable cgroup hierarchy of version 2")


@needs_root
def test_a_job_is_limited_from_its_first_step_until_its_group_is_removed(real: Node, step: Start) -> None:
    group = real.cgroups / f"gpumem-limit-{os.getpid()}" / "slurmstepd.scope" / f"job_{JOB}"
    inside = group / "step_batch"
    real.keep()
    assert real.driver.limits == {}
    process = step()
    inside.mkdir(parents=True)
    (inside / "cgroup.procs").write_text(str(process.pid))
    real.keep()
    assert hard_mib(real.driver, group) == 8192
    # Slurm's count is another by now.
    real.usage.limit_mib = 4096
    real.keep()
    assert hard_mib(real.driver, group) == 4096
    # A sampler that was started again, and a job that came back in a group of the same name.
    real.limits = real.after_a_restart()
    real.driver.limits.clear()
    real.keep()
    assert hard_mib(real.driver, group) == 4096
    process.kill()
    process.wait()
    until(lambda: not (inside / "cgroup.procs").read_text())
    inside.rmdir()
    group.rmdir()
    real.driver.limits.clear()
    inside.mkdir(parents=True)
    (inside / "cgroup.procs").write_text(str(step().pid))
    real.keep()
    assert hard_mib(real.driver, group) == 4096
    real.keep(here=False)
    assert hard_mib(real.driver, group) is None
