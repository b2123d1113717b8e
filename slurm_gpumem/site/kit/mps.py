"""What the kit tries under MPS: contexts, memory limits, ends. Daemons of its own, which end with it.

The product's own code starts the daemon, sets limits and takes clients from their server; only Slurm
is missing. Unprivileged, the daemon is the user's, as with `mps = "per-user"`; root's serves all users.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.data import data_path
from slurm_gpumem.formats.job_record import MPS, MPS_SHARED
from slurm_gpumem.formats.kit_file import KitRow
from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import SHARED_UID, NodeJob, RunFolder
from slurm_gpumem.node.mps.client_exit import EndServer, Exits
from slurm_gpumem.node.mps.daemons import MpsError, MpsService
from slurm_gpumem.node.nvml import Nvml
from slurm_gpumem.site.calibration_context import environment_for
from slurm_gpumem.site.kit.children import Child, ChildError, Children, wait_for

LIMIT_MIB, MORE_MIB = 1536, 768
CLIENT = "slurm_gpumem.site.kit.mps_client"
READY_S, _END_S, _AFTER_S = 60.0, 35.0, 8.0
_JUDGED_S = 1.5
"""A neighbour that falls does so within a second."""
_TIMES = 2
_CONTROLS = ("/usr/bin/nvidia-cuda-mps-control", "/usr/local/nvidia/bin/nvidia-cuda-mps-control")
_LIBRARIES = ("/usr/libexec/slurm-gpumem/libgpumem_end.so",)
_OURS = ("CUDA_MPS_", "CUDA_VISIBLE_DEVICES", "CUDA_INJECTION64_PATH")
_FORGED = "abc"
"""No limit for a GPU: MPS drops the client's limits."""
Say = Callable[[KitRow], None]


class Bench(NamedTuple):
    """What the probes work with."""

    python: str
    uuid: str
    control: str
    folder: Path
    """Private; all of it goes away."""
    children: Children
    nvml: Nvml
    late: Callable[[], bool]
    """Whether what has not begun by now is left out."""


def control_program() -> Optional[str]:
    """nvidia-cuda-mps-control, where this node has it."""
    found = shutil.which("nvidia-cuda-mps-control")
    return found or next((path for path in _CONTROLS if os.access(path, os.X_OK)), None)


def foreign_server(uuid: str) -> bool:
    """Whether an MPS server runs here that may have this GPU: not everybody may see which one it has.

    A daemon without a server, as our Prolog starts for every job with one GPU, has none.
    """
    try:
        daemons = [pid for pid in processes.named("nvidia-cuda-mps") if processes.start_of(pid) is not None]
    except TimeoutError:
        return True
    servers = [pid for pid in daemons if "nvidia-cuda-mps-server" in processes.command_line(pid)]
    seen = [processes.environment(pid).get("CUDA_VISIBLE_DEVICES", "") for pid in servers]
    return any(not gpus.startswith("GPU-") or uuid in gpus.split(",") for gpus in seen)


class _Ends(EndServer):
    """The sampler's, with one job: whatever process asks is one of ours, or not this user's."""

    def __init__(self, folder: RunFolder, exits: Exits, job: NodeJob) -> None:
        super().__init__(folder, exits)
        self._job = job

    def job_of(self, pid: int, uid: int) -> Optional[NodeJob]:
        return self._job if uid == self._job.uid else None


class Served:
    """A GPU with an MPS daemon of the kit's."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.uid = os.geteuid()
        self.folder = RunFolder(bench.folder / "r")
        self.folder.make()
        self.service = MpsService(self.folder, bench.control, start_timeout_s=10.0, quit_timeout_s=5.0)
        self.exits = Exits(self.folder, NodeConfig()._replace(mps_control=bench.control))
        self.job = NodeJob(
            1, self.uid, "", (bench.uuid,), MPS_SHARED if self.uid == SHARED_UID else MPS, time.time()
        )
        self.clients: List[Child] = []

    def client(self, *argv: str, **variables: str) -> Child:
        """A new client, not waited for."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        environment = {
            **environment_for(own),
            "CUDA_VISIBLE_DEVICES": self._bench.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folder.pipe(self._bench.uuid, self.uid)),
            **variables,
        }
        child = self._bench.children.start([self._bench.python, "-m", CLIENT, *argv], environment)
        self.clients.append(child)
        return child

    def ready(self, *clients: Child) -> None:
        """Once they are; ChildError says which cannot."""
        wait_for(lambda: all(one.answer("ready") is not None or not one.runs for one in clients), READY_S)
        for one in clients:
            if one.answer("ready") is None:
                raise ChildError(why_not(one))

    def used_mib(self) -> int:
        memory = self._bench.nvml.memory_mib(self._bench.uuid)
        return int(memory[0]) if memory else 0

    def held_mib(self, pid: int) -> Optional[float]:
        """What the driver lists for it; None when it lists it no more."""
        nvml, uuid = self._bench.nvml, self._bench.uuid
        listed = dict([*nvml.processes(uuid), *(nvml.mps_processes(uuid) or [])])
        return (listed[pid] or 0.0) if pid in listed else None

    def take(self, child: Child) -> bool:
        return self.exits.take(self.job, [child.pid])


