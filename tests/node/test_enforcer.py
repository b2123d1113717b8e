"""Jobs above their shards are ended alone; clients without a limit are noted; who asks to go is let go."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.node import jobs, processes
from slurm_gpumem.node.mps.client_exit import EndServer, Exits
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.sampler.enforcer import LIMIT_VARIABLE, holds_limit
from slurm_gpumem.node.sources.base import GpuProcess
from tests.node.conftest import OTHER_USER, USER, needs_root
from tests.node.desk import GPUS, Desk
from tests.support.waiting import until

FOUR_SHARDS = f'echo "$4" {os.getuid()} RUNNING 0 0 1 gres:shard:4'
SERVER = 4711
OURS = {LIMIT_VARIABLE: f"{GPUS[0].uuid}=4096M", "CUDA_VISIBLE_DEVICES": GPUS[0].uuid}
NO_LIMITS = {
    "a size of 0": "0=0",
    "a GPU that is not seen": "1=1G",
    "one GPU too many": "0=2048M,1=1G",
    "an unknown UUID": "GPU-00000000-0000-0000-0000-000000000000=1G",
    "more than its share": "0=20000M",
    "empty": "",
    "negative": "0=-1M",
    "another GPU's UUID": "GPU-00000007=1024M",
}


class Limited:
    """A desk whose jobs have an MPS server; it notes what it is told."""

    def __init__(self, make_desk: Callable[..., Desk], root: Path, **config: object) -> None:
        self._told = root / "told"
        self._told.touch(0o666)
        self._told.chmod(0o666)
        control = root / "mps-control"
        control.write_text(
            "#!/bin/sh\nwhile read -r line; do\n"
            f'    echo "$line" >>{self._told}\n'
            f'    if [ "$line" = get_server_list ]; then echo {SERVER}; fi\ndone\n'
        )
        control.chmod(0o755)
        self.desk = make_desk(mps_control=str(control), **config)

    def told(self) -> str:
        return self._told.read_text()

    def ended(self, pid: int) -> bool:
        return f"terminate_client {SERVER} {pid}\n" in self.told()

    def pair(self, first_mib: float, **variables: str) -> Dict[str, int]:
        """Processes of two jobs at one server; the first holds this much."""
        self.desk.job(1, mode="mps", claim=CommentRecord(shards=4, request_mib=4096))
        self.desk.job(2, mode="mps")
        pids = {
            "first": self.desk.process(1, None, **variables),
            "second": self.desk.process(2, None, **OURS),
        }
        self.desk.hold({pids["first"]: first_mib, pids["second"]: 10.0}, mps=True)
        return pids

    def notes(self, job: int) -> str:
        return str(self.desk.live()[str(job)]["notes"])


def _first_event(job: Dict[str, Any]) -> Tuple[str, List[int]]:
    event = job["events"][0]
    return event["kind"], event["with"]


@pytest.fixture
def make_limited(make_desk: Callable[..., Desk], state_folder: Path) -> Callable[..., Limited]:
    return lambda **config: Limited(make_desk, state_folder, **config)


def test_a_job_above_its_shards_is_ended_alone_through_its_mps_server(
    make_limited: Callable[..., Limited],
) -> None:
    limited = make_limited(squeue=FOUR_SHARDS)
    pids = limited.pair(9000.0, **OURS)
    until(lambda: limited.desk.live() and limited.ended(pids["first"]))
    live = limited.desk.live()
    assert _first_event(live["1"]) == ("overrun", [2])
    assert _first_event(live["2"]) == ("crowded", [1])
    assert not limited.ended(pids["second"])
    assert limited.desk.said() == ""


def test_alone_on_its_gpu_it_is_only_noted(make_limited: Callable[..., Limited]) -> None:
    limited = make_limited(squeue=FOUR_SHARDS)
    pids = limited.pair(9000.0, **OURS)
    limited.desk.hold({pids["first"]: 9000.0}, mps=True)
    until(lambda: limited.desk.live()["1"]["shards_verified"])
    until(lambda: "9000 MiB" in limited.notes(1))
    assert limited.desk.live()["1"]["events"] == []
    assert "terminate_client" not in limited.told()


def test_a_claim_that_slurm_has_not_confirmed_ends_nothing(make_limited: Callable[..., Limited]) -> None:
    limited = make_limited(squeue="exit 1")
    limited.pair(9000.0, **OURS)
    until(lambda: "9000 MiB" in limited.notes(1))
    for _ in range(3):
        assert not limited.desk.live()["1"]["shards_verified"]
    assert limited.desk.live()["1"]["events"] == []
    assert "terminate_client" not in limited.told()


def test_the_shares_of_jobs_that_start_together_are_confirmed_before_the_next_look(
    make_desk: Callable[..., Desk],
) -> None:
    desk = make_desk(squeue=FOUR_SHARDS, slurm_every_s=60)
    for job in range(1, 6):
        desk.job(job, mode="mps", claim=CommentRecord(shards=4, request_mib=4096))
    desk.hold({desk.process(job): 10.0 for job in range(1, 6)}, mps=True)
    desk.live()
    until(lambda: not desk.sampler.roster.confirm_shares())
    assert [desk.sampler.roster.usage[job].verified for job in range(1, 6)] == 5 * [True]


CULPRITS = {
    "sleeps": "play(time.sleep, 60)",
    "ignores SIGTERM": "play(signal.pause, before=lambda: signal.signal(15, signal.SIG_IGN))",
    "is stopped again and again": "pid = play(signal.pause)\nwhile True: os.kill(pid, 19); time.sleep(0.01)",
    "is held by a tracer": "play(os.kill, 0, 19, before=lambda: (os.setsid(), libc.ptrace(0, 0, 0, 0)))",
    "hides whose it is": "play(time.sleep, 60, before=lambda: libc.prctl(4, 0))",
    "has a daemon that does not answer": "play(time.sleep, 60)",
    "four processes of a quarter each": "[play(time.sleep, 60) for _ in range(4)]",
}
PLAY = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
def play(act, *words, before=lambda: None):
    ready, is_ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        before()
        os.close(is_ready)
        act(*words)
        os._exit(0)
    os.close(is_ready)
    os.read(ready, 1)
    print(pid, flush=True)
    return pid
"""


