"""Recovery climbs MIG profiles on real daemons, with stand-ins for instances; records know them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

from slurm_gpumem.accounting.rows import row_of
from slurm_gpumem.accounting.types import INSTANCE
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from slurm_gpumem.formats.job_record import MIG, parse_job_record
from slurm_gpumem.node.gpus import standin_uuid
from slurm_gpumem.slurm.state.nodes import GPU_TYPE_CAN_CHANGE
from tests.recovery.conftest import Site, hurried, make_site, needs_root
from tests.support.slurm_jobs import hold_until
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

SMALL = Undivided("1g.18gb", 3, 16_384, "1g.18gb")
MIDDLE = Undivided("h200_2g.35gb", 1, 33_280, "2g.35gb", "h200")
NODE = NodeSpec("n1", 1, "h200", 139 * 1024, instances=(SMALL, MIDDLE), cpus=16)
RECORD = "gpumem/1:est=9000,req=10000,by=test,oom=requeue"


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    with hurried(make_site(make_module_cluster, nodes=(NODE,))) as made:
        made.configure(ladder=["need+25%", "+50%", "whole-gpu"])
        yield made


def train(site: Site, peak_mib: int, gres: str, *, go: Optional[Path] = None) -> str:
    """A job that needs so much memory, for a moment or until the file is there."""
    work = f"gpumem-standin --peak {peak_mib} --seconds 1.5 --sm 0.5"
    script = (
        f"export GPUMEM_DEVCLUSTER={site.cluster.layout.root} PATH={site.cluster.layout.programs}:$PATH\n"
        f"echo begins on $SLURM_JOB_GPUS\n{work if go is None else hold_until(go, peak_mib, '--sm 0.5')}"
    )
    return site.submit(script, gres=gres, comment=RECORD)


@pytest.fixture(scope="module")
def jobs(site: Site) -> Dict[str, str]:
    """All submitted before the first is looked at."""
    go = site.root / "out" / "go"
    made = {
        "fits": train(site, 9_000, "gpu:1g.18gb:1", go=go),
        "climbs": train(site, 20_000, "gpu:1g.18gb:1"),
    }
    until(lambda: site.peaks().get(made["fits"]) == 9_000.0)
    go.touch()
    return made


def records(site: Site, job: str, runs: int) -> List[Dict[str, Any]]:
    return [site.record(job, run) for run in range(runs)]


def test_a_job_is_measured_on_its_own_instance(site: Site, jobs: Dict[str, str]) -> None:
    site.ended(jobs["fits"], "COMPLETED")
    (record,) = records(site, jobs["fits"], 1)
    (uuid,) = record["gpus"]
    assert uuid in {standin_uuid("n1", number, instance=True) for number in (1, 2, 3)}
    assert (record["mode"], record["limit_mib"], record["shards"]) == (MIG, 16_384, None)
    assert record["peak_mib"] == 9_000
    assert record["gpu"][uuid]["name"] == "stand-in MIG 1g.18gb"
    assert record["met"] == []
    assert not list(site.folder("n1").mps.glob("MIG-*"))
    row = row_of(
        parse_job_record(next((site.root / "records").glob(f"{jobs['fits']}.0.*.json")).read_bytes())
    )
    assert (row.gpu, row.sharing, row.limit_mib) == ("1g.18gb", INSTANCE, 16_384)


def test_a_job_that_runs_out_on_an_instance_comes_back_on_the_next_larger_one(
    site: Site, jobs: Dict[str, str]
) -> None:
    job = jobs["climbs"]
    if not climbs(site):
        stays(site, job)
        return
    shown = site.ended(job, "COMPLETED")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == "gpu:h200_2g.35gb:1"
    first, second = records(site, job, 2)
    assert [run["limit_mib"] for run in (first, second)] == [16_384, 33_280]
    assert [len(run["gpus"]) for run in (first, second)] == [1, 1]
    assert first["verdict"] == "oom"
    assert "runs it again with a larger MIG instance or GPU" in site.out(job)


def climbs(site: Site) -> bool:
    """Whether this Slurm can change a job's GPU type."""
    said = site.cluster.run(["scontrol", "--version"], check=True).stdout.split()[-1]
    return tuple(map(int, said.split(".")[:3])) >= GPU_TYPE_CAN_CHANGE


def stays(site: Site, job: str) -> None:
    """It failed where it was, and its log and the admin's say why it is not run again."""
    site.ended(job, "FAILED")
    assert site.out(job).count("begins") == 1
    assert "this Slurm cannot change its GPU type, so it is not run again: ask for a larger one" in site.out(
        job
    )
    assert f"job {job}: not requeued: this Slurm cannot change a job's GPU type 1g.18gb" in site.log()
