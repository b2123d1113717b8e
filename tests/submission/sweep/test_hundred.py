"""A hundred tasks on four GPUs while sampler, controller and first task are killed (make test-sweep)."""

from __future__ import annotations

import os
import time
from typing import Callable, Dict

import pytest

from tests.recovery.conftest import LONG, OOM, needs_root
from tests.submission.sweep.conftest import SweepSite
from tests.support.waiting import until

pytestmark = [pytest.mark.slurm, needs_root]
TASKS = int(os.environ.get("GPUMEM_TEST_TASKS", "100" if LONG else "12"))
KILLS = ("nothing", "sampler", "slurmctld", "first-task") if LONG else ("slurmctld",)
SHAPES = {
    "equal": "p=5000; l=0",
    "three-sizes": "p=$((4000 + t % 3 * 3000)); l=0",
    "one-grows-late": "p=5000; l=$((t == 0 ? 4000 : 0))",
}
SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:1
# {name}
d={folder}; t=$SLURM_ARRAY_TASK_ID; {shape}
echo $t $SLURM_SHARDS_ON_NODE >> $d/began
# What a GPU does with a task that takes more than its share.
room() {{ [ $1 -le $((${{SLURM_SHARDS_ON_NODE:-40}} * 1024)) ] || {{ {oom}; }}; }}
room $p
gpumem-standin --peak $p --steps 20 --seconds 2 || exit 1
if [ $l -gt 0 ]; then until [ -e $d/second ]; do sleep 0.1; done; fi
room $((p + l))
gpumem-standin --peak $((p + l)) --steps 20 --seconds 2 || exit 1
echo $t >> $d/done
"""


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_hundred_tasks_all_come_to_their_end(sweeps: SweepSite, shape: str, kill: str) -> None:
    folder = sweeps.folder(f"{shape}-{kill}")
    text = SCRIPT.format(name=folder.name, folder=folder, shape=SHAPES[shape], oom=OOM)
    (folder / "job.sh").write_text(text)
    sweep = sweeps.submit(
        folder.name, array=f"--array=0-{TASKS - 1}", folder=folder, script=folder / "job.sh"
    )
    kills: Dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "sampler": sweeps.kill_samplers,
        "slurmctld": sweeps.restart_slurmctld,
        "first-task": lambda: sweeps.cluster.run(["scancel", "-s", "KILL", f"{sweep.job}_0"]),
    }
    began = time.monotonic()
    until((folder / "began").exists, 300, but=sweep.how_it_is)
    sweeps.saved()
    kills[kill]()
    until(lambda: len((folder / "began").read_text().split("\n")) > 3, 300, but=sweep.how_it_is)
    sweep.write("second")
    until(lambda: sweep.released() or not sweep.states(), 1500, but=sweep.how_it_is)
    rows = [line.split() for line in (folder / "began").read_text().splitlines()]
    done = set(map(int, (folder / "done").read_text().split()))
    whole = sum(len(row) == 1 or row[1] == "40" for row in rows)
    again, lost = len(rows) - len({row[0] for row in rows}), set(range(TASKS)) - done
    print(
        f"\n| {shape} | {kill} | {TASKS} | {len(done)} | {whole} | {again} | {time.monotonic() - began:.0f} |"
    )
    assert lost <= ({0} if kill == "first-task" else set())
    assert whole < TASKS / 2
