"""Jobs above their share, ended for life: each beside a neighbour that computes, on a GPU with real Slurm.

As root, on a machine with an NVIDIA GPU, torch, nvcc and MPS, from the repository's root:

    python3 tests/gpu/overruns.py --out "$OUT" [--seconds 450] [--mode shared|per-user]

Slurm comes from `.carry/slurm-on-gpu/up .carry/debs STATE`. Every kind of culprit is tried alone
in the first mode, then three at a time; a kind that took its neighbour along is not tried again. One line of
JSON for each end goes to overruns.jsonl, and `--table FILE` prints the table of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ends import PY, Kind, Trial, build, machine_for, options, set_mode
from life_machine import Machine, until

from slurm_gpumem.node.nvml import Nvml

SHARDS, HELD_MIB = 4, 6144
SETTINGS = {"slurm_every_s": 5, "record_every_s": 2, "idle_exit_s": 60}
PATIENCE_S = 25.0
"""An end that takes longer counts as none."""
OPTIONS = ("--no-requeue", "--time=5")
NO_LIMIT = "export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=abc"
HOLD = f"{{work}}/ends_client hold {HELD_MIB}"
DETACHED = (
    'env -i LD_LIBRARY_PATH= "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" '
    '"CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY" CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=abc '
    f"setsid {HOLD} sleep"
)
CULPRITS: Tuple[Tuple[Kind, str], ...] = (
    (Kind("sleeps", f"{HOLD} sleep; true", options=OPTIONS), NO_LIMIT),
    (Kind("held by a tracer", f"{HOLD} trace; true", options=OPTIONS), NO_LIMIT),
    (Kind("stopped again and again", f"{HOLD} stop; true", options=OPTIONS), NO_LIMIT),
    (Kind("ignores SIGTERM", f"{HOLD} ignore; true", options=OPTIONS), NO_LIMIT),
    (Kind("four processes of a quarter each", f"{HOLD} quarters; true", options=OPTIONS), ""),
    (Kind("plain --gres=shard, sleeps", f"{HOLD} sleep; true", options=OPTIONS, plain=True), NO_LIMIT),
    (
        Kind("plain --gres=shard, outside MPS, ignores SIGTERM", f"{HOLD} ignore; true", "", OPTIONS, True),
        "unset CUDA_MPS_PIPE_DIRECTORY",
    ),
    (Kind("computes", f"{HOLD} busy; true", options=OPTIONS), NO_LIMIT),
    (Kind("environment cleared, reparented", f"({DETACHED} &); sleep 60; true", options=OPTIONS), ""),
    (
        Kind("PyTorch, sleeps", f"{PY} {{work}}/ends_worker.py hold {HELD_MIB}; true", options=OPTIONS),
        NO_LIMIT,
    ),
)


class Overruns(Trial):
    """Culprits beside a witness."""

    def __init__(self, machine: Machine, out: Path, deadline: float, harmful: List[str]) -> None:
        super().__init__(machine, out, deadline)
        self.rows = out / "overruns.jsonl"
        self.nvml = Nvml()
        self.uuid = self.nvml.devices()[0][1]
        self.harmful = harmful
        self.beside = 0

    def on_gpu(self) -> Dict[int, Any]:
        """What NVML lists: pid → MiB."""
        return {**dict(self.nvml.mps_processes(self.uuid) or ()), **dict(self.nvml.processes(self.uuid))}

    def computes(self) -> bool:
        """Whether the witness gets on."""
        before = self.out(self.beside).count("step ")
        return until(lambda: self.out(self.beside).count("step ") > before, 6) and self.runs(self.beside)

    def try_together(self, culprits: Sequence[Tuple[Kind, str]], user: int) -> None:
        """All of them at once, beside a witness that computes."""
        if not self.beside or not self.computes():
            self.stop_all()
            self.beside = self.witness()
        jobs = {self.submit(kind, user, SHARDS, prelude): kind for kind, prelude in culprits}
        wanted = {job: 4 if "four" in kind.name else 1 for job, kind in jobs.items()}
        gone: Dict[int, float] = {}
        began, seen_over = time.time(), dict.fromkeys(jobs, False)
        while len(gone) < len(jobs) and time.time() - began < PATIENCE_S + 20:
            time.sleep(0.1)
            now, here = time.time(), self.on_gpu()
            for job in set(jobs) - set(gone):
                over = self.over_lines(job)
                seen_over[job] |= len(over) == wanted[job] and any(pid in here for pid, _ in over)
                if seen_over[job] and not any(pid in here for pid, _ in over):
                    gone[job] = now - max(at for _, at in over)
        lives = self.computes()
        for job, kind in jobs.items():
            log = [line for line in self.log().splitlines() if f"job {job}:" in line]
            self.note(
                kind=kind.name, job=job, together=len(jobs), over=seen_over[job], ended=job in gone,
                after_s=round(gone[job], 1) if job in gone else None,
                by_sigkill=sum("SIGKILL" in line for line in log),
                ordered=any("told to leave" in line for line in log), died=int(not lives),
                witness=self.out(self.beside)[-200:] if not lives else "computes", log=log[-4:],
                text=self.out(job)[-200:],
            )  # fmt: skip
            self.do("scancel", str(job))
        until(lambda: not set(jobs) & set(self.states()), 20)
        for job, kind in jobs.items():
            record = self.record(job, 0)
            told = {key: record.get(key) for key in ("verdict", "events", "mode", "shards")}
            self.note(record=kind.name, job=job, **told)
        if not lives:
            self.beside = 0
            self.harmful += [kind.name for kind in jobs.values() if len(jobs) == 1]

    def over_lines(self, job: int) -> List[Tuple[int, float]]:
        """(pid, time) of each process that has taken its memory."""
        lines = (line.split() for line in self.out(job).splitlines() if line.startswith("over "))
        return [(int(words[1]), float(words[2])) for words in lines if len(words) == 3]

    def log(self) -> str:
        """The sampler's."""
        return (self.machine.run_dir / "log").read_text(errors="replace")

    def go(self, user: int, *, with_care: bool) -> None:
        """Each alone if this is the first of it, then three at a time for as long as there is time."""
        for culprit in CULPRITS if with_care else ():
            if self.left() > 45:
                self.try_together([culprit], user)
        fine = [culprit for culprit in CULPRITS if culprit[0].name not in self.harmful]
        first = 0
        while fine and self.left() > 50:
            self.try_together([fine[(first + more) % len(fine)] for more in range(3)], user)
            first += 3
        self.stop_all()
        self.beside = 0


