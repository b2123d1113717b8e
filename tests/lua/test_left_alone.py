from __future__ import annotations

import shutil
import subprocess
from typing import Any, Dict

import pytest

from slurm_gpumem.data import LUA_FILES
from tests.lua.played import A100, LUA_FOLDER, SITE, Player, to_lua
from tests.slurm.test_directives import SLIPS

HEAD = "#!/bin/bash\n#GPUMEM mem=12G\n"
RECORD = "gpumem/1:est=12045,req=13312,by=structural,shards=13"


@pytest.mark.parametrize(
    "job",
    [
        {"script": "#!/bin/bash\npython train.py\n", "tres_per_node": "gres:gpu:1"},
        {"script": "#!/bin/bash\npython x\n#GPUMEM mem=12G\n", "tres_per_node": "gres:gpu:1"},
        {"script": "#!/bin/bash\n", "tres_per_node": "gres:shard:3"},
        {"tres_per_node": "gres:gpu:1", "comment": "notgpumem/1:req=1 gpumem/2:req=1,shards=1"},
        {"script": "#!/bin/bash\n", "comment": "gpumem/1:req=13312,shards=0", "tres_per_node": "gres:gpu:1"},
        {"script": "#!/bin/bash\n", "comment": "gpumem/1:req=abc;rm", "tres_per_node": "gres:gpu:1"},
        {},
    ],
)
def test_a_job_that_did_not_ask_for_sharing_is_never_touched(play: Player, job: Dict[str, Any]) -> None:
    assert play.untouched(job).user == []


@pytest.mark.parametrize("line", SLIPS)
def test_a_comment_that_was_meant_as_a_directive_is_pointed_out(play: Player, line: str) -> None:
    job = {"script": f"#!/bin/bash\n{line}\ntrue\n", "tres_per_node": "gres:gpu:1"}
    said = ["gpumem: line 2 of the script is ignored; write it like this: #GPUMEM mem=12G"]
    assert play.untouched(job).user == said
    assert play.untouched({**job, "comment": RECORD, "tres_per_node": "gres:shard:13"}).user == []


@pytest.mark.parametrize("line", ["##GPUMEM mem=12G", "# gpumem estimates this job", "# GPU memory: 12G"])
def test_other_comments_draw_no_remark(play: Player, line: str) -> None:
    assert play.untouched({"script": f"#!/bin/bash\n{line}\n", "tres_per_node": "gres:gpu:1"}).user == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shared": 0}, "--exclusive"),
        ({"tres_per_node": "gres:gpu:2"}, "several GPUs"),
        ({"tres_per_node": "gres:gpu:1", "tres_per_job": "gres:gpu:4"}, "several GPUs"),
        (
            {"tres_per_node": None, "tres_per_task": "gres:gpu:1", "num_tasks": 4, "max_nodes": 1},
            "several GPUs",
        ),
        ({"min_nodes": 2, "tres_per_node": None, "tres_per_job": "gres:gpu:1"}, "all its nodes"),
        ({"min_nodes": 2, "num_tasks": 4}, "several tasks"),
        ({"num_tasks": 8}, "several nodes"),
        ({"cpus_per_tres": "gres:gpu:4"}, "--cpus-per-gpu"),
        ({"mem_per_tres": "gres:gpu:2048"}, "--mem-per-gpu"),
        ({"ntasks_per_tres": 2}, "--ntasks-per-gpu"),
        ({"tres_bind": "gres/gpu:per_task:1"}, "--gpus-per-task"),
        ({"tres_freq": "gpu:high"}, "--gpu-freq"),
        ({"het_job_offset": 0}, "heterogeneous"),
        ({"tres_per_node": "gres:mps:50"}, "not understood"),
        ({"tres_per_node": "gres:gpu:h100:1"}, "type h100"),
        ({"partition": "cpu"}, "no shared GPU"),
        ({"partition": "new"}, "not in gpumem_site.lua"),
        ({"script": HEAD + "#GPUMEM exclusive-gpu=yes\n"}, "exclusive-gpu=yes"),
        ({"script": HEAD.replace("12G", "lots")}, "not a size"),
    ],
)
def test_a_job_that_cannot_share_is_left_alone_and_told_why(
    play: Player, changes: Dict[str, Any], why: str
) -> None:
    job = {"script": HEAD, "tres_per_node": "gres:gpu:1", **changes}
    played = play.untouched({key: value for key, value in job.items() if value is not None})
    assert len(played.user) == 1
    assert why in played.user[0]


@pytest.mark.parametrize(
    "line",
    [
        "srun --gres=gpu:1 python train.py",
        "time /usr/bin/srun -G1 x",
        "srun -n 1 \\\n   --mem=3G \\\n   --gpus-per-node=1 x",
        "true && srun --mem-per-gpu=2G x",
        "out=$(srun --gres gpu:1 hostname)",
        'LAUNCH="srun --gres=gpu:1"',
        "srun a & srun --gres=gpu:1 b",
    ],
)
def test_an_inner_srun_that_names_gpus_leaves_the_job_alone(play: Player, line: str) -> None:
    played = play.untouched({"script": HEAD + "\n" + line + "\n", "tres_per_node": "gres:gpu:1"})
    assert "line 4" in played.user[0]


