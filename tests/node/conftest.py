"""A node without a cluster: its folders, the stand-in for MPS, the stand-in GPUs' ledger, the hooks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.devcluster import ledger
from slurm_gpumem.node.gpus import NodeGpu, standin_gpus
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.mps.daemons import MpsService, remove_home
from tests.node.desk import Desk
from tests.support.site_toml import site_toml

REPOSITORY = Path(__file__).resolve().parents[2]
MPS_STANDIN = Path(__file__).with_name("bin") / "nvidia-cuda-mps-control"
NODE = "n1"
USER, OTHER_USER = 65534, 1
"""nobody and daemon: every Linux has them."""

WITHOUT_HASTE = """\
import functools, sys, types
from slurm_gpumem.node import hook, processes
from slurm_gpumem.node.hooks import service
from slurm_gpumem.node.mps import daemons, mps_limits
from slurm_gpumem.node.sampler import __main__ as sampler
mps_limits._DAEMONS_READY_S = daemons._MOUNT_S = processes._SEARCH_S = 120.0
hook._FAULTS_LOCK_S = hook._DROP_LOCK_S = hook._RECORDS_LOCK_S = 120.0
mps_limits.MpsService = hook.MpsService = functools.partial(
    daemons.MpsService, start_timeout_s=120.0, quit_timeout_s=120.0
)
service.sys = types.SimpleNamespace(executable=sys.argv[0])
assert sys.argv[1:3] == ["-I", "-m"], sys.argv
main = {"slurm_gpumem.node.hook": hook.main, "slurm_gpumem.node.sampler": sampler.main}[sys.argv[3]]
sys.exit(main(sys.argv[4:]))
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hooks run as root for other users")


def take_haste_away(hooks: Path) -> None:
    """Give the hooks in a folder, and the sampler that they start, minutes where they have seconds.

    For tests of what many hooks at once do: on a slow machine that alone takes longer than one of them may
    wait. How long one waits is for tests of time.
    """
    path, limits = hooks / "hand_over.sh", "patience=3 late=2"
    script = path.read_text()
    assert limits in script
    path.write_text(script.replace(limits, "patience=200 late=200"))
    program = hooks / "python-without-haste"
    program.write_text(f"#!{sys.executable} -I\n{WITHOUT_HASTE}")
    program.chmod(0o755)
    with open(hooks / "hooks.conf", "a") as file:
        file.write(f"python={program}\n")


@dataclass(frozen=True)
class Node:
    """One node's folders and what the site configured there."""

    root: Path
    folder: RunFolder
    config: NodeConfig
    hooks: Path

    @property
    def gpus(self) -> List[NodeGpu]:
        return list(standin_gpus(self.root / "ledger", NODE))

    @property
    def mps(self) -> MpsService:
        return MpsService(self.folder, self.config.mps_control)

    def env(
        self, job_id: int, *, uid: int = USER, gpu: str = "0", comment: Optional[str] = None, **more: str
    ) -> Dict[str, str]:
        """What slurmd would put into a hook's environment."""
        word = "gpumem/1:est=7000,req=8192" if comment is None else comment
        return {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_USER": f"u{uid}",
            "SLURM_JOB_GPUS": gpu,
            "SLURM_JOB_COMMENT": word,
            "SLURMD_NODENAME": NODE,
            "SLURM_JOB_RESTART_COUNT": "0",
            **more,
        }

    def hook(self, name: str, env: Dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a shell hook as slurmd does: nothing but its own variables."""
        return subprocess.run(
            [str(self.hooks / f"{name}.sh")],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    def with_config(self, **changes: Any) -> Node:
        """The same node, configured otherwise."""
        config = self.config._replace(**changes)
        write_site_config(self.root, config)
        return replace(self, config=config)

    def without_haste(self) -> Node:
        """The same node, whose hooks have minutes where they have seconds."""
        take_haste_away(self.hooks)
        return self

    def log(self) -> str:
        """What hooks and sampler complained about."""
        try:
            return (self.folder.root / "log").read_text()
        except OSError:
            return ""


def write_site_config(root: Path, config: NodeConfig) -> None:
    words = ("mps", "ledger", "spool", "mps_control", "on_overrun")
    numbers = ("interval_s", "idle_exit_s", "slurm_every_s", "grace_s", "record_every_s", "headroom_mib")
    values = {key: str(getattr(config, key)) for key in words if getattr(config, key) is not None}
    text = site_toml({**values, **{key: getattr(config, key) for key in numbers}})
    (root / "gpumem.toml").write_text(text)


@pytest.fixture(autouse=True)
def nobody_waits_for_a_daemon_after_a_test() -> Iterator[None]:
    """Who is still asked to let a process go says so later, on the stderr of another test."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("ends of"):
            thread.join(20)


@pytest.fixture
def node(state_folder: Path) -> Iterator[Node]:
    """A node with four stand-in GPUs of 40 GiB, hooks installed, no sampler unless a hook starts one."""
    (state_folder / "ledger").mkdir()
    ledger.create(state_folder / "ledger", {NODE: [ledger.StandIn(40 * 1024)] * 4})
    control = state_folder / "bin" / MPS_STANDIN.name
    control.parent.mkdir()
    shutil.copy(MPS_STANDIN, control)
    hooks = state_folder / "hooks"
    shutil.copytree(REPOSITORY / "prolog", hooks)
    (hooks / "hooks.conf").write_text(
        f"python={sys.executable}\nsite_config={state_folder}/gpumem.toml\nrun_dir={state_folder}/run\n"
    )
    config = NodeConfig(
        ledger=state_folder / "ledger",
        spool=state_folder / "spool",
        mps_control=str(control),
        interval_s=0.1,
        idle_exit_s=0.5,
        slurm_every_s=1.0,
        grace_s=0.2,
    )
    write_site_config(state_folder, config)
    folder = RunFolder(state_folder / "run")
    folder.make()
    made = Node(state_folder, folder, config, hooks)
    yield made
    for pid in [*(daemon.process.pid for daemon in made.mps.daemons()), *samplers_of(made.folder.root)]:
        kill(pid)
    for home in folder.mps.glob("*/*"):
        remove_home(home)


def left_of_daemons(folder: RunFolder) -> List[Path]:
    """What MPS daemons have left behind; the socket there is the sampler's."""
    return [path for path in folder.mps.iterdir() if path != folder.end_socket]


def kill(pid: int) -> bool:
    """KILL; False when it had just ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def samplers_of(run_folder: Path) -> List[int]:
    """Samplers that hooks with this run folder, or one below it, started."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                wanted = b"slurm_gpumem.node.sampler" in line
                if wanted and str(run_folder).encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
            except OSError:
                continue
    return found


@pytest.fixture
def make_desk(state_folder: Path) -> Iterator[Callable[..., Desk]]:
    """Makes a sampler's desk of given settings; its processes end with the test."""
    desks: List[Desk] = []

    def make(**options: Any) -> Desk:
        desks.append(Desk(state_folder, **options))
        return desks[-1]

    yield make
    for process in (process for desk in desks for process in desk.processes):
        process.kill()
        process.wait()


@pytest.fixture
def desk(make_desk: Callable[..., Desk]) -> Desk:
    return make_desk()


# At the end: it uses what stands above.
from tests.node.real_site import make_site, site  # noqa: E402, F401
