"""Many jobs run out of GPU memory at the same moment: all come back, and the controller answers meanwhile.

20 jobs; GPUMEM_TEST_LONG=1 makes it 100.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Callable, Iterator, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.recovery.conftest import OOM, Site, close_site, make_site, needs_root, until

pytestmark = [needs_root, pytest.mark.slurm]

JOBS = 100 if os.environ.get("GPUMEM_TEST_LONG") else 20


@pytest.fixture(scope="module")
def large(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    site = make_site(make_module_cluster, nodes=tuple(NodeSpec(f"n{n}", gpus=8, cpus=128) for n in (1, 2)))
    yield site
    close_site(site)


def test_all_come_back_and_squeue_answers_within_half_a_second(large: Site) -> None:
    go = large.root / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
    script = f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] && exit; {wait}; {OOM}'
    array = large.submit(script, f"--array=1-{JOBS}", shards=4)
    names = [f"{array}_{task}" for task in range(1, JOBS + 1)]
    until(lambda: all(large.runs(name) for name in names), 120)
    go.touch()
    waits: List[float] = []
    deadline = time.monotonic() + 180
    while large.log().count(": requeued: ") < JOBS:
        began = time.monotonic()
        assert large.cluster.run(["squeue", "-h"]).returncode == 0
        waits.append(time.monotonic() - began)
        assert began < deadline, large.log()
    print(f"{JOBS} jobs: squeue median {statistics.median(waits):.3f} s, longest {max(waits):.3f} s")
    for name in names:
        shown = large.ended(name, "COMPLETED", 120)
        assert (large.runs(name), shown["RestartCnt"]) == (2, "1")
    assert statistics.median(waits) < 0.5
    assert max(waits) < 0.5
