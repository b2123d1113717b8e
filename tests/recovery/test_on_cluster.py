"""Recovery on real daemons: who is run again, with what, how often. All jobs run side by side."""

from __future__ import annotations

import pwd
import re
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
        "typed": site.submit(ONCE, gres="shard:a100:12"),
        "always": site.submit(ALWAYS),
        "other": site.submit(BEGIN + "python3 -c 'raise KeyError(1)'"),
        "survived": site.submit(f"{BEGIN} echo '{OOM_LINE}' >&2; echo epoch 1 step 7 loss 0.3; exit 4"),
        "well": site.submit(f"{BEGIN} echo '{OOM_LINE}' >&2; exit 0"),
        "fail": site.submit(ALWAYS, oom="fail"),
        "no-requeue": site.submit(ALWAYS, "--no-requeue"),
        "not-ours": site.submit(ALWAYS, comment="my own words"),
        "stdout": site.submit(
            f"{BEGIN} echo '{OOM_LINE}'; exit 1", f"--error={site.root}/out/stdout.err", gres="shard:12"
        ),
        "killed": site.submit(f"{BEGIN} echo '{OOM_LINE}' >&2; kill -KILL $$"),
        "abort": site.submit(
            f'{BEGIN} [ "$SLURM_RESTART_COUNT" = 1 ] || {{ echo "{OOM_LINE}" >&2; kill -ABRT $$; }}'
        ),
        "host": site.submit(f"{BEGIN} echo 'slurmstepd: error: Detected 1 oom_kill event' >&2; exit 1"),
        "neighbour": site.submit(f"{BEGIN} {wait} {NEIGHBOUR}"),
        "forged": site.submit(BEGIN + NEIGHBOUR),
        "step": site.submit(f'{BEGIN} [ "$SLURM_RESTART_COUNT" = 1 ] || srun bash -c "{OOM}"'),
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
    assert shown["tres-per-node"].removeprefix("gres")[1:] == whole_gpu(module_site, "")
    assert "begins 1\n" in module_site.out(job)
    assert "begins 2\n" in module_site.out(job)
    assert "if it failed, Slurm runs it again with a whole GPU" in module_site.out(job)


def test_a_rank_that_runs_out_on_another_node_brings_the_job_back_with_more_on_both(
    module_site: Site, lives: Dict[str, str]
) -> None:
    job = lives["nodes"]
    shown = module_site.ended(job, "COMPLETED")
    assert module_site.runs(job) == 2
    assert shown["tres-per-node"].removeprefix("gres")[1:] == whole_gpu(module_site, "")
    for run in (0, 1):
        names = [f"{job}.{run}.{node}.json" for node in ("n1", "n2")]
        until(lambda names=names: all((module_site.root / "records" / name).exists() for name in names))


def test_the_failed_estimate_is_marked_in_the_record(module_site: Site, lives: Dict[str, str]) -> None:
    shown = module_site.ended(lives["once"], "COMPLETED")
    assert shown["Comment"].startswith("mine ")
    record = parse_record(shown["Comment"])
    assert record is not None
    assert (record.estimate_mib, record.request_mib) == (11000, 12288)
    assert (record.retry, record.was, record.why, record.whole) == (1, 12, "oom", "yes")


def test_a_type_in_the_request_stays(module_site: Site, lives: Dict[str, str]) -> None:
    shown = module_site.ended(lives["typed"], "COMPLETED")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == whole_gpu(module_site, "a100")


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
        ("other", "FAILED"), ("survived", "FAILED"), ("well", "COMPLETED"), ("fail", "FAILED"),
        ("no-requeue", "FAILED"), ("not-ours", "FAILED"), ("killed", "FAILED"), ("host", "FAILED"),
        ("het", "FAILED"),
    ],
)  # fmt: skip
def test_nobody_else_is_requeued(module_site: Site, lives: Dict[str, str], name: str, state: str) -> None:
    module_site.ended(lives["once"], "COMPLETED")
    shown = module_site.ended(lives[name], state)
    assert (shown["RestartCnt"], module_site.runs(lives[name])) == ("0", 1)


def test_host_memory_is_told_apart(module_site: Site, lives: Dict[str, str]) -> None:
    module_site.ended(lives["host"], "FAILED")
    assert "out of host memory, not GPU memory" in module_site.out(lives["host"])


def test_the_reasons_are_in_the_log(module_site: Site, lives: Dict[str, str]) -> None:
    for name, reason in {
        "no-requeue": "its owner asked for --no-requeue",
        "het": "the parts of a heterogeneous job",
    }.items():
        module_site.ended(lives[name], "FAILED")
        line = next(line for line in module_site.log().splitlines() if f" job {lives[name]}: " in line)
        assert f"not requeued: {reason}" in line


@pytest.mark.parametrize("name", ["abort", "step"])
def test_signals_and_steps_count_too(module_site: Site, lives: Dict[str, str], name: str) -> None:
    module_site.ended(lives[name], "COMPLETED")
    assert module_site.runs(lives[name]) == 2


def test_an_error_on_stdout_alone_is_seen(module_site: Site, lives: Dict[str, str]) -> None:
    until(lambda: module_site.runs(lives["stdout"]) == 2)
    module_site.ended(lives["stdout"], "FAILED")


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


def test_a_longer_ladder_asks_for_more_first_and_jobrequeue_0_is_lifted_by_consent(module_site: Site) -> None:
    site = module_site
    site.configure(ladder=["+25%", "whole-gpu"])
    conf = site.cluster.layout.slurm_conf
    before = conf.read_text()
    conf.write_text(before + "JobRequeue=0\n")
    try:
        site.cluster.run(["scontrol", "reconfigure"], check=True)
        seen = f'echo "has ${{SLURM_SHARDS_ON_NODE:-whole}}"; {ALWAYS}'
        always, refusing = site.submit(seen), site.submit(ALWAYS, oom="fail")
        until(lambda: site.runs(always) == 3, 180)
        site.ended(always, "FAILED")
        assert site.runs(always) == 3
        had = [line.split()[1] for line in site.out(always).splitlines() if line.startswith("has ")]
        # 12.8 GiB were needed at least: 13 shards, and a quarter on top.
        assert had == ["12", "17", "40" if version(site) < WHOLE_GPU_BESIDE_SHARDS else "whole"]
        # The node's own records of the runs carry it too. One that was hurried past cred_expire may find its
        # credential still known to slurmd, which then leaves the Prolog out: so the first two runs only.
        records = [site.record(always, run) for run in range(2)]
        assert [(record["verdict"], record["exit_code"]) for record in records] == [("oom", 1)] * 2
        claim = parse_record(records[1]["claim"])
        assert claim is not None
        assert (claim.was, claim.why) == (12, "oom")
        assert site.runs(refusing) == 1
        taken = re.findall(rf" job {always}: requeued: .* \(([0-9.]+) s\)", site.log())
        print(f"own time of a requeue: {', '.join(taken)} s")
        # To wait in vain, for a lock or for the controller, takes 10 s and more.
        assert min(map(float, taken)) < 5.0
    finally:
        conf.write_text(before)
        site.cluster.run(["scontrol", "reconfigure"], check=True)
        site.configure()


def version(site: Site) -> Tuple[int, ...]:
    said = site.cluster.run(["sinfo", "--version"]).stdout.split()[1]
    return tuple(int(part) for part in said.split(".")[:3])


def whole_gpu(site: Site, kind: str) -> str:
    kind = f":{kind}" if kind else ""
    return f"shard{kind}:40" if version(site) < WHOLE_GPU_BESIDE_SHARDS else f"gpu{kind}:1"
