"""The node side tried for life: real Slurm, real MPS, two users, one GPU.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root:

    python3 tests/gpu/node_life.py --out "$OUT"

Slurm comes from `.carry/slurm-on-gpu/up .carry/debs STATE`. Every part has a time limit, a part that
fails does not stop the next, and the results so far are on disk after each.

Without a GPU the same code is rehearsed on a dev cluster, in a minute and a half:

    python3 tests/gpu/node_life.py --rehearse --out DIR
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))

from life_faults import neighbours
from life_machine import (
    REPOSITORY,
    LifeError,
    Machine,
    cpu_s,
    machine_of,
    nvml_costs,
    options,
    rss_mib,
    run,
    said,
    until,
)

sys.path.insert(0, str(REPOSITORY))

OVERHEAD_BLOCKS = 28
"""With and without the sampler in turns, each a bit longer than two looks of it."""
_SHORT = ("seconds", "failed", "skipped", "ok")
SETTINGS = {"grace_s": 3, "slurm_every_s": 3, "record_every_s": 5, "idle_exit_s": 6}


class Life:
    """The parts, in order of what they teach."""

    def __init__(self, machine: Machine, budget_s: float, pace: float) -> None:
        self.machine = machine
        self.deadline = time.monotonic() + budget_s
        self.pace = pace
        self.settings: Dict[str, Any] = dict(SETTINGS)
        self.results: Dict[str, Any] = {"parts": {}, "began": time.time()}

    def part(self, name: str, need_s: float, body: Callable[[], Dict[str, Any]]) -> None:
        """Run one part if there is time for it; keep what it says, or why it failed."""
        left = self.deadline - time.monotonic()
        start = time.monotonic()
        if left < need_s * self.pace:
            answer: Dict[str, Any] = {"skipped": f"{left:.0f} s left, {need_s * self.pace:.0f} s needed"}
        else:
            try:
                answer = body()
            except Exception as error:  # noqa: BLE001 - the next part shall run nevertheless
                answer = {
                    "failed": f"{type(error).__name__}: {error}",
                    "trace": traceback.format_exc()[-1500:],
                }
                self._clear_up()
        answer["seconds"] = round(time.monotonic() - start, 1)
        self.results["parts"][name] = answer
        print(
            f"== {name}: " + json.dumps({key: answer[key] for key in _SHORT if key in answer}),
            flush=True,
        )
        self.save()

    def save(self) -> None:
        (self.machine.out / "node_life.json").write_text(json.dumps(self.results, indent=1, default=str))
        self.machine.collect()

    def _clear_up(self) -> None:
        try:
            self.machine.cancel(list(self.machine.jobs))
            self.machine.ended(list(self.machine.jobs), 15)
        except LifeError as error:
            print(error, flush=True)

    # -- parts ------------------------------------------------------------------------------------

    def surroundings(self) -> Dict[str, Any]:
        """What machine is this?"""
        m = self.machine
        answer: Dict[str, Any] = {
            "kernel": os.uname().release,
            "python": sys.version.split()[0],
            "users": m.users,
            "node": m.node,
            "gpumem": said(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]),
            "mps_control": os.access(m.mps_control, os.X_OK),
            "proc_gpus": [p.name for p in Path("/proc/driver/nvidia/gpus").glob("*")],
        }
        answer["users_can_load_torch"] = m.open_to_users()
        if not m.ledger:
            query = "name,uuid,driver_version,memory.total,compute_mode,persistence_mode,accounting.mode"
            answer["nvidia_smi"] = run(
                ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 30
            ).stdout.strip()
            answer["torch"] = run(
                [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"], 90
            ).stdout.strip()
        return answer

    def probe(self) -> Dict[str, Any]:
        """Which way of writing the limit holds? One user tries variables, the other server defaults."""
        from slurm_gpumem.config.node import NodeConfig
        from slurm_gpumem.node.gpus import find_gpus, standin_gpus
        from slurm_gpumem.node.jobs import RunFolder
        from slurm_gpumem.node.mps.daemons import MpsService

        m = self.machine
        gpus = standin_gpus(m.ledger, m.node) if m.ledger else find_gpus(NodeConfig(), m.node)
        if not gpus:
            raise LifeError("no GPU found")
        uuid = gpus[0].uuid
        folder = RunFolder(m.state / "probe")
        folder.make()
        service = MpsService(folder, m.mps_control)
        answer: Dict[str, Any] = {
            "gpu": vars(gpus[0]) if hasattr(gpus[0], "__dict__") else str(gpus[0]),
            "forms": {},
        }
        began = time.monotonic()
        try:
            for user in (0, 1):
                service.ensure(uuid, m.users[user][1], in_use=False)
            answer["daemons_started_s"] = round(time.monotonic() - began, 3)
            service.set_default_limit(uuid, m.users[1][1], 2048)
            answer["default_read_back"] = service.ask(
                uuid, m.users[1][1], "get_default_device_pinned_mem_limit 0"
            )
            forms = {
                "variable 0=2048M": (0, "0=2048M"),
                "variable UUID=2048M": (0, f"{uuid}=2048M"),
                "no limit": (0, None),
                "server default 2048M, no variable": (1, None),
                "server default 2048M, variable 0=4096M": (1, "0=4096M"),
            }
            self._hogs(answer["forms"], folder, uuid, forms)
            service.set_default_limit(uuid, m.users[1][1], 1 << 20)
            answer["raised_read_back"] = service.ask(
                uuid, m.users[1][1], "get_default_device_pinned_mem_limit 0"
            )
            self._hogs(
                answer["forms"], folder, uuid, {"default raised to 1 TiB, variable 0=4096M": (1, "0=4096M")}
            )
            answer["servers"] = {
                user: service.ask(uuid, m.users[user][1], "get_server_list") for user in (0, 1)
            }
            log_text = ""
            for path in folder.root.glob("mps/*/*/log/control.log"):
                log_text += path.read_text(errors="replace")[-3000:]
            answer["control_log"] = log_text
        finally:
            quit_began = time.monotonic()
            for user in (0, 1):
                service.stop(uuid, m.users[user][1])
            answer["daemons_stopped_s"] = round(time.monotonic() - quit_began, 3)
            answer["left_behind"] = [str(d) for d in service.daemons()]
        held = {form: entry.get("held_mib") for form, entry in answer["forms"].items()}
        answer["uuid_form_holds"] = _about(held.get("variable UUID=2048M"), 2048)
        answer["index_form_holds"] = _about(held.get("variable 0=2048M"), 2048)
        answer["ok"] = answer["index_form_holds"] or answer["uuid_form_holds"]
        return answer

    def _hogs(self, forms: Dict[str, Any], folder: Any, uuid: str, wanted: Dict[str, Any]) -> None:
        """Start one hog per form at once, outside Slurm, and see how much each got."""
        m = self.machine
        threads = []
        for number, (form, (user, limit)) in enumerate(wanted.items()):
            name = f"probe-{len(forms)}-{number}"
            env = {
                "PATH": "/usr/bin:/bin",
                "HOME": str(m.work),
                "PYTHONPATH": str(m.package),
                "CUDA_MPS_PIPE_DIRECTORY": str(folder.pipe(uuid, m.users[user][1])),
                "CUDA_VISIBLE_DEVICES": uuid,
            }
            if limit:
                env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = limit
            words = [
                "setpriv",
                f"--reuid={m.users[user][1]}",
                f"--regid={m.users[user][2]}",
                "--clear-groups",
                sys.executable,
                str(m.work / "life_worker.py"),
                "hog",
                f"--out={m.work}/{name}",
                "--cap=6000",
                "--width=8",
                "--batch=1",
            ] + ([f"--standin={m.ledger}"] if m.ledger else [])

            def hog(
                form: str = form, words: List[str] = words, env: Dict[str, str] = env, name: str = name
            ) -> None:
                try:
                    run(words, 40 * self.pace + 10, env=env, cwd="/")
                except LifeError as error:
                    forms[form] = {"failed": str(error)[-300:]}
                    return
                result = m.result(name)
                forms[form] = {
                    "held_mib": result.get("max_reserved_mib"),
                    "nvml_mib": result.get("nvml_mib"),
                    "error": (result.get("error") or "")[:160],
                }

            threads.append(threading.Thread(target=hog))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def four(self) -> Dict[str, Any]:
        """Four training jobs of two users on one GPU: does the sampler know whose memory is whose?"""
        m = self.machine
        names = ["four-a1", "four-a2", "four-b1", "four-b2"]
        go = m.work / "four.stop"
        for number, name in enumerate(names):
            m.submit(
                name,
                number // 2,
                "train",
                12,
                by="gpusbatch",
                seconds=60 * self.pace,
                go=go,
                ballast=1024 * (number + 1),
                width=96 + 32 * number,
            )
        training = m.trains(names, 30, 60 * self.pace + 15)
        time.sleep(8 * self.pace)
        answer: Dict[str, Any] = {
            "all_trained": training,
            "live": m.live(),
            "mps_processes": len(m.mps_pids()),
        }
        answer["status_screen"] = self._status()
        answer["gpusbatch"] = m.said
        if not m.ledger:
            answer["nvidia_smi"] = said(["nvidia-smi"])[-4000:]
        time.sleep(4 * self.pace)
        go.touch()
        answer["ended"] = m.ended(names, 40)
        answer["jobs"] = {}
        for name in names:
            result, record, steps = m.result(name), m.record(name), m.steps(name)
            own = _sum(result.get("max_reserved_mib"), result.get("context_mib"))
            peak = record.get("peak_mib")
            answer["jobs"][name] = {
                "job": m.jobs[name],
                "uid": result.get("uid"),
                "error": result.get("error"),
                "own_mib": own,
                "max_reserved_mib": result.get("max_reserved_mib"),
                "context_mib": result.get("context_mib"),
                "sampler_peak_mib": peak,
                "difference": None if not own or peak is None else peak / own - 1,
                "steps_per_s": _rate(steps),
                "first_loss": steps[0][2] if steps else None,
                "last_loss": steps[-1][2] if steps else None,
                "limit": result.get("env", {}).get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
                "record": record,
            }
        answer["mps_left_behind"] = not until(lambda: not m.mps_pids(), 8)
        differences = [job["difference"] for job in answer["jobs"].values()]
        answer["ok"] = (
            all(d is not None and abs(d) <= 0.02 for d in differences) and not answer["mps_left_behind"]
        )
        return answer

    def overrun(self) -> Dict[str, Any]:
        """A job allocates past its shards: it dies alone."""
        return neighbours(
            self.machine, self.pace, "overrun", "hog", shards=4, extra={"cap": 12_000, "width": 8, "batch": 1}
        )

    def device_assert(self) -> Dict[str, Any]:
        """A device-side assert: whom does it take with it, and can its user go on?"""
        return neighbours(self.machine, self.pace, "assert", "assert", shards=6, after=True)

    def illegal(self) -> Dict[str, Any]:
        """An illegal memory access, the same questions."""
        return neighbours(self.machine, self.pace, "illegal", "illegal", shards=6, after=True)

    def scancel(self) -> Dict[str, Any]:
        """scancel of one job while it computes."""
        return neighbours(self.machine, self.pace, "scancel", "train", shards=6)

    def overhead(self) -> Dict[str, Any]:
        """One job; the sampler stopped and continued in turns. What does it cost a step?"""
        m = self.machine
        stop = m.work / "overhead.stop"
        # A sampler as a site has it: with Slurm and the disk asked as seldom as by default.
        m.configure({**self.settings, "slurm_every_s": 15, "record_every_s": 30})
        old = m.sampler_pid()
        if old is not None:
            os.kill(old, signal.SIGTERM)
            until(lambda: m.sampler_pid() is None, 10)
        m.submit("overhead", 0, "train", 12, seconds=120 * self.pace, go=stop, width=64, batch=32)
        if not m.trains(["overhead"], 100, 45 * self.pace + 15):
            raise LifeError("the job does not train")
        pid = m.sampler_pid()
        if pid is None:
            raise LifeError("no sampler")
        time.sleep(3 * self.pace)
        blocks: List[Any] = []
        cpu_before, began = cpu_s(pid), time.monotonic()
        for number in range(OVERHEAD_BLOCKS):
            running = number % 2 == 0
            os.kill(pid, signal.SIGCONT if running else signal.SIGSTOP)
            start = time.time()
            time.sleep(2.3 * self.pace)
            blocks.append((running, start + 0.3, time.time()))
        os.kill(pid, signal.SIGCONT)
        cpu, rss = cpu_s(pid) - cpu_before, rss_mib(pid)
        costs = {} if m.ledger else nvml_costs()
        stop.touch()
        m.ended(["overhead"], 30)
        steps = m.steps("overhead")
        times: Dict[bool, List[float]] = {True: [], False: []}
        means: Dict[bool, List[float]] = {True: [], False: []}
        for running, start, end in blocks:
            # Every step counts with its gap to the next one: that is what a user waits.
            inside = [step[0] for step in steps if start <= step[0] <= end]
            gaps = [b - a for a, b in zip(inside, inside[1:])]
            times[running] += gaps
            means[running].append(statistics.fmean(gaps) if gaps else float("nan"))
        on, off = statistics.fmean(times[True]), statistics.fmean(times[False])
        # Two standard errors of the difference between neighbouring blocks: a drifting clock is in neither.
        pairs = [one - other for one, other in zip(means[True], means[False])]
        noise = 2 * statistics.stdev(pairs) / len(pairs) ** 0.5 / off
        m.configure(self.settings)
        return {
            "step_ms_with": on * 1e3,
            "step_ms_without": off * 1e3,
            "overhead": on / off - 1,
            "noise": noise,
            "median_overhead": statistics.median(times[True]) / statistics.median(times[False]) - 1,
            "block_means_ms_with": [x * 1e3 for x in means[True]],
            "block_means_ms_without": [x * 1e3 for x in means[False]],
            "steps": [len(times[True]), len(times[False])],
            "sampler_cpu_share": cpu / ((time.monotonic() - began) / 2),
            "sampler_rss_mib": rss,
            "nvml_ms": costs,
            "source": m.live().get("source"),
            "record": m.record("overhead"),
            "ok": on / off - 1 <= 0.005,
        }

    def without_mps(self) -> Dict[str, Any]:
        """A job without its MPS variables: does the sampler notice? A killed daemon: is it replaced?"""
        m = self.machine
        m.submit(
            "without_mps",
            0,
            "train",
            4,
            seconds=9 * self.pace + 4,
            prelude="unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        )
        trained = m.trains(["without_mps"], 5, 40)
        killed = m.mps_pids()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        m.submit("replaced", 0, "train", 4, seconds=5 * self.pace)
        m.ended(["without_mps", "replaced"], 60)
        record, following = m.record("without_mps"), m.record("replaced")
        return {
            "trained": trained,
            "notes": record.get("notes"),
            "daemons_killed": len(killed),
            "replaced_mode": following.get("mode"),
            "replaced_env": m.result("replaced").get("env"),
            "replaced_error": m.result("replaced").get("error"),
            "replaced_steps": len(m.steps("replaced")),
            "mps_left_behind": not until(lambda: not m.mps_pids(), 8),
            "ok": any("outside MPS" in note for note in record.get("notes") or [])
            and m.result("replaced").get("error") is None,
        }

    def afterwards(self) -> Dict[str, Any]:
        """Is the node as it was?"""
        m = self.machine
        state = run(["sinfo", "-h", "-N", "-o", "%N %T %E"], 10, env=m.env).stdout.strip()
        gone = until(lambda: m.sampler_pid() is None, 28)
        left = [str(path.relative_to(m.run_dir)) for path in m.run_dir.rglob("*") if path.is_file()]
        kernel = [line for line in said(["dmesg"]).splitlines() if "NVRM" in line or "Xid" in line][-40:]
        return {
            "node": state,
            "kernel": kernel,
            "sampler_ended_by_itself": gone,
            "files_left": left,
            "mps": m.mps_pids(),
            "ok": "idle" in state and gone and not m.mps_pids(),
        }

    def _status(self) -> str:
        env = {
            **self.machine.env,
            "GPUMEM_RUN_DIR": str(self.machine.run_dir),
            "GPUMEM_SITE_CONFIG": f"{self.machine.state}/gpumem.toml",
        }
        env.pop("LD_LIBRARY_PATH", None)
        code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main(['node', 'status']))"
        try:
            done = run([str(self.machine.venv_python), "-I", "-c", code], 15, env=env)
        except LifeError as error:
            return str(error)
        return done.stdout + done.stderr


def _about(held: Optional[float], limit: float) -> bool:
    """Whether a hog stopped below its limit and not absurdly far from it."""
    return held is not None and limit * 0.4 < held <= limit


def _sum(one: Optional[float], other: Optional[float]) -> Optional[float]:
    return None if one is None or other is None else one + other


def _rate(steps: List[List[float]]) -> Optional[float]:
    return (len(steps) - 1) / (steps[-1][0] - steps[0][0]) if len(steps) > 2 else None


def main() -> int:
    """Run all parts; 0 when each that ran says ok."""
    parser = options(__doc__, "glife")
    parser.add_argument("--budget", type=float, default=390, help="seconds for everything")
    parser.add_argument("--pace", type=float, default=1.0, help="shortens the waits of a rehearsal")
    args = parser.parse_args()
    args.pace = 0.3 if args.rehearse else args.pace
    machine, down = machine_of(args)
    machine.prepare()
    life = Life(machine, args.budget, args.pace)
    try:
        life.part("surroundings", 5, life.surroundings)
        machine.start(life.settings)
        life.part("limits", 25, life.probe)
        life.part("four jobs", 45, life.four)
        life.part("overrun", 35, life.overrun)
        life.part("device-side assert", 40, life.device_assert)
        life.part("illegal access", 40, life.illegal)
        life.part("scancel", 30, life.scancel)
        life.part("sampler overhead", 90, life.overhead)
        life.part("unfenced and replaced", 30, life.without_mps)
        life.part("afterwards", 5, life.afterwards)
    except LifeError as error:
        life.results["stopped"] = str(error)
        print(f"stopped: {error}", flush=True)
    finally:
        life.save()
        machine.stop(down)
    return 0 if all(part.get("ok", True) for part in life.results["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
