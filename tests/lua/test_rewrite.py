from __future__ import annotations

import copy
from typing import Any

import pytest

from slurm_gpumem.data import FILTER_FILES, LUA_FILES
from tests.lua.played import A100, A100_80, LUA_FOLDER, SITE, Player

ASKS = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#GPUMEM mem=12G\npython train.py\n"
RECORD = "gpumem/1:est=12045,req=13312,by=structural,gpu=a100,shards=13"


def site(**changes: Any) -> Any:
    return {**copy.deepcopy(SITE), **changes}


def test_a_gpumem_mem_line_turns_one_gpu_into_shards(play_each: Player) -> None:
    played = play_each({"script": ASKS, "tres_per_node": "gres:gpu:1"})
    assert played.job["tres_per_node"] == "gres:shard:12"
    assert played.job["admin_comment"] == "gpumem/1:was=--gres=gpu:1"
    assert played.job["comment"] == "gpumem/1:req=12288,by=mem,shards=12"
    assert played.user == ["gpumem: --gres=gpu:1 became --gres=shard:12 (one GPU has 40)"]


@pytest.mark.parametrize("separator", [":", "/"])
def test_the_separator_and_type_the_job_came_with_are_kept(play: Player, separator: str) -> None:
    played = play({"script": ASKS, "tres_per_node": f"gres{separator}gpu:a100:1,gres{separator}nvme:3"})
    assert played.job["tres_per_node"] == f"gres{separator}shard:a100:12,gres{separator}nvme:3"


def test_a_type_without_a_count_means_one(play: Player) -> None:
    played = play({"script": ASKS, "tres_per_node": "gres/gpu:a100"})
    assert played.job["tres_per_node"] == "gres/shard:a100:12"


@pytest.mark.parametrize(
    ("field", "option", "extra"),
    [
        ("tres_per_job", "--gpus=1", {}),
        ("tres_per_task", "--gpus-per-task=1", {"num_tasks": 1}),
    ],
)
def test_gpus_and_gpus_per_task_become_shards_per_node(
    play: Player, field: str, option: str, extra: Any
) -> None:
    played = play({"script": ASKS, field: "gres:gpu:1", **extra})
    assert played.job[field] == ""
    assert played.job["tres_per_node"] == "gres:shard:12"
    assert played.job["admin_comment"] == f"gpumem/1:was={option}"


def test_environment_that_would_ask_for_the_gpu_again_is_emptied(play: Player) -> None:
    environment = {"SLURM_GPUS_PER_NODE": "1", "SLURM_GPUS": "1", "HOME": "/home/u"}
    played = play({"script": ASKS, "tres_per_node": "gres:gpu:1", "environment": environment})
    assert played.env == {"SLURM_GPUS_PER_NODE": "", "SLURM_GPUS": "", "HOME": "/home/u"}


def test_what_tasks_ask_for_besides_the_gpu_stays(play: Player) -> None:
    asked = "cpu=2,gres/gpu:a100=1"
    job = {"script": ASKS, "tres_per_task": asked, "num_tasks": 1}
    played = play({**job, "environment": {"SLURM_TRES_PER_TASK": asked}})
    assert played.job["tres_per_task"] == "cpu=2"
    assert played.env == {"SLURM_TRES_PER_TASK": "cpu=2"}
    assert played.job["tres_per_node"] == "gres/shard:a100:12"
    assert played.job["admin_comment"] == "gpumem/1:was=--gpus-per-task=a100:1"


def test_memory_by_hand_takes_the_share_that_the_site_assumes_for_unknown_activity(play: Player) -> None:
    job = {"script": ASKS, "tres_per_node": "gres:gpu:1"}
    played = play(job, site=site(unknown_share=0.42))
    assert played.job["tres_per_node"] == "gres:shard:17"
    assert played.job["comment"] == "gpumem/1:req=12288,by=mem,shards=17"
    assert "is not known (memory alone: 12)" in played.user[0]
    # What gpusbatch worked out stays, and memory that needs more decides.
    record = "gpumem/1:req=12288,by=trace,shards=12"
    asked = play({"comment": record, "tres_per_node": "gres:shard:12"}, site=site(unknown_share=0.42))
    assert "tres_per_node" not in asked.job or asked.job["tres_per_node"] == "gres:shard:12"
    assert play(job, site=site(unknown_share=0.2)).job["tres_per_node"] == "gres:shard:12"


def test_the_user_s_comments_are_kept(play: Player) -> None:
    played = play(
        {
            "script": ASKS,
            "tres_per_node": "gres:gpu:1",
            "comment": "my 100% run",
            "admin_comment": "JS1:abc",
        }
    )
    assert played.job["comment"] == "my 100% run gpumem/1:req=12288,by=mem,shards=12"
    assert played.job["admin_comment"] == "JS1:abc gpumem/1:was=--gres=gpu:1"


