"""What each way of sharing a GPU gives and what it costs: two users on one GPU, one of them hostile.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root (three minutes):

    python3 lab/gpu/sharing_modes.py --out DIR [--parts control,files,stop,kill,limits,faults,throughput]

The daemons are started by the code that prologs use (slurm_gpumem.node.mps.daemons). One JSON line a
finding goes to DIR/sharing_modes.jsonl as it comes. `--rehearse` plays it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

from mode_workers import Worker, rate

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node.gpus import find_gpus
from slurm_gpumem.node.jobs import SHARED_UID, RunFolder
from slurm_gpumem.node.mps.daemons import MULTI_USER, MpsError, MpsService

VICTIM, ATTACKER = 65534, 1
"""nobody and daemon: every Linux has them."""
SETS: Sequence[Tuple[Tuple[str, int], ...]] = (
    (("small", VICTIM), ("small", ATTACKER)),
    (("small", VICTIM), ("conv256", ATTACKER)),
    (("conv32", VICTIM), ("text16", ATTACKER)),
    (("conv32", VICTIM), ("conv32", ATTACKER)),
    (("text16", VICTIM), ("conv256", ATTACKER)),
    (("text128", VICTIM), ("conv256", ATTACKER)),
    (("small", VICTIM), ("conv32", ATTACKER), ("text16", VICTIM), ("small", ATTACKER)),
)
_STANDIN = Path(__file__).resolve().parents[2] / "tests" / "node" / "bin" / "nvidia-cuda-mps-control"
_UUID_PLAYED = "GPU-11111111-2222-3333-4444-555555555555"


class Trial:
    """One GPU, its daemons, and a file for what is found."""

    def __init__(self, out: Path, played: bool, control: str, state: Path) -> None:
        self.played = played
        self._file = open(out / "sharing_modes.jsonl", "w", encoding="utf-8")  # noqa: SIM115 - for life
        gpus = [] if played else find_gpus(NodeConfig(), "")
        self.uuid = _UUID_PLAYED if played else gpus[0].uuid
        self.folder = RunFolder(state / "run")
        state.chmod(0o755)
        self.folder.make()
        self.mps = MpsService(self.folder, control, tmpfs_mib=16)
        self.workers: List[Worker] = []
        self.pipe_mode: Optional[int] = None
        """Another mode than the product's, where that does not let clients in."""
        try:
            self.fresh()
        except MpsError as error:  # nothing can be mounted in this container
            self.say("options", without_tmpfs=str(error))
            self.mps = MpsService(self.folder, control)
            self.fresh()

    def say(self, part: str, **found: Any) -> None:
        line = json.dumps({"part": part, **found})
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()

    def env(self, daemon: Optional[int], **more: str) -> Dict[str, str]:
        """A job's environment at the daemon of that user; None for time slices."""
        nowhere = "/nonexistent/gpumem-no-mps"
        pipe = nowhere if daemon is None else str(self.folder.pipe(self.uuid, daemon))
        return {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_VISIBLE_DEVICES": self.uuid, "HOME": "/tmp", **more}

    def worker(self, name: str, uid: int, daemon: Optional[int], **more: str) -> Worker:
        made = Worker(name, uid, self.env(daemon, **more), self.played)
        self.workers.append(made)
        return made

    def end_workers(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers = []

    def as_user(self, uid: int, command: str) -> Dict[str, Any]:
        """A control command at the shared daemon's pipe, typed by that user."""
        try:
            done = subprocess.run(
                [self.mps.control],
                input=f"{command}\n",
                env={"PATH": "/usr/bin:/bin", **self.env(SHARED_UID)},
                capture_output=True,
                text=True,
                timeout=6,
                check=False,
                user=uid,
                group=uid,
                extra_groups=[],
            )
        except subprocess.TimeoutExpired:
            return {"timeout": True}
        return {"rc": done.returncode, "out": done.stdout.strip()[:200], "err": done.stderr.strip()[:200]}

    def root_asks(self, *commands: str) -> Dict[str, Optional[str]]:
        return {command: self.mps.ask(self.uuid, SHARED_UID, command) for command in commands}

    def server(self) -> str:
        return (self.mps.ask(self.uuid, SHARED_UID, "get_server_list") or "").split("\n")[0]

    def logs(self, last: int = 30) -> Dict[str, List[str]]:
        """What root's daemon and server wrote."""
        found = {}
        for path in sorted(self.folder.log(self.uuid, SHARED_UID).glob("*")):
            lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
            found[path.name] = [line[12:] for line in lines[-last:]]
        return found

    def fresh(self) -> None:
        """A new shared daemon, nobody at it."""
        self.end_workers()
        self.mps.stop(self.uuid, SHARED_UID)
        self.mps.ensure(self.uuid, SHARED_UID, in_use=False)
        if self.pipe_mode is not None:
            self.folder.pipe(self.uuid, SHARED_UID).chmod(self.pipe_mode)

    def let_users_in(self) -> None:
        """The narrowest mode of the pipe folder that another user's client can connect through."""
        for mode in (None, 0o755, 0o777):
            self.pipe_mode = mode
            self.fresh()
            built = self.worker("small", VICTIM, SHARED_UID).wait_built()
            server = self.server()
            self.say("options", pipe_mode=mode and oct(mode), client=built, server=server)
            if built.get("built") and (server or self.played):
                break

    def rates(self, workers: Sequence[Worker], seconds: float) -> List[Optional[float]]:
        """Steps per second of each while all train."""
        begin = time.monotonic() + 0.3
        for worker in workers:
            worker.train(begin + seconds + 0.05)
        answers = [worker.hear(seconds + 15) for worker in workers]
        return [_rounded(rate(answer, begin, begin + seconds)) for answer in answers]


def options(trial: Trial) -> None:
    """What this driver's program knows, and through which folder a user's client gets in."""
    done = subprocess.run(
        [trial.mps.control, "-h"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
    )
    usage = (done.stdout + done.stderr)[:1500]
    trial.say("options", can_share=trial.mps.can_share(), option=MULTI_USER, usage=usage)
    trial.let_users_in()


def control(trial: Trial) -> None:
    """Control commands of a user at root's pipe, while another user's job trains there."""
    trial.fresh()
    pipe = trial.folder.pipe(trial.uuid, SHARED_UID)
    victim, own = trial.worker("small", VICTIM, SHARED_UID), trial.worker("small", ATTACKER, SHARED_UID)
    trial.say("control", built=[victim.wait_built(), own.wait_built()])
    listing = subprocess.run(["ls", "-lan", str(pipe)], capture_output=True, text=True, check=False).stdout
    daemons = [[d.process.pid, d.uid, d.is_server] for d in trial.mps.daemons()]
    trial.say("control", pipe=listing.splitlines(), daemons=daemons, **_nvml_processes(trial, victim, own))
    server = trial.server()
    for command in (
        "get_server_list",
        f"get_client_list {server}",
        "set_default_active_thread_percentage 10",
        f"set_active_thread_percentage {server} 10",
        "set_default_device_pinned_mem_limit 0 1M",
        f"set_device_pinned_mem_limit {server} 0 1M",
        "set_default_client_priority 1",
        f"terminate_client {server} {victim.pid}",
        "start_server -uid 1",
        f"shutdown_server {server} -f",
        "quit -f",
        "quit",
    ):
        victim.train(time.monotonic() + 0.8)
        answer = trial.as_user(ATTACKER, command)
        steps = len(victim.hear(10).get("ends", []))
        trial.say("control", command=command.replace(server or "?", "SERVER"), **answer, victims_steps=steps)
    root = trial.root_asks(
        "get_server_list", "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
    )
    trial.say("control", afterwards=root, same_server=trial.server() == server)


def files(trial: Trial) -> None:
    """Removing and filling the pipe folder; many connections that say nothing."""
    trial.fresh()
    pipe, log = trial.folder.pipe(trial.uuid, SHARED_UID), trial.folder.log(trial.uuid, SHARED_UID)
    first = trial.worker("small", VICTIM, SHARED_UID)
    trial.say("files", first_client=first.wait_built())
    script = (
        f"rm -f {pipe}/control; echo rm $?; echo x >{pipe}/new; echo create $?; ls {pipe}; echo list $?; "
        f"cat {log}/control.log; echo log $?; mv {pipe} {pipe}2; echo mv $?; mkfifo {pipe}/log; echo fifo $?"
    )
    tried = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, user=ATTACKER, group=ATTACKER, extra_groups=[]
    )
    trial.say("files", tried=tried.stdout.split("\n"), errors=tried.stderr.splitlines()[:8])
    for name, body in (("silent", b""), ("garbage", os.urandom(4096))):
        child = _flood(str(pipe / "control"), body)
        time.sleep(1.0)
        second = trial.worker("small", VICTIM, SHARED_UID)
        built = second.wait_built()
        alive = trial.rates([first], 0.5)
        trial.say("files", flood=name, next_client=built, first_clients_rate=alive, log_bytes=_size(log))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if "error" in built:
            third = trial.worker("small", VICTIM, SHARED_UID)
            trial.say("files", after_flood=name, next_client=third.wait_built())


def stop(trial: Trial) -> None:
    """SIGSTOP of the attacker's own client, at work and while another client starts."""
    trial.fresh()
    victim, own = trial.worker("conv32", VICTIM, SHARED_UID), trial.worker("conv32", ATTACKER, SHARED_UID)
    trial.say("stop", built=[victim.wait_built(), own.wait_built()], alone=trial.rates([victim], 1.0))
    for attempt in range(3):
        own.train(time.monotonic() + 3.0)
        time.sleep(0.7 + attempt * 0.013)
        os.kill(own.pid, signal.SIGSTOP)
        during = trial.rates([victim], 1.0)
        extra: Dict[str, Any] = {}
        if attempt == 0:
            extra["next_client"] = trial.worker("small", VICTIM, SHARED_UID).wait_built()
            extra["root_is_answered"] = trial.server() != ""
        os.kill(own.pid, signal.SIGCONT)
        own.hear(15)
        trial.say("stop", attempt=attempt, victims_rate_while_stopped=during, **extra)


def kill(trial: Trial) -> None:
    """SIGKILL of a client at work: does the neighbour live?"""
    trial.fresh()
    victim = trial.worker("conv32", VICTIM, SHARED_UID)
    victim.wait_built()
    for attempt in range(2):
        own = trial.worker("conv256", ATTACKER, SHARED_UID)
        own.wait_built()
        own.train(time.monotonic() + 3.0)
        victim.train(time.monotonic() + 2.0)
        time.sleep(0.8)
        os.kill(own.pid, signal.SIGKILL)
        answer = victim.hear(15)
        trial.say(
            "kill", attempt=attempt, victim_error=answer.get("error"), steps=len(answer.get("ends", []))
        )


def limits(trial: Trial) -> None:
    """Does root's default hold a user who leaves out or raises the variable?"""
    trial.fresh()
    trial.mps.set_default_limit(trial.uuid, SHARED_UID, 4096)
    key = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    cases: Sequence[Tuple[str, int, Dict[str, str]]] = (
        ("attacker without the variable", ATTACKER, {}),
        ("attacker asks for 20000M", ATTACKER, {key: f"{trial.uuid}=20000M"}),
        ("attacker asks for 2048M", ATTACKER, {key: f"{trial.uuid}=2048M"}),
        ("victim asks for 3072M", VICTIM, {key: f"{trial.uuid}=3072M"}),
    )
    made = [trial.worker("small", uid, SHARED_UID, **more) for _, uid, more in cases]
    for (name, _, _), worker in zip(cases, made):
        built = worker.wait_built()
        worker.order(do="hog", cap_mib=12_000)
        trial.say("limits", default_mib=4096, case=name, built=built.get("built"), **worker.hear(15))
    trial.say("limits", **_nvml_processes(trial, *made))
    trial.mps.set_default_limit(trial.uuid, SHARED_UID, 8192)
    late = trial.worker("small", ATTACKER, SHARED_UID)
    late.wait_built()
    late.order(do="hog", cap_mib=12_000)
    trial.say("limits", default_mib=8192, case="raised by root while the server runs", **late.hear(15))


def faults(trial: Trial) -> None:
    """Faults of one user beside another's job: who dies, when, what root sees."""
    nvml = _nvml()
    for number, fault in enumerate(("assert_fault", "illegal_access", "illegal_access", "illegal_access")):
        # The same daemon from the second illegal access on: does it serve again after a fault?
        if number < 2:
            trial.fresh()
        victim, own = trial.worker("small", VICTIM, SHARED_UID), trial.worker("small", ATTACKER, SHARED_UID)
        built = [victim.wait_built(), own.wait_built()]
        server = trial.server()
        victim.train(time.monotonic() + 2.5)
        time.sleep(0.5)
        own.order(do=fault)
        states: List[Tuple[float, str]] = []
        began = time.monotonic()
        while time.monotonic() - began < 1.5:
            state = trial.mps.ask(trial.uuid, SHARED_UID, f"get_server_status {server}") or "no answer"
            if not states or states[-1][1] != state[:60]:
                states.append((round(time.monotonic() - began, 3), state[:60]))
        culprit, hit = own.hear(10), victim.hear(10)
        acted = culprit.get("acted", began)
        trial.say(
            "faults",
            fault=fault,
            number=number,
            built=built,
            pids={"victim": victim.pid, "culprit": own.pid, "server": server},
            culprit=culprit.get("error") or "lived",
            victim=hit.get("error") or "lived",
            victim_died_after_s=round(hit["died"] - acted, 3) if "died" in hit else None,
            server_states=states,
            xids=[[uuid is not None, xid] for uuid, xid in nvml.xids()] if nvml else None,
            log=trial.logs(45),
        )
        trial.end_workers()
        following = trial.worker("small", VICTIM, SHARED_UID)
        built_after = following.wait_built()
        trial.say(
            "faults",
            number=number,
            next_job=built_after,
            rate=trial.rates([following], 0.5),
            server_before=server,
            server_after=trial.server(),
        )
        trial.end_workers()
    trial.say("faults", kernel=_kernel_lines())


def throughput(trial: Trial) -> None:
    """The sum of relative speeds of sets of two users' jobs, in each mode."""
    solo: Dict[str, float] = {}
    needed: Dict[Tuple[str, int], int] = {}
    for one in SETS:
        for job in one:
            needed[job] = max(needed.get(job, 0), one.count(job))
    for mode in ("timeslice", "per-user", "shared"):
        trial.end_workers()
        trial.mps.stop(trial.uuid, SHARED_UID)
        if mode == "per-user":
            for uid in (VICTIM, ATTACKER):
                trial.mps.ensure(trial.uuid, uid, in_use=False)
        elif mode == "shared":
            trial.mps.ensure(trial.uuid, SHARED_UID, in_use=False)
        daemon: Callable[[int], Optional[int]] = {
            "timeslice": lambda uid: None,
            "per-user": lambda uid: uid,
            "shared": lambda uid: SHARED_UID,
        }[mode]
        pool = {
            (job, copy): trial.worker(job[0], job[1], daemon(job[1]))
            for job, copies in needed.items()
            for copy in range(copies)
        }
        built = [worker.wait_built() for worker in pool.values()]
        trial.say("throughput", mode=mode, built_s=[answer["seconds"] for answer in built])
        for (job, _), worker in pool.items():
            if job[0] not in solo:
                found = trial.rates([worker], 1.0)[0]
                if found:
                    solo[job[0]] = found
                    trial.say("throughput", mode=mode, solo=job[0], step_ms=round(1000 / found, 2))
        for one in SETS:
            taken: Dict[Tuple[str, int], int] = {}
            chosen = []
            for job in one:
                chosen.append(pool[job, taken.get(job, 0)])
                taken[job] = taken.get(job, 0) + 1
            speeds = [
                round(found / solo[job[0]], 3) if found else 0.0
                for found, job in zip(trial.rates(chosen, 1.6), one)
            ]
            trial.say("throughput", mode=mode, jobs=one, speeds=speeds, work=round(sum(speeds), 3))
        trial.end_workers()
        for uid in (VICTIM, ATTACKER):
            trial.mps.stop(trial.uuid, uid)


PARTS: Sequence[Callable[[Trial], None]] = (options, control, files, stop, kill, limits, faults, throughput)


def _flood(path: str, body: bytes) -> int:
    """A process of the attacker's that holds as many connections as it can."""
    pid = os.fork()
    if pid:
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        os.setgroups([])
        os.setresgid(ATTACKER, ATTACKER, ATTACKER)
        os.setresuid(ATTACKER, ATTACKER, ATTACKER)
        held = []
        while len(held) < 4000:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.settimeout(0.5)
            try:
                channel.connect(path)
                if body:
                    channel.send(body)
            except OSError:
                try:
                    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    channel.settimeout(0.5)
                    channel.connect(path)
                    if body:
                        channel.send(body)
                except OSError:
                    time.sleep(0.02)
                    continue
            held.append(channel)
        time.sleep(60)
    finally:
        os._exit(0)


def _nvml() -> Any:
    try:
        from slurm_gpumem.node.nvml import Nvml

        return Nvml()
    except Exception as error:  # noqa: BLE001 - without NVML the rest is still worth having
        print(f"NVML: {error}", flush=True)
        return None


def _nvml_processes(trial: Trial, *workers: Worker) -> Dict[str, Any]:
    """Which of the workers NVML names, with their memory."""
    nvml = _nvml()
    if nvml is None:
        return {}
    found = dict(nvml.processes(trial.uuid))
    clients = dict(nvml.mps_processes(trial.uuid) or [])
    mine = [[worker.name, found.get(worker.pid), clients.get(worker.pid)] for worker in workers]
    others = {pid: mib for pid, mib in {**found, **clients}.items() if pid not in {w.pid for w in workers}}
    return {"nvml": mine, "nvml_others": others}


def _kernel_lines() -> List[str]:
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return [line[-200:] for line in done.stdout.splitlines() if "Xid" in line][-12:] or [done.stderr[:100]]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 2)


def main() -> int:
    """Every part that was asked for; one that fails does not stop the next."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--state", type=Path, default=Path("/run/gpumem-trial"))
    parser.add_argument("--parts", default=",".join(part.__name__ for part in PARTS))
    parser.add_argument("--control", default="/usr/bin/nvidia-cuda-mps-control")
    parser.add_argument("--rehearse", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.state.mkdir(parents=True, exist_ok=True)
    if not args.rehearse:
        import torch  # noqa: F401 - once, before the forks; it makes no context yet
    trial = Trial(args.out, args.rehearse, str(_STANDIN) if args.rehearse else args.control, args.state)
    wanted = args.parts.split(",")
    for part in PARTS:
        if part.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            part(trial)
        except Exception as error:  # noqa: BLE001 - the next part shall run anyway
            trial.say(
                part.__name__, failed=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-900:]
            )
        trial.end_workers()
        trial.say(part.__name__, seconds=round(time.monotonic() - began, 1))
    for uid in (SHARED_UID, VICTIM, ATTACKER):
        trial.mps.stop(trial.uuid, uid)
    return 0


if __name__ == "__main__":
    sys.exit(main())
