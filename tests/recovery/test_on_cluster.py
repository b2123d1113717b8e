"""Recovery on real daemons: who is run again, with what, how often. All jobs run side by side."""

from __future__ import annotations

import pwd
import time
from typing import Dict, Tuple

import pytest

from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.job_record import FaultEvent, JobRecord, Measurement, write_job_record
from slurm_gpumem.slurm.state.nodes import WHOLE_GPU_BESIDE_SHARDS
from tests.recovery.conftest import OOM, OOM_LINE, RECORD, Site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

BEGIN = "echo begins $GPUMEM_ATTEMPT; "
ONCE = f'{BEGIN} [ "$SLURM_RESTART_COUNT" = 1 ] || {{ {OOM}; }}'
ALWAYS = BEGIN + OOM
NEIGHBOUR = "echo 'RuntimeError: CUDA error: the MPS server is not ready' >&2; exit 1"
ARRAY_OOMS = (3, 7, 20)


def note_fault(site: Site, job: str, run: int) -> None:
    """Root's record, as of another node of the job, of a fault that hit it together with a job 999."""
    event = FaultEvent("xid", "GPU-0", time.time(), (999,), 31)
    uid = pwd.getpwnam("nobody").pw_uid
    record = JobRecord(int(job), run, uid, "elsewhere", time.time(), end=time.time())
    write_job_record(site.root / "records", record._replace(measured=Measurement(events=(event,))))


@pytest.fixture(scope="module")
def lives(module_site: Site) -> Dict[str, str]:
    """One job of each kind, all submitted before the first is looked at."""
    site = module_site
    picks = " ".join(map(str, ARRAY_OOMS))
    wait = f"until [ -e {site.root}/out/neighbours ]; do sleep 0.1; done;"
    jobs = {
        "once": site.submit(ONCE),
        "always": site.submit(ALWAYS),
        "other": site.submit(BEGIN + "python3 -c 'raise KeyError(1)'"),
        "well": site.submit(f"{BEGIN} echo '{OOM_LINE}' >&2; exit 0"),
        "no-requeue": site.submit(ALWAYS, "--no-requeue"),
        "killed": site.submit(f"{BEGIN} echo '{OOM_LINE}' >&2; kill -KILL $$"),
        "neighbour": site.submit(f"{BEGIN} {wait} {NEIGHBOUR}"),
        "forged": site.submit(BEGIN + NEIGHBOUR),
        "nodes": site.submit(
            f'{BEGIN} [ "$SLURM_RESTART_COUNT" = 1 ] || '
            f'srun bash -c "[ \\$SLURM_PROCID = 0 ] || {{ {OOM}; }}"',
            "--nodes=2",
        ),
        "array": site.submit(
            f"{BEGIN} for t in {picks}; do"
            f' [ "$SLURM_ARRAY_TASK_ID$SLURM_RESTART_COUNT" != $t ] || {{ {OOM}; }}; done',
            "--array=1-20%5",
            shards=2,
        ),
    }
    for run in (0, 1):
        note_fault(site, jobs["neighbour"], run)
    (site.root / "out" / "neighbours").touch()
    jobs["child"] = site.submit("echo begins", f"--dependency=afterok:{jobs['once']}", comment="")
    het = ["sbatch", "--parsable", f"--output={site.root}/out/%j", "--mem=100", "--gres=shard:1"]
    het += [f"--comment={RECORD.format(shards=1, oom='requeue')}", ":", "--mem=100", "--gres=shard:1"]
    jobs["het"] = site.cluster.run(
        het, user="nobody", input=f"#!/bin/bash\n{ALWAYS}\n", check=True
    ).stdout.strip()
    return jobs


def test_a_job_that_runs_out_once_comes_back_on_a_whole_gpu_and_finishes(
    module_site: Site, lives: Dict[str, str]
) -> None:
    job = lives["once"]
    shown = module_site.ended(job, "COMPLETED")
    assert module_site.runs(job) == 2
    assert shown["RestartCnt"] == "1"
    assert shown["Comment"].startswith("mine ")
    record = parse_record(shown["Comment"])
    assert record is not None
    assert (record.estimate_mib, record.request_mib) == (11000, 12288)
    assert (record.retry, record.was, record.why, record.whole) == (1, 12, "oom", "yes")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == whole_gpu(module_site)
    assert "begins 1\n" in module_site.out(job)
    assert "begins 2\n" in module_site.out(job)
    assert "if it failed, Slurm runs it again with a whole GPU" in module_site.out(job)