def test_consent_to_requeue_travels_in_the_record(play: Player) -> None:
    script = ASKS.replace("mem=12G", "mem=12G on-oom=requeue")
    played = play({"script": script, "tres_per_node": "gres:gpu:1"})
    assert played.job["comment"].endswith(",oom=requeue")
    played = play({"script": script, "tres_per_node": "gres:gpu:1", "requeue": 0})
    assert "oom=" not in played.job["comment"]


def test_a_comment_without_room_is_kept_rather_than_grown_past_slurm_s_limit(play: Player) -> None:
    played = play({"script": ASKS, "tres_per_node": "gres:gpu:1", "comment": "x" * 1010})
    assert played.job["tres_per_node"] == "gres:shard:12"
    assert played.job["comment"] == "x" * 1010


def test_a_comment_at_the_end_of_a_directive_is_no_part_of_it(play: Player) -> None:
    for text in (
        "mem=12G # as measured mem=3G",
        "'mem=12G'",
        'mem="12"G',
        "batch-size=3   mem=12G",
        "mem=1\\2G",
    ):
        played = play({"script": ASKS.replace("mem=12G", text), "tres_per_node": "gres:gpu:1"})
        assert played.job["tres_per_node"] == "gres:shard:12", text


@pytest.mark.parametrize(("size", "meant"), [("12", "12G"), ("1.5", "1.5G"), ("12288", "12288M")])
def test_a_bare_number_changes_nothing_and_asks_for_its_unit(play: Player, size: str, meant: str) -> None:
    played = play.untouched({"script": ASKS.replace("12G", size), "tres_per_node": "gres:gpu:1"})
    assert played.user == [f"gpumem: job not changed: #GPUMEM mem={size} has no unit; did you mean {meant}?"]


def test_a_job_of_gpusbatch_comes_out_as_it_was(play: Player) -> None:
    played = play.untouched({"script": "#!/bin/sh\n", "tres_per_node": "gres:shard:13", "comment": RECORD})
    assert played.user == []


def test_fewer_shards_than_the_record_needs_are_raised_and_more_are_kept(play: Player) -> None:
    fewer = play({"script": "#!/bin/sh\n", "tres_per_node": "gres:shard:2", "comment": RECORD})
    assert fewer.job["tres_per_node"] == "gres:shard:13"
    assert fewer.job["admin_comment"] == "gpumem/1:was=--gres=shard:2"
    play.untouched({"script": "#!/bin/sh\n", "tres_per_node": "gres:shard:20", "comment": RECORD})


def test_more_than_one_gpu_has_is_capped_and_the_user_is_told(play: Player) -> None:
    script = ASKS.replace("12G", "90G")
    played = play({"script": script, "tres_per_node": "gres:gpu:1"})
    assert played.job["tres_per_node"] == "gres:shard:40"
    assert "needs 90" in played.user[0]


def test_the_cap_is_that_of_the_largest_gpu_in_reach(play: Player) -> None:
    job = {"script": ASKS.replace("12G", "90G"), "tres_per_node": "gres:gpu:1"}
    assert play({**job, "partition": "both"}).job["tres_per_node"] == "gres:shard:80"
    assert play({**job, "partition": "gpu,both"}).job["tres_per_node"] == "gres:shard:80"
    typed = {**job, "partition": "both", "tres_per_node": "gres:gpu:a100:1"}
    assert play(typed).job["tres_per_node"] == "gres:shard:a100:40"


def test_a_count_above_the_cap_of_a_record_s_job_is_capped(play: Player) -> None:
    played = play({"script": "#!/bin/sh\n", "tres_per_node": "gres:shard:41", "comment": RECORD})
    assert played.job["tres_per_node"] == "gres:shard:40"


def test_the_default_partition_is_slurm_s_own(play: Player) -> None:
    job = {"script": ASKS.replace("12G", "90G"), "tres_per_node": "gres:gpu:1"}
    played = play(job, partitions={"gpu": {"flag_default": 0}, "both": {"flag_default": 1}})
    assert played.job["tres_per_node"] == "gres:shard:80"


def test_memory_is_rounded_up_to_whole_shards(play: Player) -> None:
    for size, shards in (
        ("12G", 12),
        ("12.1G", 13),
        ("1M", 1),
        ("12289M", 13),
        ("'12 G'", 0),
        ('"12GiB"', 12),
    ):
        played = play({"script": ASKS.replace("12G", size), "tres_per_node": "gres:gpu:1"})
        expected = f"gres:shard:{shards}" if shards else "gres:gpu:1"
        assert played.job["tres_per_node"] == expected, size


def test_shards_of_another_size_are_counted_in_that_size(play: Player) -> None:
    played = play({"script": ASKS, "tres_per_node": "gres:gpu:1"}, site=site(shard_mib=512))
    assert played.job["tres_per_node"] == "gres:shard:24"


