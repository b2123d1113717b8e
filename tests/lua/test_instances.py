"""#GPUMEM jobs on a site with MIG instances: the smallest that holds them, or a share that takes less."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from tests.lua.played import SITE, Player

SMALL, LARGE = {"type": "1g.18gb", "memory_mib": 16384}, {"type": "3g.71gb", "memory_mib": 71424}
MIG: Dict[str, Any] = {
    **SITE,
    "partitions": {"gpu": [], "both": [{"type": "h200", "shares": 139, "memory_mib": 139 * 1024}]},
    "instances": {"gpu": [SMALL, LARGE], "both": [LARGE, SMALL]},
}


def script(mem: str) -> str:
    return f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#GPUMEM mem={mem}\npython train.py\n"


@pytest.mark.parametrize(
    ("partition", "mem", "gres"),
    [
        ("gpu", "12G", "gres:gpu:1g.18gb:1"),
        ("gpu", "16G", "gres:gpu:1g.18gb:1"),
        ("gpu", "17G", "gres:gpu:3g.71gb:1"),
        ("both", "12G", "gres:shard:12"),
        ("both", "100G", "gres:shard:100"),
        ("gpu,both", "16G", "gres:shard:16"),
    ],
)
def test_the_smallest_instance_or_share_is_asked_for(
    play: Player, partition: str, mem: str, gres: str
) -> None:
    job = {"script": script(mem), "tres_per_node": "gres:gpu:1", "partition": partition}
    assert play(job, site=MIG).job["tres_per_node"] == gres


def test_the_user_is_told_and_the_record_says_that_nothing_is_shared(play: Player) -> None:
    played = play({"script": script("12G"), "tres_per_node": "gres:gpu:1", "partition": "gpu"}, site=MIG)
    assert played.user == ["gpumem: --gres=gpu:1 became --gres=gpu:1g.18gb:1 (a MIG instance of 16384 MiB)"]
    assert played.job["comment"] == "gpumem/1:req=12288,by=mem,shards=0"


def test_no_instance_holds_it_and_the_job_stays_as_it_was(play: Player) -> None:
    played = play.untouched(
        {"script": script("80G"), "tres_per_node": "gres:gpu:1", "partition": "gpu"}, site=MIG
    )
    assert played.user == ["gpumem: job not changed: no MIG instance of partition gpu holds its GPU memory"]


def test_a_profile_that_the_job_names_itself_stays(play: Player) -> None:
    job = {"script": script("12G"), "tres_per_node": "gres:gpu:3g.71gb:1", "partition": "gpu"}
    play.untouched(job, site=MIG)


def test_a_record_of_gpusbatch_for_an_instance_is_left_alone(play: Player) -> None:
    record = "gpumem/1:est=9000,req=10000,by=structural,gpu=1g.18gb,shards=0"
    job = {"script": "#!/bin/bash\ntrue\n", "tres_per_node": "gres:gpu:1g.18gb:1", "partition": "gpu"}
    play.untouched({**job, "comment": record}, site=MIG)