@needs_root
@pytest.mark.parametrize(("how", "mps"), [*((how, True) for how in CULPRITS), ("sleeps", False)])
def test_who_holds_on_to_it_is_killed_and_a_neighbour_that_computes_goes_on(
    make_limited: Callable[..., Limited], monkeypatch: pytest.MonkeyPatch, how: str, mps: bool
) -> None:
    monkeypatch.setattr("slurm_gpumem.node.sampler.enforcer._KILL_AFTER_S", 0.5)
    limited = make_limited(squeue=FOUR_SHARDS)
    desk = limited.desk
    asked = mps and "daemon" not in how
    if not asked:
        (desk.root / "mps-control").write_text("#!/bin/sh\nexec sleep 600\n")
    desk.job(1, uid=USER, mode="mps" if mps else "without_mps")
    desk.job(2, mode="mps")
    tail = "\nos.close(1)\nsignal.pause()"
    made = subprocess.Popen(
        ["/usr/bin/python3", "-c", f"{PLAY}{CULPRITS[how]}{tail}"],
        env={"SLURM_JOB_ID": "1"}, user=USER, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    desk.processes.append(made)  # type: ignore[arg-type]
    assert made.stdout is not None
    culprits = [int(made.stdout.readline()) for _ in range(4 if how.startswith("four") else 1)]
    computes = desk.root / "computes"
    neighbour = desk.process(2, None, program=f"while sleep 0.02; do echo >>{computes}; done", **OURS)
    sizes = {pid: 9000.0 / len(culprits) for pid in culprits}

    def gone() -> bool:
        alive = {pid: mib for pid, mib in sizes.items() if processes.start_of(pid) is not None}
        desk.hold({**alive, neighbour: 10.0}, mps=mps)
        desk.live()
        return not alive

    until(gone)
    assert all(limited.ended(pid) is asked for pid in culprits)
    events = desk.live()["2"]["events"]
    assert [(event["kind"], event["with"]) for event in events] == [("crowded", [1])]
    seen = len(computes.read_text())
    until(lambda: len(computes.read_text()) > seen)


@pytest.mark.parametrize(("busy", "killed_at"), [(False, 3.0), (True, 6.0)])
def test_a_client_whose_server_is_still_at_it_has_twice_the_time_to_leave(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, busy: bool, killed_at: float
) -> None:
    desk.job(1)
    (job,) = jobs.all_jobs(desk.folder)
    enforcer, pid = desk.sampler._enforcer, desk.process(1)
    process = processes.Process(pid, processes.start_of(pid) or 0)
    holds = {GPUS[0].uuid: {1: [GpuProcess(process.pid, 9000.0, True)]}}
    sent: List[Tuple[object, int]] = []
    monkeypatch.setattr(enforcer, "_is_busy", lambda job_id, why: busy)
    monkeypatch.setattr(processes, "send", lambda *words: sent.append(words))
    enforcer._ordered[process] = (job, 100.0)
    enforcer._kill_unwilling(holds, 100.0 + killed_at - 0.1)
    assert sent == []
    enforcer._kill_unwilling(holds, 100.0 + killed_at)
    assert sent == [(process, signal.SIGKILL)]


@needs_root
def test_a_process_that_hides_its_job_counts_to_its_users_last_job_on_that_gpu(
    make_limited: Callable[..., Limited],
) -> None:
    limited = make_limited(squeue=FOUR_SHARDS)
    desk = limited.desk
    desk.job(1, uid=USER, mode="mps")
    desk.job(2, uid=USER, mode="mps")
    desk.job(3, uid=USER, gpu=1)
    done = subprocess.run(
        ["/usr/bin/python3", "-c", "import os\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\n"
         "os.setsid(); os.dup2(2, 1); os.execve('/bin/sleep', ['sleep', '60'], {})"],
        user=USER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
    )  # fmt: skip
    stray, server = int(done.stdout), desk.root / "nvidia-cuda-mps-server"
    server.write_bytes(Path("/bin/sleep").read_bytes())
    server.chmod(0o755)
    serves = subprocess.Popen([str(server), "60"], env={}, user=USER)
    desk.processes.append(serves)
    neighbour = desk.process(1, USER, **OURS)
    desk.job(4, uid=USER)

    def gone() -> bool:
        alive = {stray: 9000.0} if processes.start_of(stray) is not None else {}
        desk.hold({**alive, serves.pid: 9000.0, neighbour: 10.0})
        desk.live()
        return not alive

    until(gone)
    assert [_first_event(desk.live()[str(job)]) for job in (1, 2)] == [("crowded", [2]), ("overrun", [1])]
    assert serves.poll() is None


def test_the_limit_that_the_task_prolog_writes_is_one() -> None:
    assert holds_limit(OURS, 4096)
    assert holds_limit({LIMIT_VARIABLE: "0=2048M"}, 4096)


@pytest.mark.parametrize("value", NO_LIMITS.values(), ids=NO_LIMITS)
def test_what_mps_does_not_hold_a_client_to_is_no_limit(value: str) -> None:
    assert not holds_limit({**OURS, LIMIT_VARIABLE: value}, 4096)


def test_a_missing_variable_is_no_limit() -> None:
    assert not holds_limit({"CUDA_VISIBLE_DEVICES": GPUS[0].uuid}, 4096)


@pytest.mark.parametrize(
    ("variables", "noted"),
    [(OURS, False), ({**OURS, LIMIT_VARIABLE: "abc"}, True)],
    ids=["ours", "invalid"],
)
def test_a_client_without_its_limit_is_noted(
    make_limited: Callable[..., Limited], variables: Dict[str, str], noted: bool
) -> None:
    limited = make_limited(squeue=FOUR_SHARDS)
    limited.pair(100.0, **variables)
    until(lambda: limited.desk.live()["1"]["shards_verified"])
    limited.desk.sampler.tick()
    assert ("memory limit was changed or removed" in limited.notes(1)) is noted
    assert "terminate_client" not in limited.told()


@pytest.fixture
def asking(make_limited: Callable[..., Limited]) -> Iterator[Limited]:
    """A sampler's socket, and a job of a user at it."""
    limited = make_limited()
    server = EndServer(limited.desk.folder, Exits(limited.desk.folder, limited.desk.config))
    server.start()
    limited.desk.job(1, mode="mps", uid=USER)
    limited.desk.folder.root.parent.chmod(0o755)
    yield limited
    server.close()


def _ask(limited: Limited, uid: int, job: str) -> int:
    """Ask as a process of that user, with that job in its environment, and wait for the answer; its pid."""
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
    code += "s.connect(sys.argv[1]); print(s.recv(1) == b'')"
    asked = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-S", "-c", code, str(limited.desk.folder.end_socket)],
        env={"SLURM_JOB_ID": job},
        user=uid,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asked.communicate(timeout=120)[0] == "True\n"
    return asked.pid


@needs_root
def test_a_process_of_a_job_that_asks_is_taken_from_its_server(asking: Limited) -> None:
    pid = _ask(asking, USER, "1")
    assert asking.told() == f"get_server_list\nterminate_client {SERVER} {pid}\n"


@needs_root
@pytest.mark.parametrize(("uid", "job"), [(OTHER_USER, "1"), (USER, "2"), (0, "1")])
def test_a_process_of_nobodys_job_is_answered_and_nothing_is_ended(
    asking: Limited, uid: int, job: str
) -> None:
    _ask(asking, uid, job)
    assert asking.told() == ""


@needs_root
@pytest.mark.parametrize("mode", ["mps", "mps-shared"])
def test_one_users_processes_that_are_not_let_go_keep_no_other_user_waiting(
    asking: Limited, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(MpsService, "leave_timeout_s", 600.0)
    control, hung = Path(asking.desk.config.mps_control), asking.desk.root / "hung"
    # What MPS does about a client that is stopped.
    stopped = f'[ "${{line##* }}" = "$(cat {hung}.pid)" ]'
    hangs = f"if {stopped}; then echo $$ >>{hung}; exec sleep 200; fi\ndone\n"
    control.write_text(control.read_text().replace("done\n", hangs))
    for place in (hung, Path(f"{hung}.pid")):
        place.touch()
        place.chmod(0o666)
    for job, uid in ((1, USER), (2, OTHER_USER)):
        asking.desk.job(job, mode=mode, uid=uid)
    code = "import os, socket, sys, time; kind = socket.AF_UNIX, socket.SOCK_SEQPACKET; "
    code += (
        "print(os.getpid(), file=open(sys.argv[2], 'w')); kept = [socket.socket(*kind) for _ in range(250)]; "
    )
    code += "[one.connect(sys.argv[1]) for one in kept]; print(); sys.stdout.flush(); time.sleep(600)"
    flood = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-S", "-c", code, str(asking.desk.folder.end_socket), f"{hung}.pid"],
        env={"SLURM_JOB_ID": "1"},
        user=USER,
        stdout=subprocess.PIPE,
    )
    asking.desk.processes.append(flood)
    assert flood.stdout is not None
    assert flood.stdout.readline()
    until(hung.read_text)
    try:
        assert asking.ended(_ask(asking, OTHER_USER, "2"))
    finally:
        for pid in hung.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