def table(path: Path) -> str:
    """The rows, counted."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "kind" in row]
    tried = [row for row in rows if row.get("over")]
    lines = [
        "| who is above its share | ended: shared, per-user | by SIGKILL | seconds | neighbours that died |",
        "|---|---|---|---|---|",
    ]
    for kind in Counter(row["kind"] for row in tried):
        mine = [row for row in tried if row["kind"] == kind]
        counts = []
        for mode in ("shared", "per-user"):
            here = [row for row in mine if row["mode"] == mode]
            counts.append(f"{sum(row['ended'] for row in here)} of {len(here)}")
        took = [row["after_s"] for row in mine if row["after_s"] is not None]
        lines.append(
            f"| {kind} | {', '.join(counts)} | {sum(row['by_sigkill'] > 0 for row in mine)} |"
            f" {min(took, default=0)} to {max(took, default=0)} | {sum(row['died'] for row in mine)} |"
        )
    ended, died = sum(row["ended"] for row in tried), sum(row["died"] for row in tried)
    never = len(rows) - len(tried)
    lines.append(
        f"{ended} of {len(tried)} ended, {died} beside a neighbour that died; {never} never got above"
    )
    return "\n".join(lines)


def main() -> int:
    """Both modes, one after the other."""
    args = options(__doc__, "gover", 450).parse_args()
    if args.table:
        print(table(args.table))
        return 0
    began, modes = time.monotonic(), args.mode or ["shared", "per-user"]
    with machine_for(args) as machine:
        build(machine)
        machine.start({**SETTINGS, "mps": modes[0]}, "KillWait=5\n")
        begin, harmful = time.monotonic(), []
        for number, mode in enumerate(modes):
            end = begin + (began + args.seconds - 20 - begin) * (number + 1) / len(modes)
            trial = Overruns(machine, args.out, end, harmful)
            trial.mode, trial.count = mode, 1000 * number
            set_mode(machine, SETTINGS, mode)
            trial.go(1 if mode == "shared" else 0, with_care=number == 0)
    if (args.out / "overruns.jsonl").exists():
        print(table(args.out / "overruns.jsonl"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
