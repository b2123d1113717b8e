"""What the task epilog and the hook of a run's end ask Slurm and tell it, with Slurm's answers recorded."""

from __future__ import annotations

import os
import re
import signal
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.decisions import Decision, write_decisions
from slurm_gpumem.formats.slot_state import SlotState, write_slot_state
from slurm_gpumem.recovery import hook, task_epilog
from slurm_gpumem.recovery.requeue import FOLDER_NAME
from slurm_gpumem.slurm import client
from slurm_gpumem.slurm.state.queue import Job
from tests.support.fake_slurm import Answer, FakeSlurm
from tests.support.in_process import call_gpumem
from tests.support.kept import assert_kept
from tests.support.squeue import squeue_line

KEPT = Path(__file__).with_name("run_end.json")
RECORD = "mine gpumem/1:est=11000,req=12288,by=corrected,shards=12,oom=requeue"
JOB = Job(
    name="7", state="RUNNING", reason="None", restarts=1, may_requeue=False, batch=True, status="0:0",
    het=False, priority=100, uid=1, partitions=("gpu",), request="gres/shard:a100:12",
    comment=f"{RECORD},slot=600", number=7, limit_min=60, used_s=590,
)  # fmt: skip
TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB. this process has 10 GiB memory in use"
OOM = {"run": None, "log": TEXT}
FULL = f"{'x' * 940} {RECORD},slot=600"
CASES: Dict[str, Dict[str, Any]] = {
    "slot": {}, "may": {"may_requeue": True}, "requeues": {"requeues": 1}, "over": {"then": "COMPLETING"},
    "gone": {"then": ""}, "short": {"used_s": 5}, "no record": {"comment": "mine"}, "full": {"comment": FULL},
    "unknown": {"known": False}, "told": {"comment": RECORD}, "saved": {"ended": False}, "oom": OOM,
    "saved, oom": {**OOM, "run": 1, "ended": False}, "oom, requeues": {**OOM, "requeues": 1},
    "oom, may": {**OOM, "may_requeue": True}, "oom, no record": {**OOM, "comment": ""}, "earlier": {"run": 0},
    "oom, full": {**OOM, "comment": FULL}, "no job": {"number": "x"}, "down": {"down": True},
}  # fmt: skip


@pytest.fixture(autouse=True)
def of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "gpumem.toml"
    site.write_text(f'[node]\nspool = "{tmp_path}/records"\n[recovery]\nenabled = true\n')
    for name, value in {"SITE_CONFIG": site, "RUN_DIR": tmp_path / "run", "SLOT_DIR": tmp_path}.items():
        monkeypatch.setenv(f"GPUMEM_{name}", str(value))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _epilog(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, requeues: int = 0,
    then: Any = None, known: bool = True, ended: bool = True, run: Any = 1, log: str = "step 3",
    number: str = "7", down: bool = False, **job: Any,
) -> List[Any]:  # fmt: skip
    """What it tells Slurm, writes, and does about SIGTERM."""
    (folder / "state.json").unlink(missing_ok=True)
    if run is not None:
        write_slot_state(folder, SlotState(run, 40, 9, ended))
    shown = squeue_line(JOB._replace(**job)) if known else ""
    later = shown if then is None else then and squeue_line(JOB._replace(**{**job, "state": then}))
    lines = chain([shown], repeat(later))
    config = f"SLURM_VERSION = 24.11.5\nJobRequeue = {requeues}\nPriorityType = priority/multifactor\n"
    squeue: Answer = SlurmError("squeue: down") if down else lambda _: next(lines)
    fake = FakeSlurm({"squeue": squeue, "scontrol show config": config, "scontrol": ""})
    monkeypatch.setattr(task_epilog, "Commands", lambda *_: fake)
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(2, f"{log}\n".encode())  # the job's log is our own stderr
    code = task_epilog.main()
    told = [argv for argv in fake.asked if argv[0] != "squeue" and argv[1] != "show"]
    ignored = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    return [code, told, capfd.readouterr().err.partition("\n")[2], ignored]


def test_how_a_run_ended_is_noted_and_its_next_slot_asked_for_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for name, case in CASES.items():
        found = _epilog(tmp_path, monkeypatch, capfd, **case)
        shown.update({f"{name}: {at}": repr(part) for at, part in enumerate(found)})
    assert_kept(KEPT, shown)


def _released(fake: FakeSlurm) -> bool:
    return ["scontrol", "release", "7"] in fake.asked


def test_the_hook_logs_what_it_did_and_the_command_prints_what_was_left_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, log, shown = tmp_path / "state", tmp_path / "log", {}
    state.mkdir()
    config = f"SLURM_VERSION = 24.11.5\nStateSaveLocation = {state}\n"
    record = f"{RECORD},retry=1,why=oom,run=1"
    held = JOB._replace(state="PENDING", reason="job requeued in held state", comment=record, priority=0)
    done = Decision(0, 5.0, True, "out of GPU memory: 12 shards", "oom", "shard:a100:12", 12, 8)
    (state / FOLDER_NAME).mkdir(mode=0o700)
    write_decisions(state / FOLDER_NAME / "7.json", (done,))
    left: Dict[str, Answer] = {"squeue -t PENDING -o": "".join(f"{name}|{held.reason}\n" for name in "79")}
    free = held._replace(reason="None", priority=100)
    left["squeue -j 7"] = lambda _: squeue_line(free if _released(fakes[-1]) else held)
    cases: Dict[str, Dict[str, Answer]] = {
        "nothing": {}, "down": {"scontrol show config": SlurmError("scontrol: down")}, "left": left,
        "no folder": {"scontrol show config": "SLURM_VERSION = 24.11.5\n"},
        "no host": {"scontrol show config": f"SLURM_VERSION = 24.11.5\nStateSaveLocation = {tmp_path}/no\n"},
    }  # fmt: skip
    monkeypatch.setenv("GPUMEM_RECOVERY_LOG", str(log))
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    fakes: List[FakeSlurm] = []
    monkeypatch.setattr(hook, "Commands", lambda *_: fakes[-1])
    monkeypatch.setattr(client, "Commands", lambda *_: fakes[-1])
    for name, answers in cases.items():
        monkeypatch.setattr(hook, "PATIENCE_S", 0.0 if name == "down" else 9.0)
        for program in ("hook", "recover"):
            (state / hook.SWEEP_FILE).unlink(missing_ok=True)
            fakes.append(FakeSlurm({"scontrol show config": config, "scontrol": "", "squeue": "", **answers}))
            ended = hook.main() if program == "hook" else call_gpumem(["recover"], os.environ)
            said = ended if isinstance(ended, int) else f"{ended.returncode}{ended.stdout}{ended.stderr}"
            told = [argv for argv in fakes[-1].asked if argv[0] != "squeue" and argv[1] != "show"]
            if (program, name) != ("recover", "no host") or os.geteuid() == 0:  # only root becomes its owner
                shown[f"{program} {name}"] = f"{said} {told}"
    shown["log"] = re.sub(r"(?m)^\S+ | \([0-9.]+ s\)", "", log.read_text())
    assert_kept(KEPT, {name: text.replace(str(tmp_path), "…") for name, text in shown.items()})