@pytest.mark.parametrize(
    "line",
    [
        "srun python train.py --gpus=1",
        "srun -n 1 --mem=3G python train.py --gres=x",
        "srun --gres=none setup.sh; python train.py --gpus 1",
        "# srun --gres=gpu:1 python train.py",
        "python srunner.py --gpus=1",
    ],
)
def test_a_program_s_own_gpu_option_is_not_srun_s(play: Player, line: str) -> None:
    played = play({"script": HEAD + line + "\n", "tres_per_node": "gres:gpu:1"})
    assert played.job["tres_per_node"] == "gres:shard:12"


def test_a_model_line_submitted_with_plain_sbatch_gets_a_hint_only(play: Player) -> None:
    job = {"script": "#!/bin/sh\n#GPUMEM model=s.txt input=3x224x224\n", "tres_per_node": "gres:gpu:1"}
    said = play.untouched(job).user
    assert len(said) == 1
    for word in ("sbatch estimates nothing here", "model=s.txt", "gpusbatch", "#GPUMEM mem=12G"):
        assert word in said[0]
    assert "\n" not in said[0]
    assert play.untouched({**job, "comment": RECORD.replace(",shards=13", "")}).user == []


OLD_LINE = "memory-line=1/ac00cd478b3c4d5e/corrected/adam.fp32/both.100.100/128/32,3576,5099:128,13327,18721"
OLD_LINE_HINT = (
    "gpumem: #GPUMEM memory-line= is ignored; write #GPUMEM model=summary.txt (with gpusbatch) or "
    "#GPUMEM mem=12G instead"
)


@pytest.mark.parametrize("more", ["batch-size=128", "model=s.txt", "mem=", "optimizer=sgd memory-line=1/x"])
def test_an_old_memory_line_gets_one_hint_and_is_ignored(play_each: Player, more: str) -> None:
    job = {"script": f"#!/bin/bash\n#GPUMEM {OLD_LINE} {more}\n", "tres_per_node": "gres:gpu:1"}
    hints = play_each.untouched(job).user
    assert hints[0] == OLD_LINE_HINT
    assert len(hints) == (2 if more == "mem=" else 1)
    assert play_each.untouched({**job, "comment": RECORD.replace(",shards=13", "")}).user == []


def test_memory_beside_an_old_memory_line_counts(play: Player) -> None:
    job = {"script": f"#!/bin/bash\n#GPUMEM {OLD_LINE} mem=12G\n", "tres_per_node": "gres:gpu:1"}
    played, without = play(job), play({**job, "script": HEAD})
    assert played.job == without.job
    assert played.user == [OLD_LINE_HINT, *without.user]


def test_a_trace_line_submitted_with_plain_sbatch_gets_a_hint_and_starts_nothing(play: Player) -> None:
    job = {"script": "#!/bin/bash\n#GPUMEM trace=yes\ntrue\n", "tres_per_node": "gres:gpu:1"}
    said = play.untouched(job).user
    assert len(said) == 1
    assert "sbatch traces nothing" in said[0]


SLOT_HINT = (
    "gpumem: sbatch gives no time slots, so #GPUMEM slot=2h has no effect; submit this script with gpusbatch"
)


def test_slots_asked_for_with_plain_sbatch_get_a_hint(play: Player) -> None:
    job = {"script": "#!/bin/bash\n#GPUMEM slot=2h\ntrue\n", "tres_per_node": "gres:gpu:1"}
    assert play.untouched(job).user == [SLOT_HINT]
    assert play.untouched({**job, "comment": RECORD.replace(",shards=13", "")}).user == []
    assert play.untouched({**job, "script": "#!/bin/bash\n#GPUMEM slot=off\n"}).user == []
    shared = play({**job, "script": "#!/bin/bash\n#GPUMEM mem=8G slot=2h\n"})
    assert SLOT_HINT in shared.user
    assert len(shared.user) == 2


def test_own_shards_above_one_gpu_get_a_hint_only(play: Player) -> None:
    played = play.untouched({"tres_per_node": "gres:shard:41"})
    assert played.user == ["gpumem: --gres=shard:41 will wait forever: one GPU here has 40 shards"]


@pytest.mark.parametrize(
    "site",
    [
        None,
        {**SITE, "schema": 2},
        {**SITE, "mode": "maybe"},
        {**SITE, "shard_mib": "1024"},
        {**SITE, "partitions": {"gpu": [{"shares": 4}]}},
    ],
)
def test_a_site_table_that_cannot_be_used_is_refused_when_loaded(
    play: Player, site: Any, tmp_path: Any
) -> None:
    _plugin(tmp_path, site)
    played = play.untouched({"script": HEAD, "tres_per_node": "gres:gpu:1"}, lua_folder=tmp_path, site=None)
    assert "gpumem_site.lua: " in played.log[0]


