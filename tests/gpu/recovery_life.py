"""Recovery tried for life: one of two PyTorch jobs outgrows its share, and is run again alone.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root:

    python3 tests/gpu/recovery_life.py --out "$OUT"

Slurm comes from `.carry/slurm-on-gpu/up .carry/debs STATE`. It takes about a minute. Without a GPU the
same code is rehearsed on a dev cluster: `python3 tests/gpu/recovery_life.py --rehearse --out DIR`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))

from life_machine import REPOSITORY, LifeError, Machine, machine_of, options, run, said, until

SETTINGS = {"grace_s": 3, "slurm_every_s": 2, "record_every_s": 2, "idle_exit_s": 4}
GROWER, NEIGHBOUR = "grower", "neighbour"
GROWER_SHARDS, NEIGHBOUR_SHARDS, GROW_TO_MIB = 4, 8, 7000
_FIELDS = ("State", "Reason", "RestartCnt", "tres-per-node", "Nice", "Comment")


class Recovery:
    """Two jobs on one GPU, and what becomes of them."""

    def __init__(self, machine: Machine, limit_s: float) -> None:
        self.machine = machine
        self.began = time.time()
        self.deadline = time.monotonic() + limit_s
        self.results: Dict[str, Any] = {"began": self.began, "seconds": {}}

    def mark(self, what: str) -> None:
        """Note when something was first seen, in seconds from the start."""
        self.results["seconds"][what] = round(time.time() - self.began, 2)
        print(f"{self.results['seconds'][what]:6.1f} s  {what}", flush=True)

    def left(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def submit(self, name: str, user: int, shards: int, *words: str) -> None:
        """Through gpusbatch, as a user would."""
        m = self.machine
        account, uid, gid = m.users[user]
        script = m.work / f"{name}.sh"
        standin = " --standin" if m.ledger else ""
        script.write_text(
            "#!/bin/bash\nunset LD_LIBRARY_PATH\n"
            f"export HOME={m.work} PYTHONDONTWRITEBYTECODE=1\n"
            f"exec {sys.executable} {m.work}/recovery_worker.py --out={m.work}/{name} "
            f"{' '.join(words)}{standin}\n"
        )
        code = "import sys; from slurm_gpumem.cli.gpusbatch import main; sys.exit(main())"
        command = [
            str(m.venv_python), "-I", "-c", code, f"--gpu-mem={shards}G", "--parsable", f"--uid={uid}",
            f"--gid={gid}", f"--job-name={name}", f"--output={m.work}/{name}.out", f"--chdir={m.work}",
            "--mem=8000", str(script),
        ]  # fmt: skip
        env = {**m.env, "GPUMEM_SITE_CONFIG": f"{m.state}/gpumem.toml"}
        done = run(command, 20, env=env)
        if done.returncode or not done.stdout.strip().isdigit():
            raise LifeError(f"gpusbatch of {name}: {done.stdout[-200:]}{done.stderr[-300:]}")
        m.jobs[name] = int(done.stdout)
        self.results[f"{name}_submission"] = {"user": account, "said": done.stderr.strip()}

    def show(self, name: str) -> Dict[str, str]:
        """What Slurm says of the job now."""
        width = 1100
        columns = ",".join(f"{field}:{width}" for field in _FIELDS)
        job = str(self.machine.jobs[name])
        try:
            done = run(["squeue", "-h", "-t", "all", "-j", job, "-O", columns], 5, env=self.machine.env)
        except LifeError:
            return {}
        line = done.stdout.split("\n")[0]
        cells = (line[at * width : (at + 1) * width].strip() for at in range(len(_FIELDS)))
        return dict(zip(_FIELDS, cells)) if line.strip() else {}

    def live(self) -> None:
        """The two lives, side by side."""
        stop = self.machine.work / "stop"
        self.submit(NEIGHBOUR, 0, NEIGHBOUR_SHARDS, "--seconds=80", f"--stop={stop}")
        self.submit(GROWER, 0, GROWER_SHARDS, f"--grow-to={GROW_TO_MIB}", "--seconds=4")
        self.mark("both submitted")
        self._wait(lambda: "ready" in self.out(GROWER) and "ready" in self.out(NEIGHBOUR), 40)
        self.mark("both train")
        self._wait(lambda: "out of memory" in self.out(GROWER), 30)
        self.mark("out of memory")
        self._wait(lambda: self._requeued() is not None, 15)
        self.mark("back in the queue with the new request")
        self.results["requeued"] = self._requeued()
        time.sleep(2)
        self.results["waits_for"] = self.show(GROWER).get("Reason")
        self.results["neighbour_while_it_waits"] = self.show(NEIGHBOUR).get("State")
        stop.touch()
        self._wait(lambda: self.show(NEIGHBOUR).get("State") == "COMPLETED", 15)
        self.mark("the neighbour has finished")
        self._wait(lambda: self.show(GROWER).get("State") == "RUNNING" or self._over(), 25)
        self.mark("it runs again")
        self._wait(self._over, 30)
        self.mark("it has ended")

    def _wait(self, condition: Any, timeout_s: float) -> None:
        if not until(condition, min(timeout_s, self.left()), 0.1):
            raise LifeError(f"waited {timeout_s:.0f} s in vain; {self.show(GROWER)}")

    def _over(self) -> bool:
        return self.show(GROWER).get("State") in ("COMPLETED", "FAILED", "CANCELLED")

    def _requeued(self) -> Optional[Dict[str, str]]:
        shown = self.show(GROWER)
        fresh = shown.get("RestartCnt") == "1" and "retry=1" in shown.get("Comment", "")
        return shown if fresh and shown.get("State") in ("PENDING", "COMPLETING", "RUNNING") else None

    def out(self, name: str) -> str:
        try:
            return (self.machine.work / f"{name}.out").read_text(errors="replace")
        except OSError:
            return ""

    def gather(self) -> None:
        """What is left to tell: logs, records, results; and whether it all went as it should."""
        m = self.machine
        self.results["grower"] = self.show(GROWER) if GROWER in m.jobs else {}
        self.results["neighbour"] = self.show(NEIGHBOUR) if NEIGHBOUR in m.jobs else {}
        self.results["log"] = self.out(GROWER)[-6000:]
        self.results["recovery_log"] = _text(m.state / "recovery.log")
        for name in (GROWER, NEIGHBOUR):
            for attempt in (1, 2):
                self.results[f"{name}_{attempt}"] = _json(m.work / f"{name}.{attempt}.json")
        until(lambda: (_json(self._record(1)) or {}).get("end"), 4)
        self.results["records"] = [_json(self._record(run_)) for run_ in (0, 1)]
        first, second = self.results["grower_1"] or {}, self.results["grower_2"] or {}
        steps = (self.results["neighbour_1"] or {}).get("steps") or [0]
        died = self.began + self.results["seconds"].get("out of memory", 1e9)
        self.results["neighbour_steps_after"] = sum(at > died for at in steps)
        self.results["checks"] = {
            "its first run died out of memory": bool(first)
            and not first.get("finished")
            and "out of memory" in self.out(GROWER),
            "at the limit of its share": bool(first.get("limit")) and first.get("held_mib", 0) < 4096,
            "it came back with a whole GPU": "whole=yes" in self.results["grower"].get("Comment", ""),
            "its second run held what it needed": second.get("held_mib", 0) >= GROW_TO_MIB,
            "it finished": self.results["grower"].get("State") == "COMPLETED"
            and bool(second.get("finished")),
            "its neighbour trained on and finished": self.results["neighbour"].get("State") == "COMPLETED"
            and self.results["neighbour_steps_after"] > 20,
            "the first run's log is still there": "attempt 1: ready" in self.out(GROWER),
        }
        self.results["ok"] = all(self.results["checks"].values())

    def _record(self, run_: int) -> Path:
        return self.machine.spool / f"{self.machine.jobs.get(GROWER)}.{run_}.{self.machine.node}.json"

    def save(self) -> None:
        out = self.machine.out
        (out / "recovery_life.json").write_text(json.dumps(self.results, indent=1, default=str))
        self.machine.collect()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""


def _json(path: Path) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _surroundings(machine: Machine) -> Dict[str, Any]:
    answer: Dict[str, Any] = {
        "version": said(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]),
        "users can load torch": machine.open_to_users().get("ok"),
    }
    if not machine.ledger:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        answer["GPU"] = said(query)
    return answer


def main() -> int:
    """0 when all checks hold."""
    parser = options(__doc__, "grecover")
    parser.add_argument("--limit", type=float, default=80, help="seconds for the two jobs")
    args = parser.parse_args()
    machine, down = machine_of(args)
    machine.prepare()
    shutil.copy(Path(__file__).with_name("recovery_worker.py"), machine.work)
    hooks = machine.state / "hooks"
    with open(hooks / "hooks.conf", "a", encoding="utf-8") as file:
        file.write(f"recovery_log={machine.state}/recovery.log\n")
    recovery = Recovery(machine, args.limit)
    try:
        recovery.results["machine"] = _surroundings(machine)
        machine.start(dict(SETTINGS), f"EpilogSlurmctld={hooks}/epilog_slurmctld.sh\n")
        # One step, so that the second run is the one that must hold what it needs.
        with open(machine.state / "gpumem.toml", "a", encoding="utf-8") as file:
            file.write('[recovery]\nladder = ["whole-gpu"]\n')
        recovery.mark("Slurm is up")
        recovery.live()
    except LifeError as error:
        recovery.results["stopped"] = str(error)
        print(f"stopped: {error}", flush=True)
    finally:
        recovery.gather()
        recovery.save()
        machine.cancel([*machine.jobs])
        machine.stop(down)
    for what, fine in recovery.results["checks"].items():
        print(f"{'yes' if fine else 'NO':<4}{what}")
    return 0 if recovery.results["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
