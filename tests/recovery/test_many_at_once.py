"""Many jobs run out of GPU memory at once: all are run again, and the controller answers meanwhile.

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
from tests.support.timing import slowness
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

JOBS = 100 if LONG else 10


@pytest.fixture(scope="module")
def large(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    nodes = tuple(NodeSpec(f"n{n}", gpus=8, cpus=128) for n in (1, 2))
    # One machine plays all nodes: their own hooks, a hundred at once, would be what is measured.
    others = ("Prolog=/bin/true", "Epilog=/bin/true", "BatchStartTimeout=300")
    with hurried(make_site(make_module_cluster, *others, nodes=nodes)) as site:
        yield site


@pytest.mark.timing
def test_all_come_back_and_squeue_answers_within_half_a_second(large: Site) -> None:
    go = large.root / "go"
    os.mkfifo(go)
    go.chmod(0o644)
    script = f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] && exit; cat {go}; {OOM}'
    array = large.submit(script, f"--array=1-{JOBS}", shards=4)
    names = [f"{array}_{task}" for task in range(1, JOBS + 1)]
    until(lambda: all(large.runs(name) for name in names), 240)
    waits: List[float] = []
    bare: List[float] = []
    deadline = time.monotonic() + 240
    while large.log().count(" requeued: out of GPU memory") < JOBS:
        let_go(go)
        # On a busy machine every process starts late; what the controller takes comes on top of that.
        bare.append(_seconds(large, "--version"))
        waits.append(_seconds(large, "-h"))
        assert time.monotonic() < deadline, large.log()
    print(f"{JOBS} jobs: squeue {_told(waits)}; squeue --version {_told(bare)}")
    for name in names:
        shown = large.ended(name, "COMPLETED")
        assert (large.runs(name), shown["RestartCnt"]) == (2, "1")
    assert statistics.median(waits) - statistics.median(bare) < 0.5 * slowness()
    assert _nine_of_ten(waits) - _nine_of_ten(bare) < 0.5 * slowness()


def _told(times: List[float]) -> str:
    middle, most = statistics.median(times), _nine_of_ten(times)
    return f"median {middle:.3f} s, 9 of 10 within {most:.3f} s, longest {max(times):.3f} s"


def _nine_of_ten(times: List[float]) -> float:
    return statistics.quantiles(times, n=10)[-1]


def _seconds(site: Site, *options: str) -> float:
    began = time.monotonic()
    assert site.cluster.run(["squeue", *options]).returncode == 0
    return time.monotonic() - began