def test_salloc_and_srun_without_a_gpu_option_get_shards(play: Player) -> None:
    for argc in (0, 1):
        played = play({"comment": RECORD, "argc": argc})
        assert played.job["tres_per_node"] == "gres:shard:13"
        assert played.job["admin_comment"] == "gpumem/1:was=none"
    slash = play({"comment": RECORD}, site=site(separator="/"))
    assert slash.job["tres_per_node"] == "gres/shard:13"


def test_salloc_and_srun_that_name_a_gpu_keep_it(play: Player) -> None:
    played = play.untouched({"comment": RECORD, "tres_per_node": "gres:gpu:1"})
    assert "leave the GPU option out" in played.user[0]


def test_salloc_is_capped_but_srun_is_only_warned(play: Player) -> None:
    job = {"comment": RECORD, "tres_per_node": "gres:shard:50"}
    assert play(job).job["tres_per_node"] == "gres:shard:40"
    played = play.untouched({**job, "argc": 1})
    assert "will wait forever" in played.user[0]


def test_host_memory_and_cpus_follow_the_share_unless_asked_for(play: Player) -> None:
    gpus = [{**A100, "host_mib": 64000, "cpus": 16}]
    with_host = site(partitions={"gpu": gpus})
    job = {"script": ASKS.replace("12G", "10G"), "tres_per_node": "gres:gpu:1"}
    played = play(job, site=with_host)
    assert (played.job["pn_min_memory"], played.job["cpus_per_task"]) == ("16000", "4")
    asked = {**job, "min_mem_per_cpu": 100, "cpus_per_task": 2}
    played = play(asked, site=with_host)
    assert "pn_min_memory" not in played.job
    assert played.job["cpus_per_task"] == "2"


def test_one_gpu_on_each_of_two_nodes_becomes_shards_of_each(play: Player) -> None:
    gpus = [{**A100, "host_mib": 64000, "cpus": 16}]
    job = {
        "script": ASKS.replace("12G", "10G"), "tres_per_node": "gres:gpu:1",
        "min_nodes": 2, "max_nodes": 2, "num_tasks": 2, "ntasks_per_node": 1, "min_cpus": 2,
    }  # fmt: skip
    played = play(job, site=site(partitions={"gpu": gpus}))
    assert played.job["tres_per_node"] == "gres:shard:10"
    host = [played.job[name] for name in ("pn_min_memory", "cpus_per_task", "min_cpus")]
    assert host == ["16000", "4", "8"]


def test_mps_is_the_share_of_the_gpu_s_memory(play: Player) -> None:
    mps = site(gres="mps", partitions={"gpu": [{"type": "a100", "shares": 100, "memory_mib": 40960}]})
    played = play({"script": ASKS, "tres_per_node": "gres:gpu:1"}, site=mps)
    assert played.job["tres_per_node"] == "gres:mps:30"


def test_mps_on_gpus_of_two_sizes_names_the_one_it_was_counted_for(play: Player) -> None:
    gpus = [{**A100, "shares": 100}, {**A100_80, "shares": 100}]
    mps = site(gres="mps", partitions={"gpu": gpus})
    for size, word in (("12G", "gres:mps:a100:30"), ("60G", "gres:mps:a100-80:75")):
        played = play({"script": ASKS.replace("12G", size), "tres_per_node": "gres:gpu:1"}, site=mps)
        assert played.job["tres_per_node"] == word


def test_mode_on_also_shares_a_job_whose_record_is_only_an_estimate(play: Player) -> None:
    job = {
        "script": "#!/bin/sh\n",
        "tres_per_node": "gres:gpu:1",
        "comment": RECORD.replace(",shards=13", ""),
    }
    play.untouched(job)
    assert play(job, site=site(mode="on")).job["tres_per_node"] == "gres:shard:13"


def test_observe_changes_nothing_and_logs_what_it_would_do(play: Player) -> None:
    job = {"script": ASKS, "tres_per_node": "gres:gpu:1", "environment": {"SLURM_GPUS_PER_NODE": "1"}}
    played = play.untouched(job, site=site(mode="observe"))
    assert played.user == []
    assert "--gres=gpu:1 became --gres=shard:12" in played.log[-1]


def test_a_change_that_slurm_refuses_takes_back_the_others(play: Player) -> None:
    job = {"script": ASKS, "tres_per_node": "gres:gpu:1", "comment": "mine", "admin_comment": "theirs"}
    played = play.untouched(job, writable="tres_per_node admin_comment")
    assert "job not changed" in played.log[-1]


def test_without_a_site_table_nothing_is_touched_and_the_log_says_so(play: Player) -> None:
    played = play.untouched({"script": ASKS, "tres_per_node": "gres:gpu:1"}, site=None)
    assert "gpumem_site.lua" in played.log[-1]


def test_the_module_is_plain_files() -> None:
    assert {path.name for path in LUA_FOLDER.iterdir()} == {*LUA_FILES, *FILTER_FILES, "job_submit.lua"}
