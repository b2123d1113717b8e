"""Many jobs run out of GPU memory at the same moment: all come back, and the controller answers meanwhile.

10 jobs; the long form has 100.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Callable, Iterator, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.recovery.conftest import LONG, OOM, Site, hurried, let_go, make_site, needs_root

pytestmark = [needs_root, pytest.mark.slurm]

JOBS = 100 if LONG else 10


@pytest.fixture(scope="module")
def large(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    nodes = tuple(NodeSpec(f"n{n}", gpus=8, cpus=128) for n in (1, 2))
    # So many prologs at once take longer on one machine than Slurm would wait for a start.
    with hurried(make_site(make_module_cluster, "BatchStartTimeout=300", nodes=nodes)) as site:
        yield site


def test_all_come_back_and_squeue_answers_within_half_a_second(large: Site) -> None:
    go = large.root / "go"
    os.mkfifo(go)
    go.chmod(0o644)
    script = f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] && exit; cat {go}; {OOM}'
    array = large.submit(script, f"--array=1-{JOBS}", shards=4)
    names = [f"{array}_{task}" for task in range(1, JOBS + 1)]
    deadline = time.monotonic() + 240
    while not all(large.runs(name) for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    waits: List[float] = []
    bare: List[float] = []
    deadline = time.monotonic() + 240
    while large.log().count(": requeued: ") < JOBS:
        let_go(go)
        # On a busy machine every process starts late; what the controller takes comes on top of that.
        bare.append(_seconds(large, "--version"))
        waits.append(_seconds(large, "-h"))
        assert time.monotonic() < deadline, large.log()
    print(
        f"{JOBS} jobs: squeue median {statistics.median(waits):.3f} s, longest {max(waits):.3f} s; "
        f"squeue --version median {statistics.median(bare):.3f} s, longest {max(bare):.3f} s"
    )
    for name in names:
        shown = large.ended(name, "COMPLETED", 120)
        assert (large.runs(name), shown["RestartCnt"]) == (2, "1")
    assert statistics.median(waits) < 0.5
    assert max(waits) - max(bare) < 0.5


def _seconds(site: Site, *options: str) -> float:
    began = time.monotonic()
    assert site.cluster.run(["squeue", *options]).returncode == 0
    return time.monotonic() - began