@pytest.mark.parametrize(
    ("toml", "in_table", "mode"),
    [
        ('# ours\n[sharing]\nmode = "observe"  # since May\ngres = "shard"\n', None, "observe"),
        (
            "[node]\nmode = 'on'\n\n [ sharing ] \r\n\tmode='on'\r\n[sharing.partition.a]\nmode = 'known'\n",
            None,
            "on",
        ),
        ('sharing.mode = "on"\n[trace]\ndefault = true\n', None, "on"),
        ('[sharing]\n#mode = "on"\n', None, "opt-in"),
        ('[sharing]\nmode = "known"\n', None, "known"),
        ('[sharing]\nmode = "on"\n', "observe", "on"),
        # A table of before setup left the mode out of it.
        ("[sharing]\n", "observe", "observe"),
        (None, "observe", "observe"),
        (None, None, "opt-in"),
        ("", None, "opt-in"),
    ],
)
def test_the_mode_is_that_of_the_gpumem_toml_beside_it(
    play: Player, tmp_path: Any, toml: Any, in_table: Any, mode: str
) -> None:
    folder = _plugin(tmp_path, {**SITE, "mode": in_table})
    if toml is not None:
        (folder / "gpumem.toml").write_bytes(toml.encode())
    program = "local m = dofile(arg[1] .. '/gpumem.lua') io.write(m.site.mode)"
    words = [play.interpreter, "-", str(folder)]
    done = subprocess.run(words, input=program, capture_output=True, text=True, check=True)
    assert done.stdout == mode


def test_a_mode_that_is_none_leaves_jobs_alone_and_is_named(play: Player, tmp_path: Any) -> None:
    folder = _plugin(tmp_path, SITE)
    for text in ('[sharing]\nmode = "maybe"\n', '[sharing.partition.gpu]\nmode = "maybe"\n'):
        (folder / "gpumem.toml").write_text(text)
        played = play.untouched({"script": HEAD, "tres_per_node": "gres:gpu:1"}, lua_folder=folder, site=None)
        assert "is not" in played.log[0]
        assert "gpumem.toml" in played.log[0]


@pytest.mark.parametrize(
    ("partition", "changed"),
    [
        ("both", True),
        ("gpu", False),
        ("both,gpu", False),
        ("both,other", False),
        ("other", False),
        (None, False),
    ],
)
def test_each_partition_has_its_own_mode_and_the_most_careful_counts(
    play_each: Player, tmp_path: Any, partition: Any, changed: bool
) -> None:
    folder = _plugin(tmp_path, {**SITE, "partitions": {**SITE["partitions"], "other": [A100]}})
    (folder / "gpumem.toml").write_text(
        '[sharing]\nmode = "observe"\n[sharing.partition.both]\nmode = "known"\n'
        "[sharing.partition.'gpu']\nmode = 'observe'\n"
    )
    job = {"script": HEAD, "tres_per_node": "gres:gpu:1", "partition": partition}
    played = play_each({key: value for key, value in job.items() if value}, lua_folder=folder, site=None)
    assert ("shard" in played.job["tres_per_node"]) is changed
    # The default partition is the site's.
    assert bool(played.user) is changed


def test_no_mode_but_on_shares_a_job_whose_record_is_only_an_estimate(play_each: Player) -> None:
    estimated = RECORD.replace(",shards=13", "")
    job = {"script": "#!/bin/sh\n", "tres_per_node": "gres:gpu:1", "comment": estimated, "partition": "both"}
    modes = {"gpu": "observe", "both": "on"}
    for site in ({**SITE, "mode": "known"}, {**SITE, "mode": "on", "modes": {"both": "known"}}):
        play_each.untouched(job, site=site)
    for site in ({**SITE, "mode": "on"}, {**SITE, "mode": "known", "modes": modes}):
        assert "shard" in play_each(job, site=site).job["tres_per_node"]


def _plugin(folder: Any, table: Any) -> Any:
    for name in LUA_FILES:
        shutil.copy(LUA_FOLDER / name, folder)
    (folder / "gpumem_site.lua").write_text("return " + to_lua(table))
    return folder


def test_a_site_table_can_call_nothing(play_each: Player, tmp_path: Any) -> None:
    for name in LUA_FILES:
        shutil.copy(LUA_FOLDER / name, tmp_path)
    (tmp_path / "gpumem_site.lua").write_text(f"os.remove('{tmp_path}/gpumem.lua') return {{}}")
    played = play_each.untouched({"script": HEAD}, lua_folder=tmp_path, site=None)
    assert "global 'os'" in played.log[0]
    assert (tmp_path / "gpumem.lua").exists()
