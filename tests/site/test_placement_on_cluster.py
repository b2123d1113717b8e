"""Where shared jobs land on real daemons, and whether large jobs get their turn among small ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec, default_nodes
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.remembered import CpuRun, Recipe, write_remembered
from slurm_gpumem.site.queue_order import flow_settings
from slurm_gpumem.site.setup.plan import PACK, SPREAD, SPREAD_WORD, SPREADING
from slurm_gpumem.slurm.client import parse_version
from slurm_gpumem.slurm.state.running import placements
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

pytestmark = pytest.mark.slurm

SMALL = ("--gres=shard:10", "--mem=64", "--cpus-per-task=1")
DATABASE = {"AccountingStorageType": "accounting_storage/slurmdbd"}


def can_spread(cluster: Cluster) -> bool:
    return parse_version(cluster.run(["sinfo", "--version"], check=True).stdout) >= SPREADING


def set_up(cluster: Cluster, make_cluster: Any, *options: str) -> Cluster:
    """A cluster of one node with four GPUs, with the line that setup proposes for that of `cluster`."""
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    done = cluster.run([gpumem, "setup", "--untried", *options])
    assert done.returncode == 0, done.stderr
    lines = [line[1:] for line in done.stdout.splitlines() if line.startswith("+SelectTypeParameters=")]
    return make_cluster(nodes=default_nodes(1), extra_conf=tuple(lines))


def gpus_of(cluster: Cluster, jobs: List[str]) -> List[int]:
    def where() -> List[int]:
        texts = [cluster.run(["scontrol", "show", "job", "-d", job], check=True).stdout for job in jobs]
        return [place.gpu for text in texts for place in placements(text)]

    until(lambda: len(where()) == len(jobs))
    return where()


def states(cluster: Cluster) -> Dict[str, str]:
    lines = cluster.run(["squeue", "-h", "-t", "all", "-o", "%i %T"], check=True).stdout.split("\n")
    return dict(line.split() for line in lines if line)


def test_four_jobs_on_an_idle_node_land_on_four_gpus_where_slurm_can_spread(
    make_cluster: Any,
) -> None:
    first = make_cluster(nodes=default_nodes(1))
    cluster = set_up(first, make_cluster)
    jobs = [submit(cluster, *SMALL, command="sleep 600") for _ in range(4)]
    # 22.05 fills the first GPU, whatever is configured: docs/admin/placement.md.
    assert gpus_of(cluster, jobs) == ([0, 1, 2, 3] if can_spread(cluster) else [0, 0, 0, 0])


def test_packed_jobs_leave_the_other_gpus_whole(make_cluster: Any) -> None:
    first = make_cluster(nodes=default_nodes(1))
    cluster = set_up(first, make_cluster, "--placement", PACK)
    jobs = [submit(cluster, *SMALL, command="sleep 600") for _ in range(4)]
    assert gpus_of(cluster, jobs) == [0, 0, 0, 0]


def test_setup_takes_spreading_out_again_and_the_doctor_says_which_is_in_force(make_cluster: Any) -> None:
    plain = make_cluster(nodes=default_nodes(1))
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    assert "note placement: placement: pack" in plain.run([gpumem, "doctor"]).stdout
    if not can_spread(plain):
        refused = plain.run([gpumem, "setup", "--untried", "--placement", SPREAD])
        assert refused.returncode == 2
        assert "--placement spread needs LL_SHARED_GRES, which Slurm 22.05" in refused.stderr
        return
    cluster = set_up(plain, make_cluster)
    assert "note placement: placement: spread" in cluster.run([gpumem, "doctor"]).stdout
    back = cluster.run([gpumem, "setup", "--untried", "--placement", PACK]).stdout
    assert f"-SELECTTYPEPARAMETERS=CR_CORE_MEMORY,{SPREAD_WORD}\n" in back.upper()
    assert "+SELECTTYPEPARAMETERS=CR_CORE_MEMORY\n" in back.upper()


@pytest.mark.parametrize("partition", ["gpu", "whole"])
def test_a_job_with_a_whole_gpu_is_not_overtaken_by_small_ones(make_cluster: Any, partition: str) -> None:
    first = make_cluster(nodes=default_nodes(1))
    cluster = set_up(first, make_cluster)
    # A share on every GPU, or shares that fill all of them where they are packed.
    count = 4 if can_spread(cluster) else 16
    early = [submit(cluster, *SMALL, "--time=2", command="sleep 600") for _ in range(count)]
    gpus_of(cluster, early)
    whole = submit(
        cluster, f"--partition={partition}", "--gres=gpu:1", "--mem=64", "--time=2", command="sleep 600"
    )
    late = [submit(cluster, *SMALL, "--time=30", command="sleep 600") for _ in range(8)]
    # They end only now, however long it took to submit the others.
    cluster.run(["scancel", *early], check=True)
    until(lambda: states(cluster).get(whole) == "RUNNING")
    cluster.run(["scancel", *late])
    begun = _start(cluster, whole)
    assert begun is not None
    assert all((_start(cluster, job) or begun) >= begun for job in late)


def test_small_shares_that_end_in_time_flow_around_a_large_one_and_others_wait(
    make_cluster: Any,
) -> None:
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),))
    half = submit(cluster, "--gres=shard:20", "--mem=64", "--time=30", command="sleep 600")
    gpus_of(cluster, [half])
    large = submit(cluster, "--gres=shard:40", "--mem=64", "--time=30", command="sleep 600")
    long = submit(cluster, *SMALL, "--time=60", command="sleep 600")
    short = submit(cluster, *SMALL, "--time=5", command="sleep 600")
    # Backfill knows that the short one ends before the first half does, so that the large one loses nothing.
    until(lambda: states(cluster).get(short) == "RUNNING")
    assert [states(cluster)[job] for job in (large, long)] == ["PENDING", "PENDING"]
    cluster.run(["scancel", half, short], check=True)
    until(lambda: states(cluster).get(large) == "RUNNING")
    assert states(cluster)[long] == "PENDING"


def test_small_shares_go_around_a_large_one_until_it_has_waited_long_enough(make_cluster: Any) -> None:
    lines = tuple(f"{key}={value}" for key, value in flow_settings(DATABASE).items())
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),), extra_conf=lines, accounting=True)
    half = submit(cluster, "--gres=shard:20", "--mem=64", "--time=30", command="sleep 600")
    gpus_of(cluster, [half])
    large = submit(cluster, "--gres=shard:40", "--mem=64", "--time=30", command="sleep 600")
    small = submit(cluster, *SMALL, "--time=60", command="sleep 600")
    until(lambda: states(cluster).get(small) == "RUNNING")
    assert states(cluster)[large] == "PENDING"
    # What an hour of age gives it.
    cluster.run(["scontrol", "update", f"jobid={large}", "priority=600"], check=True)
    late = submit(cluster, *SMALL, "--time=60", command="sleep 600")
    until(lambda: _reason(cluster, late) == "Priority")
    cluster.run(["scancel", half, small], check=True)
    until(lambda: states(cluster).get(large) == "RUNNING")
    assert states(cluster)[late] == "PENDING"


@pytest.mark.parametrize(("window", "overtaken"), [(2880, True), (2940, False)])
def test_long_jobs_go_around_a_large_one_that_must_wait_for_longer_than_backfill_looks_ahead(
    make_cluster: Any, window: int, overtaken: bool
) -> None:
    words = f"SchedulerParameters=batch_sched_delay=0,bf_interval=2,bf_window={window}"
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),), extra_conf=(words,))
    half = submit(cluster, "--gres=shard:20", "--mem=64", "--time=2-0", command="sleep 600")
    gpus_of(cluster, [half])
    large = submit(cluster, "--gres=shard:40", "--mem=64", "--time=30", command="sleep 600")
    long = submit(cluster, *SMALL, "--time=2-0", command="sleep 600")
    # The last to be looked at: it ends in time in any case.
    short = submit(cluster, *SMALL, "--time=5", command="sleep 600")
    until(lambda: states(cluster).get(short) == "RUNNING")
    assert [states(cluster)[job] for job in (large, long)] == [
        "PENDING",
        "RUNNING" if overtaken else "PENDING",
    ]


@pytest.mark.parametrize(("depth", "starts"), [(500, True), (10, False)])
def test_backfill_looks_at_so_many_jobs_of_the_queue(make_cluster: Any, depth: int, starts: bool) -> None:
    cluster, small = _small_behind_large(make_cluster, f"bf_max_job_test={depth}")
    if starts:
        until(lambda: states(cluster).get(small) == "RUNNING")
    else:
        enough = _backfill_passes(cluster) + 3
        until(lambda: _backfill_passes(cluster) >= enough)
        assert states(cluster)[small] == "PENDING"


@pytest.mark.parametrize(("word", "starts"), [("bf_continue,", True), ("", False)])
def test_backfill_that_is_interrupted_all_the_time_gets_on_with_bf_continue(
    make_cluster: Any, word: str, starts: bool
) -> None:
    # It pauses after every job, and each time there is a new one.
    words = f"{word}bf_yield_interval=1,bf_yield_sleep=300000,bf_max_time=60"
    cluster, small = _small_behind_large(make_cluster, words)
    first = _backfill_passes(cluster)

    def decided() -> bool:
        submit(cluster, "--mem=64", "--time=5", command="true")
        running = states(cluster).get(small) == "RUNNING"
        return running or (not starts and _backfill_passes(cluster) >= first + 5)

    until(decided)
    assert states(cluster)[small] == ("RUNNING" if starts else "PENDING")


def _small_behind_large(make_cluster: Any, words: str) -> Tuple[Cluster, str]:
    """A small share that would fit at once, behind 20 that do not."""
    line = f"SchedulerParameters=batch_sched_delay=0,bf_interval=2,{words}"
    cluster: Cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),), extra_conf=(line,))
    half = submit(cluster, "--gres=shard:20", "--mem=64", "--time=30", command="sleep 600")
    gpus_of(cluster, [half])
    for shards in range(21, 41):
        submit(cluster, f"--gres=shard:{shards}", "--mem=64", "--time=30", command="sleep 600")
    return cluster, submit(cluster, *SMALL, "--time=5", command="sleep 600")


def _backfill_passes(cluster: Cluster) -> int:
    shown = cluster.run(["sdiag"], check=True).stdout.partition("Backfilling stats")[2]
    return int(shown.partition("Total cycles:")[2].split()[0])


@pytest.mark.parametrize("by_age", [False, True])
def test_a_requeued_job_waits_behind_the_others(make_cluster: Any, by_age: bool) -> None:
    # With the default of 7 days a job's age counts only after 6 s: here after each second.
    flow = (
        {**flow_settings(DATABASE), "PriorityMaxAge": "1-0", "PriorityCalcPeriod": "1"}
        if by_age
        else {"PriorityType": "priority/basic"}
    )
    lines = tuple(f"{key}={value}" for key, value in flow.items())
    cluster = make_cluster(
        nodes=(NodeSpec("n1", gpus=1),), extra_conf=lines, cred_expire_s=5, accounting=by_age
    )
    whole = ("--gres=gpu:1", "--mem=64", "--requeue")
    first = submit(cluster, *whole, command="sleep 600")
    until(lambda: states(cluster).get(first) == "RUNNING")
    later = [submit(cluster, *whole, command="sleep 600") for _ in range(2)]
    cluster.run(["scontrol", "requeue", first], check=True)
    until(lambda: states(cluster).get(later[0]) == "RUNNING")
    # It may start again: the time after a requeue is over.
    until(lambda: _reason(cluster, first) in ("Resources", "Priority"))
    # With priority/basic it keeps its place on 22.05.
    behind = by_age or can_spread(cluster)
    # Slurm counts age again once a minute only; until then both have the priority of new jobs.
    until(lambda: not behind or _priority(cluster, first) < _priority(cluster, later[1]))
    cluster.run(["scancel", later[0]], check=True)
    until(lambda: "RUNNING" in (states(cluster).get(first), states(cluster).get(later[1])))
    assert states(cluster)[later[1] if behind else first] == "RUNNING"


def _priority(cluster: Cluster, job: str) -> int:
    return int(cluster.run(["squeue", "-h", "-j", job, "-o", "%Q"], check=True).stdout)


def test_shares_meet_on_no_gpu_of_a_partition_with_lln_while_another_is_idle(make_cluster: Any) -> None:
    nodes = (NodeSpec("n1", gpus=2), NodeSpec("n2", gpus=2))
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    done = make_cluster(nodes=nodes).run([gpumem, "setup", "--untried"])
    assert done.returncode == 0, done.stderr
    added = [line[1:] for line in done.stdout.splitlines() if line.startswith("+")]
    can = any(SPREAD_WORD in line for line in added)
    # 22.05 cannot spread within a node, so it is no use between them.
    assert any(line.startswith("PartitionName=gpu") and "LLN=YES" in line for line in added) == can
    settings = tuple(line for line in added if line.startswith("SelectTypeParameters="))
    partition = f"PartitionName=level Nodes=n[1-2]{' LLN=YES' if can else ''}"
    cluster = make_cluster(nodes=nodes, extra_conf=(*settings, partition))
    jobs = []
    for _ in range(4):
        jobs.append(submit(cluster, *SMALL, "--partition=level", command="sleep 600"))
        gpus_of(cluster, jobs[-1:])
    nodes_of = [
        cluster.run(["squeue", "-h", "-j", job, "-o", "%N"], check=True).stdout.strip() for job in jobs
    ]
    places = list(zip(nodes_of, gpus_of(cluster, jobs)))
    assert len(set(places)) == (4 if can else 1)


def _start(cluster: Cluster, job: str) -> Optional[str]:
    """When it started, as text that sorts by time; None for a job that never did."""
    text = cluster.run(["scontrol", "show", "job", job], check=True).stdout
    start = text.partition("StartTime=")[2].split()[0]
    never = "JobState=CANCELLED" in text and "RunTime=00:00:00" in text
    return None if never or "Unknown" in start else start


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: jobs of two users")
def test_where_a_partition_is_for_one_user_a_node_users_share_only_with_themselves(make_cluster: Any) -> None:
    # By PartitionName again, since the dev cluster's own partitions have no such option.
    cluster = make_cluster(
        nodes=default_nodes(2), extra_conf=("PartitionName=own Nodes=n[1-2] ExclusiveUser=YES",)
    )

    def node_of(user: int) -> str:
        job = submit(cluster, *SMALL, "--partition=own", f"--uid={user}", command="sleep 600")
        until(lambda: states(cluster).get(job) == "RUNNING")
        return cluster.run(["squeue", "-h", "-j", job, "-o", "%N"], check=True).stdout.strip()

    nobody, daemon = 65534, 1
    assert [node_of(user) for user in (nobody, daemon, nobody, daemon)] == ["n1", "n2", "n1", "n2"]


def test_where_cores_may_be_shared_small_jobs_fill_the_gpu_and_never_exceed_it(make_cluster: Any) -> None:
    node = NodeSpec("n1", gpus=1, gpu_memory_mib=40 * 1024, cpus=4, memory_mib=64_000)
    cluster = make_cluster(nodes=(node,), extra_conf=("PartitionName=share Nodes=n1 OverSubscribe=FORCE:4",))

    def running(partition: str) -> int:
        """Of fourteen jobs of 3 shards and a core on 4 cores and 40 shards."""
        options = ("--gres=shard:3", "--mem=64", "--cpus-per-task=1", f"--partition={partition}")
        jobs = [submit(cluster, *options, command="sleep 300") for _ in range(14)]

        def settled() -> bool:
            now = [states(cluster).get(job) for job in jobs]
            return "RUNNING" in now and _reason(cluster, jobs[-1]) in ("Resources", "Priority")

        until(settled)
        most = 4 if partition == "gpu" else 13
        until(lambda: sum(states(cluster).get(job) == "RUNNING" for job in jobs) >= most)
        count = sum(states(cluster).get(job) == "RUNNING" for job in jobs)
        cluster.run(["scancel", *jobs], check=True)
        until(lambda: not {"RUNNING", "COMPLETING"} & {states(cluster).get(job) for job in jobs})
        return count

    assert running("gpu") == 4
    assert running("share") == 13


def test_cores_that_large_shares_do_not_use_let_small_ones_onto_the_gpu(
    make_cluster: Any, tmp_path: Path
) -> None:
    """One job of 20 shards and many of 2 on 8 cores and 40 shards; the large one kept 1.1 of 4 CPUs busy."""
    node = NodeSpec("n1", gpus=1, gpu_memory_mib=40 * 1024, cpus=8, memory_mib=128_000)
    cluster = make_cluster(nodes=(node,))
    gpusbatch, file = str(Path(sys.executable).with_name("gpusbatch")), tmp_path / "used"
    for name in ("large", "small"):
        (tmp_path / name).write_text(
            f"#!/bin/sh\n#SBATCH --gres=gpu:1 -o /dev/null\necho {name}; sleep 300\n"
        )

    def call(name: str, *options: str, cpus: str = "used") -> str:
        env = {"GPUMEM_REMEMBERED": str(tmp_path / cpus)}
        done = cluster.run([gpusbatch, *options, name], env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    recipes = {}
    for name in ("large", "small"):
        record = parse_record(call(name, "--dry-run").partition("--comment=")[2])
        assert record is not None
        recipes[name] = Recipe(record.fingerprint, "", "", "", "")
    peaks = {recipes["large"]: {"a100": [19_600] * 10}, recipes["small"]: {"a100": [1900] * 10}}
    write_remembered(tmp_path / "share", peaks)
    write_remembered(file, peaks, cpus={recipes["large"]: {"a100": [CpuRun(1.1, 4)]}})

    def shards(cpus: str) -> int:
        """That run side by side."""
        names = ["large", *["small"] * 10]
        jobs = {call(name, "--parsable", cpus=cpus).strip(): name for name in names}
        last = list(jobs)[-1]
        until(lambda: _reason(cluster, last) in ("Resources", "Priority"))
        until(lambda: _runs(cluster, "large", jobs))
        most = 4 if cpus == "share" else 6
        until(lambda: len(_runs(cluster, "small", jobs)) >= most)
        count = 20 * len(_runs(cluster, "large", jobs)) + 2 * len(_runs(cluster, "small", jobs))
        cluster.run(["scancel", *jobs], check=True)
        until(lambda: not {"RUNNING", "COMPLETING"} & {states(cluster).get(job) for job in jobs})
        return count

    assert shards("share") == 28
    assert shards("used") == 32


def _runs(cluster: Cluster, name: str, jobs: Dict[str, str]) -> List[str]:
    now = states(cluster)
    return [job for job, named in jobs.items() if named == name and now.get(job) == "RUNNING"]


def _reason(cluster: Cluster, job: str) -> str:
    return cluster.run(["squeue", "-h", "-j", job, "-o", "%r"], check=True).stdout.strip()
