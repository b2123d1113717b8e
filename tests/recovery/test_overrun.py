"""A job above its shards while sharing is run again with more, one whose memory it took as it was."""

from __future__ import annotations

import pytest

from tests.recovery.conftest import OOM, Site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]
HOLD = "gpumem-standin --steps 2000 --seconds 600 --peak"


def test_who_takes_too_much_comes_back_with_more_and_who_is_refused_memory_as_it_was(
    module_site: Site,
) -> None:
    site = module_site
    first = '[ "$SLURM_RESTART_COUNT" = 1 ] && exit 0;'
    # What PyTorch prints when it is refused memory within its share, once the other job has taken too much.
    refused = (
        f"until [ -e {site.root}/out/overran ]; do sleep 0.1; done; kill $!; {OOM.replace('10.80', '1.00')}"
    )
    neighbour = site.submit(f"echo begins; {first} {HOLD} 1000 & {refused}", "--nodelist=n1")
    until(lambda: neighbour in site.peaks(verified=True))
    greedy = site.submit(f"echo begins; {first} {HOLD} 9000", "--nodelist=n1", shards=4)
    record = site.record(greedy, 0)
    (site.root / "out" / "overran").touch()
    assert [event["kind"] for event in record["events"]] == ["overrun"]
    assert [event["kind"] for event in site.record(neighbour, 0)["events"]] == ["crowded"]
    more, same = site.ended(greedy, "COMPLETED"), site.ended(neighbour, "COMPLETED")
    assert site.record(greedy, 0)["verdict"] == "oom"
    assert site.record(neighbour, 0)["verdict"] == "neighbour"
    assert "retry=1,was=4,why=oom" in more["Comment"]
    assert not more["tres-per-node"].endswith("shard:4")
    assert "again=1,why=neighbour" in same["Comment"]
    assert same["tres-per-node"].endswith("shard:12")
    assert (site.runs(greedy), site.runs(neighbour)) == (2, 2)