@contextlib.contextmanager
def served(bench: Bench) -> Iterator[Served]:
    """A daemon of our own; nothing of it is left afterwards."""
    at = Served(bench)
    try:
        at.service.ensure(bench.uuid, at.uid, in_use=False)
        yield at
    finally:
        # Nobody else would stop the daemon.
        with bench.children.uninterrupted():
            for child in at.clients:
                bench.children.end(child, 3.0)
            at.service.stop(bench.uuid, at.uid)
            shutil.rmtree(at.folder.root, ignore_errors=True)


def why_not(child: Child) -> str:
    """Why a client did not do its part, without anything of its site."""
    if child.runs:
        return "did not answer in time"
    last = next((line for line in reversed(child.last) if "Error" in line), "")
    kind = last.split(":")[0].strip().rpartition(".")[2]
    return kind if kind.isidentifier() else f"ended with code {child.code}"


def contexts(bench: Bench, say: Say) -> None:
    """Two clients with nothing but a context: what each adds, and what the server takes."""
    with served(bench) as at:
        before = at.used_mib()
        seen = []
        for _ in range(2):
            client = at.client("context")
            at.ready(client)
            seen.append((at.used_mib() - before, int(client.answer("ready") or 0)))
        (one, first), (two, second) = seen
        said = (
            f"the driver counts {first} and {second} MiB for the clients; the GPU {one} with the first, so "
            f"{one - first} for the server, and {two - one} more with the second"
        )
        whose = "all users" if at.uid == SHARED_UID else "one user"
        say(KitRow("MPS", f"two contexts at a server for {whose}", 2, 2, True, said))


def limits(bench: Bench, say: Say) -> None:
    """Is a client refused at its limit, and can it have more than that?"""
    with served(bench) as at:
        if not at.service.set_default_limit(bench.uuid, at.uid, LIMIT_MIB):
            say(KitRow("limits", "all", 1, 0, True, "the daemon took no limit"))
            return
        variable, smaller = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", LIMIT_MIB * 2 // 3
        cases: Tuple[Tuple[str, str, int, bool], ...] = (
            ("refused at the server's limit", "", LIMIT_MIB, True),
            ("refused at its own smaller limit", f"{bench.uuid}={smaller}M", smaller, True),
            ("cannot ask for more than the server's", f"{bench.uuid}={LIMIT_MIB * 4}M", LIMIT_MIB, True),
            ("cannot drop its limit by an invalid one", _FORGED, LIMIT_MIB, False),
        )
        for what, value, limit, promised in cases:
            client = at.client("grow", str(limit + MORE_MIB), **({variable: value} if value else {}))
            client.wait(READY_S)
            held, process = client.answer("held"), client.answer("process")
            if held is None:
                say(KitRow("limits", what, 0, 0, promised, why_not(client)))
                continue
            refused = bool(client.answer("refused")) and held <= limit
            said = f"limit {limit} MiB: {held} MiB allocated, {process} by the driver's count"
            say(KitRow("limits", what, 1, int(refused), promised, said))


class Way(NamedTuple):
    """How a client ends."""

    what: str
    busy: bool
    library: bool
    end: Callable[[Served, Child], None]
    promised: bool = True
    times: int = _TIMES


def _signal(number: int) -> Callable[[Served, Child], None]:
    return lambda at, child: child.send(number)


def _word(word: str) -> Callable[[Served, Child], None]:
    return lambda at, child: child.tell(word)