def test_a_rank_that_runs_out_on_another_node_brings_the_job_back_with_more_on_both(
    module_site: Site, lives: Dict[str, str]
) -> None:
    job = lives["nodes"]
    shown = module_site.ended(job, "COMPLETED")
    assert module_site.runs(job) == 2
    assert shown["tres-per-node"].removeprefix("gres")[1:] == whole_gpu(module_site)
    for run in (0, 1):
        names = [f"{job}.{run}.{node}.json" for node in ("n1", "n2")]
        until(lambda names=names: all((module_site.root / "records" / name).exists() for name in names))


def test_a_job_that_always_runs_out_runs_once_more_than_the_ladder_has_steps(
    module_site: Site, lives: Dict[str, str]
) -> None:
    job = lives["always"]
    until(lambda: module_site.runs(job) == 2)
    shown = module_site.ended(job, "FAILED")
    assert module_site.runs(job) == 2
    assert "gpumem-end/1:run=1,saw=oom" in shown["Comment"]
    last = module_site.out(job).splitlines()[-1]
    assert last.startswith("gpumem: this run ended out of GPU memory (torch) on a whole GPU")
    assert last.endswith("it is not run again.")


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("other", "FAILED"), ("well", "COMPLETED"), ("no-requeue", "FAILED"), ("killed", "FAILED"),
        ("het", "FAILED"),
    ],
)  # fmt: skip
def test_nobody_else_is_requeued(module_site: Site, lives: Dict[str, str], name: str, state: str) -> None:
    module_site.ended(lives["once"], "COMPLETED")
    shown = module_site.ended(lives[name], state)
    assert (shown["RestartCnt"], module_site.runs(lives[name])) == ("0", 1)


def test_a_neighbours_fault_runs_again_as_it_was_and_only_once(
    module_site: Site, lives: Dict[str, str]
) -> None:
    until(lambda: module_site.runs(lives["neighbour"]) == 2)
    shown = module_site.ended(lives["neighbour"], "FAILED")
    assert module_site.runs(lives["neighbour"]) == 2
    assert shown["tres-per-node"].endswith("shard:12")
    assert "again=1,why=neighbour" in shown["Comment"]


def test_an_error_text_alone_is_no_neighbours_fault(module_site: Site, lives: Dict[str, str]) -> None:
    shown = module_site.ended(lives["forged"], "FAILED")
    assert module_site.runs(lives["forged"]) == 1
    assert shown["RestartCnt"] == "0"
    refused = "no record of root's shows that a GPU fault hit it together with another job"
    assert f"job {lives['forged']}: not requeued: {refused}" in module_site.log()


def test_of_an_array_only_the_tasks_that_ran_out_come_back(module_site: Site, lives: Dict[str, str]) -> None:
    array = lives["array"]
    for task in range(1, 21):
        name = f"{array}_{task}"
        shown = module_site.ended(name, "COMPLETED")
        again = task in ARRAY_OOMS
        assert (shown["RestartCnt"], module_site.runs(name)) == (("1", 2) if again else ("0", 1))
        assert shown["tres-per-node"].endswith("shard:2") is not again


def test_a_child_waits_for_the_second_run(module_site: Site, lives: Dict[str, str]) -> None:
    module_site.ended(lives["child"], "COMPLETED")
    assert module_site.show(lives["once"])["State"] == "COMPLETED"


def version(site: Site) -> Tuple[int, ...]:
    said = site.cluster.run(["sinfo", "--version"]).stdout.split()[1]
    return tuple(int(part) for part in said.split(".")[:3])


def whole_gpu(site: Site) -> str:
    return "shard:40" if version(site) < WHOLE_GPU_BESIDE_SHARDS else "gpu:1"
