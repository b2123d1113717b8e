"""A job on a MIG instance on real daemons; test_requeue.py has what comes after it."""

from __future__ import annotations

from typing import Callable, Iterator

import pytest

from slurm_gpumem.accounting.rows import row_of
from slurm_gpumem.accounting.types import INSTANCE
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec, Undivided
from slurm_gpumem.formats.job_record import MIG, parse_job_record
from slurm_gpumem.node.gpus import standin_uuid
from tests.recovery.conftest import Site, hurried, make_site, needs_root
from tests.support.slurm_jobs import hold_until
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

SMALL = Undivided("1g.18gb", 3, 16_384, "1g.18gb")
NODE = NodeSpec("n1", 1, "h200", 139 * 1024, instances=(SMALL,), cpus=16)
RECORD = "gpumem/1:est=9000,req=10000,by=test,oom=requeue"


@pytest.fixture
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    with hurried(make_site(make_module_cluster, nodes=(NODE,))) as made:
        yield made


def test_a_job_is_measured_on_its_own_instance(site: Site) -> None:
    go = site.root / "out" / "go"
    job = site.submit(
        f"export GPUMEM_DEVCLUSTER={site.cluster.layout.root} PATH={site.cluster.layout.programs}:$PATH\n"
        f"echo begins on $SLURM_JOB_GPUS\n{hold_until(go, 9_000, '--sm 0.5')}",
        gres="gpu:1g.18gb:1",
        comment=RECORD,
    )
    until(lambda: site.peaks().get(job) == 9_000.0)
    go.touch()
    site.ended(job, "COMPLETED")
    record = site.record(job, 0)
    (uuid,) = record["gpus"]
    assert uuid in {standin_uuid("n1", number, instance=True) for number in (1, 2, 3)}
    assert (record["mode"], record["limit_mib"], record["shards"]) == (MIG, 16_384, None)
    assert record["peak_mib"] == 9_000
    assert record["gpu"][uuid]["name"] == "stand-in MIG 1g.18gb"
    assert record["met"] == []
    assert not list(site.folder("n1").mps.glob("MIG-*"))
    row = row_of(parse_job_record(next((site.root / "records").glob(f"{job}.0.*.json")).read_bytes()))
    assert (row.gpu, row.sharing, row.limit_mib) == ("1g.18gb", INSTANCE, 16_384)
