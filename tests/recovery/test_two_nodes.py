"""Data parallel jobs of two users on the same two GPUs of two nodes: real ranks, one node's record each."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.node.gpus import standin_uuid
from tests.recovery.conftest import OOM_LINE, Site, hurried, make_site, needs_root
from tests.support.other_user import user_python
from tests.support.slurm_jobs import verified_peaks
from tests.support.waiting import until

pytest.importorskip("torch")
pytestmark = [needs_root, pytest.mark.slurm]

BIN = Path(sys.executable).parent
USERS = ("nobody", "daemon")
NODES = ("n1", "n2")

RANK = f"""
import os, signal, subprocess, sys, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, world, run = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]), sys.argv[1]
peak = int(sys.argv[2]) * (rank + 1)
memory = subprocess.Popen(
    ["gpumem-standin", "--peak", str(peak), "--steps", "2000", "--seconds", "600"], stdout=subprocess.DEVNULL
)
if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
    print("fence", os.environ["SLURMD_NODENAME"], os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], flush=True)
try:
    meet = os.environ["SLURM_JOB_ID"] + "." + os.environ.get("SLURM_RESTART_COUNT", "0")
    dist.init_process_group("gloo", init_method=f"file://{{run}}.{{meet}}.meet", rank=rank, world_size=world)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, going = 0, torch.ones(1)
    while going:
        optimizer.zero_grad()
        model(torch.full((4, 8), float(rank))).square().mean().backward()
        optimizer.step()
        step += 1
        if rank == 0:
            open(f"{{run}}.{{meet}}.steps", "w").write(str(step))
            going.fill_(not os.path.exists(f"{{run}}.end"))
        dist.broadcast(going, 0)
        if memory.poll() is not None:
            raise SystemExit("its memory was taken")
        if rank == 1 and os.path.exists(f"{{run}}.full") and "SLURM_RESTART_COUNT" not in os.environ:
            raise torch.OutOfMemoryError({OOM_LINE.partition(": ")[2]!r})
        time.sleep(0.05)
    print("rank", rank, "has", model.module.weight.sum().item(), flush=True)
finally:
    memory.terminate()
    memory.wait()
"""


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    """Two nodes with one GPU each, so that all jobs are on the same two."""
    made = make_site(make_module_cluster, nodes=default_nodes(2, gpus=1))
    made.configure(ladder=["need+25%", "whole-gpu"])
    with hurried(made):
        yield made


class Desk:
    """What a user does there."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.out = site.root / "out"
        self.env = {
            "GPUMEM_SITE_CONFIG": str(site.root / "gpumem.toml"),
            "GPUMEM_RUN_DIR": str(site.root / "run" / "%n"),
            "GPUMEM_INDEX": str(site.root / "index"),
        }

    def train(self, name: str, user: str, peak_mib: int) -> str:
        """Two ranks that hold that much and twice that much until they are told to end."""
        found = user_python()
        assert found is not None
        python, more = found
        rank = self.out / "rank.py"
        rank.write_text(RANK)
        words = "".join(f"export {key}={value}; " for key, value in more.items())
        script = f"#!/bin/bash\n{words}echo begins\nsrun {python} {rank} {self.out / name} {peak_mib}\n"
        main = "from slurm_gpumem.cli.gpusbatch import main; raise SystemExit(main())"
        argv = [
            python, "-c", main, "--parsable", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1",
            "--gpu-mem=12G", "--mem=600", f"--output={self.out}/%j",
        ]  # fmt: skip
        home = {"HOME": str(self.out), "XDG_CACHE_HOME": str(self.out / f"cache-{user}")}
        done = self.site.cluster.run(
            argv, user=user, cwd=self.out, input=script, env={**self.env, **home, **more}, timeout_s=120
        )
        assert done.returncode == 0, done.stderr
        assert "12 of 40 shards on an a100, on each of 2 nodes" in " ".join(done.stderr.split())
        return done.stdout.strip()

    def tell(self, name: str, word: str) -> None:
        (self.out / f"{name}.{word}").touch()

    def steps(self, name: str, job: str, run: int = 0) -> int:
        try:
            return int((self.out / f"{name}.{job}.{run}.steps").read_text() or 0)
        except OSError:
            return 0

    def peaks(self, job: str) -> Dict[str, Any]:
        """By node, what its sampler has measured of the job."""
        return {node: verified_peaks(self.site.folder(node).live).get(job) for node in NODES}

    def records(self, job: str, run: int) -> List[Dict[str, Any]]:
        """The closed records of one run, in the order of the nodes."""
        paths = [self.site.root / "records" / f"{job}.{run}.{node}.json" for node in NODES]

        def read() -> Any:
            tables = [json.loads(path.read_text()) for path in paths if path.exists()]
            return len(tables) == 2 and all(table["end"] for table in tables) and tables

        found: List[Dict[str, Any]] = until(read)
        return found

    def report(self, *words: str) -> Any:
        argv = [str(BIN / "gpumem"), "report", "--json", *words]
        done = self.site.cluster.run(argv, env=self.env, timeout_s=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def top(self) -> Any:
        done = self.site.cluster.run([str(BIN / "gpumem"), "top", "--json"], env=self.env, timeout_s=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def desk(site: Site) -> Desk:
    return Desk(site)


def test_two_users_train_on_the_same_two_gpus_and_one_that_is_cancelled_leaves_the_other_alone(
    desk: Desk,
) -> None:
    ended, other = (desk.train(name, user, 1000) for name, user in zip(("ended", "other"), USERS))
    for job in (ended, other):
        until(lambda job=job: desk.peaks(job) == {"n1": 1000.0, "n2": 2000.0})
    shown = desk.top()
    assert [row["shown"] for row in shown["jobs"]] == [ended, other]
    assert [row["node"] for row in shown["jobs"]] == ["n[1-2]", "n[1-2]"]
    desk.site.cluster.run(["scancel", ended], check=True)
    desk.site.ended(ended, "CANCELLED")
    before = desk.steps("other", other)
    until(lambda: desk.steps("other", other) > before + 20)
    desk.tell("other", "end")
    desk.site.ended(other, "COMPLETED")
    limits = re.findall(r"fence (\S+) (\S+)", desk.site.out(other))
    assert sorted(limits) == [(node, f"{standin_uuid(node, 0)}=12288M") for node in NODES]
    weights = dict(re.findall(r"rank (\d) has (\S+)", desk.site.out(other)))
    assert set(weights) == {"0", "1"}
    assert weights["0"] == weights["1"]
    for job, beside in ((ended, other), (other, ended)):
        for record, peak in zip(desk.records(job, 0), (1000.0, 2000.0)):
            assert (record["shards"], record["shards_verified"], record["mode"]) == (12, True, "mps")
            assert (record["peak_mib"], record["met"]) == (peak, [int(beside)])
    (row,) = desk.report("-j", other)["jobs"]
    assert (row["peak_mib"], row["shards"], row["attempts"]) == (2000, 12, 1)
    assert row["node"] == "n1,n2"
    assert {job["job_id"] for job in desk.report("-N", "n2")["jobs"]} == {int(ended), int(other)}