def _take_and_kill(at: Served, child: Child) -> None:
    """As the sampler ends what holds too much, or is left."""
    if not at.take(child):
        raise ChildError("the daemon did not answer")
    child.send(signal.SIGKILL)


_WAYS = (
    Way("its script ends, work queued", True, True, _word("leave")),
    Way("SIGTERM, computes", True, True, _signal(signal.SIGTERM), times=3),
    Way("its own code crashes (SIGSEGV), work queued", True, True, _word("crash")),
    Way("SIGTERM, idle", False, True, _signal(signal.SIGTERM), times=1),
    Way("taken from its server, SIGKILL; idle", False, False, _take_and_kill, times=3),
    Way("taken from its server, SIGKILL; computes", True, False, _take_and_kill),
    Way("SIGSEGV from outside, computes", True, True, _signal(signal.SIGSEGV), promised=False),
    Way("SIGKILL alone, computes", True, False, _signal(signal.SIGKILL), promised=False),
)


def ends(bench: Bench, library: Optional[Path], say: Say) -> None:
    """Clients that end beside one that computes: does it go on, and is their memory free?"""
    for way in _WAYS:
        if bench.late():
            raise ChildError("no time left")
        if way.library and library is None:
            say(
                KitRow(
                    "ends", way.what, 0, 0, way.promised, "no libgpumem_end.so, and no C compiler to make it"
                )
            )
            continue
        with served(bench) as at:
            server = _Ends(at.folder, at.exits, at.job)
            server.start()
            try:
                say(_ends_one_way(at, way, library))
            finally:
                server.close()


def _ends_one_way(at: Served, way: Way, library: Optional[Path]) -> KitRow:
    injected: Dict[str, str] = {}
    if way.library:
        injected = {"CUDA_INJECTION64_PATH": str(library), "GPUMEM_END_SOCKET": str(at.folder.end_socket)}
    witness = at.client("compute")
    clients = [at.client("wait", **injected) for _ in range(way.times)]
    at.ready(witness, *clients)
    tried = lived = 0
    freed: List[Optional[float]] = []
    for number, child in enumerate(clients):
        if not witness.runs or not child.runs:
            break
        if way.busy:
            child.tell("compute")
            wait_for(lambda child=child: bool(child.answer("steps")), _AFTER_S)  # type: ignore[misc]
        others = [witness, *clients[number + 1 :]]
        # In a container the driver may have another number for it than we have.
        listed = at.held_mib(child.pid) is not None
        began = time.monotonic()
        try:
            way.end(at, child)
        except ChildError as error:
            return KitRow("ends", way.what, tried + 1, lived, way.promised, str(error))
        if not child.wait(_END_S):
            return KitRow(
                "ends", way.what, tried + 1, lived, way.promised, f"one had not ended after {_END_S:.0f} s"
            )
        free = wait_for(lambda child=child: at.held_mib(child.pid) is None, _AFTER_S)  # type: ignore[misc]
        tried += 1
        freed.append(time.monotonic() - began if listed else None)
        lived += int(free and _go_on(witness, others))
    seconds = [one for one in freed if one is not None]
    said = f"memory free within {max(seconds):.1f} s" if seconds else "when its memory was free was not seen"
    return KitRow("ends", way.what, tried, lived, way.promised, said)


def _go_on(witness: Child, others: List[Child]) -> bool:
    """Whether all live after the time in which neighbours fall, and the one that computes has gone on."""
    counted = witness.answer("steps") or 0
    wait_for(lambda: any(not one.runs for one in others), _JUDGED_S)
    wait_for(lambda: (witness.answer("steps") or 0) > counted or not witness.runs, _AFTER_S)
    return all(one.runs for one in others) and (witness.answer("steps") or 0) > counted


def end_library(folder: Path) -> Optional[Path]:
    """The installed library, else one made here; None where there is neither it nor a compiler."""
    beside = data_path("prolog", "gpumem_end.c").with_name("libgpumem_end.so")
    for path in (beside, *map(Path, _LIBRARIES)):
        if path.exists():
            return path
    place = folder / "end"
    place.mkdir()
    for name in ("build_end.sh", "gpumem_end.c"):
        shutil.copy(data_path("prolog", name), place / name)
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["/bin/sh", str(place / "build_end.sh")], capture_output=True, timeout=60, check=False)
    made = place / "libgpumem_end.so"
    return made if made.exists() else None


FAILURES = (ChildError, MpsError, OSError)
"""What keeps a probe from its end."""
