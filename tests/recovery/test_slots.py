"""Time slots on real daemons: a training goes from checkpoint to checkpoint, and nothing is done twice."""

from __future__ import annotations

import re
from typing import Dict, List

import pytest

from slurm_gpumem.formats.comment import parse_record
from tests.recovery.conftest import Site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

RECORD = "gpumem/1:est=11000,req=12288,by=test,shards=12,oom=requeue"
SLOTS = f"{RECORD},slot=3"
KILLED = """
    path = run.folder / f"step-{step}"
    path.write_text(str(step))
    run.saved(path, step, time.time())
    if step == 6 and not begun:
        os.kill(os.getpid(), 9)
"""
IDLE = "for i in $(seq 40); do sleep 0.2; done; echo done"
PROGRAM = """
import os, sys, time
from slurm_gpumem.adapters.slot_run import SlotRun, resume_file

run, begun = SlotRun(), resume_file()
run.announce()
step = int(open(begun).read()) if begun else 0
while step < {steps}:
    print("step", step, "run", os.environ.get("SLURM_RESTART_COUNT", 0), flush=True)
    step += 1
    time.sleep(0.4)
    if run.told:
        path = run.folder / f"step-{{step}}"
        path.write_text(str(step))
        run.saved(path, step, time.time())
        run.leave()
    {more}
print("done", flush=True)
"""


def program(site: Site, steps: int, more: str = "pass") -> str:
    """The line of a batch script that trains this many steps."""
    folder = site.root / "out"
    path = folder / f"train-{steps}-{abs(hash(more))}.py"
    path.write_text(PROGRAM.format(steps=steps, more=more))
    return f"export PYTHONPATH={site.root}/python/packages; /usr/bin/python3 {path}"


def submit(site: Site, script: str, *options: str, comment: str = SLOTS) -> str:
    return site.submit(
        f"echo begins; {script}",
        *options,
        comment=f"mine {comment}",
        env={"GPUMEM_CHECKPOINTS": f"{site.root}/out/saved"},
    )


def steps(site: Site, job: str) -> List[int]:
    return [int(found) for found in re.findall(r"^step ([0-9]+) ", site.out(job), re.MULTILINE)]


@pytest.fixture(scope="module")
def jobs(module_site: Site) -> Dict[str, str]:
    """One job of each kind, side by side."""
    site = module_site
    scripts = {
        "trains": program(site, 14),
        "stubborn": "trap 'echo caught' USR1; " + IDLE,
        "killed": program(site, 9, KILLED),
    }
    found: Dict[str, str] = {}
    for name, script in scripts.items():
        found[name] = submit(site, script, comment=RECORD if name == "killed" else SLOTS)
        # One after the other: a Prolog that gives up on a busy machine leaves a job without slots.
        until(lambda name=name: site.runs(found[name]))  # type: ignore[misc]
    return found


def test_a_training_goes_on_from_slot_to_slot_and_does_every_step_once(
    module_site: Site, jobs: Dict[str, str]
) -> None:
    shown = module_site.ended(jobs["trains"], "COMPLETED")
    assert steps(module_site, jobs["trains"]) == list(range(14))
    record = parse_record(shown["Comment"])
    assert record is not None
    assert record.slots is not None
    assert record.slots >= 1
    assert (record.why, record.slot) == ("slot", 3)
    assert int(shown["RestartCnt"]) == record.slots
    first = until(lambda: (one := module_site.record(jobs["trains"], 0))["state"] and one)
    assert (first["state"], first["verdict"], first["hints"]) == ("REQUEUED", "slot", [])


def test_a_job_that_does_not_save_runs_on_and_its_record_says_so(
    module_site: Site, jobs: Dict[str, str]
) -> None:
    shown = module_site.ended(jobs["stubborn"], "COMPLETED")
    assert (shown["RestartCnt"], module_site.runs(jobs["stubborn"])) == ("0", 1)
    assert "caught\n" in module_site.out(jobs["stubborn"])
    notes = module_site.record(jobs["stubborn"], 0)["notes"]
    assert any(note.startswith("no checkpoint at the slot's end") for note in notes)


def test_a_job_that_is_killed_goes_on_from_its_last_checkpoint_when_it_is_requeued(
    module_site: Site, jobs: Dict[str, str]
) -> None:
    module_site.ended(jobs["killed"], "FAILED")
    assert steps(module_site, jobs["killed"]) == list(range(6))
    module_site.cluster.run(["scontrol", "requeue", jobs["killed"]], user="nobody", check=True)
    module_site.ended(jobs["killed"], "COMPLETED")
    assert steps(module_site, jobs["killed"]) == list(range(9))
