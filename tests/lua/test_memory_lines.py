"""Memory lines in the plug-in: the same answers as Python, and no harm from any text."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from slurm_gpumem.data import LUA_FILES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.environment import Environment, in_environment, workspace_margin
from slurm_gpumem.estimators.gpus import gpu_table
from slurm_gpumem.estimators.memory_line import CONTEXTS, Knot, MemoryLine, parse_line
from slurm_gpumem.estimators.types import Gpu
from tests.lua.played import INTERPRETERS, LUA_FOLDER, SITE, UNSET, Player, to_lua
from tests.support.timing import slowness

EVALUATE = Path(__file__).with_name("evaluate_lines.lua")
LINE = MemoryLine(
    "ac00cd478b3c4d5e",
    "corrected",
    "adam.fp32",
    "both",
    100,
    100,
    128,
    (Knot(32, 3576, 5099), Knot(128, 13327, 18721), Knot(512, 49586, 79065)),
)
HEAD = f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{LINE.directive()}\n"
JOB = {"tres_per_node": "gres:gpu:1"}


def draw_line(draw: random.Random) -> MemoryLine:
    """Any line: real ones are a few knots of growing memory, these are wilder."""

    def knots() -> Tuple[Knot, ...]:
        batches = sorted(draw.sample(range(1, draw.choice((50, 5000, 1 << 20))), draw.randint(1, 40)))
        return tuple(Knot(b, draw.randint(-900, 1 << 20), draw.randint(-900, 1 << 28)) for b in batches)

    small: Any = draw.choice(((), knots()))
    return MemoryLine(
        f"{draw.getrandbits(64):016x}",
        draw.choice(("corrected", "structural", "trace")),
        draw.choice(("adam.fp32", "sgd-momentum.amp-bf16.acc4+ckpt")),
        draw.choice(CONTEXTS),
        draw.randint(0, 140),
        draw.randint(0, 140),
        draw.randint(1, 1 << 20),
        knots(),
        small,
        (0, 0) if small else (draw.randint(-500, 500), draw.randint(-500, 500)),
        draw.choice((None, None, 0, 14, 999)),
    )


def site_gpu(gpu: Gpu) -> Dict[str, Any]:
    contexts = [gpu.context_for(conv=c, matmul=m) for c, m in ((0, 0), (1, 0), (0, 1), (1, 1))]
    return {
        "context": contexts,
        "workspace_mib": -(-gpu.cublas_workspace_bytes // 2**20),
        "context_margin_mib": gpu.context_margin_mib,
        "traced_percent": [workspace_margin(gpu, True), workspace_margin(gpu, False)],
    }


def damaged(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text))
    return draw.choice(
        (
            text[:at],
            text[:at] + draw.choice("/:,.-x9 \x00é") + text[at + 1 :],
            text + draw.choice(("/", ":", ",", "/1,2", "/1,2,3", "9" * 30)),
            text.replace("/", draw.choice("/:"), 3),
        )
    )


def by_python(text: str, batch: int, gpu: Gpu) -> Optional[Tuple[int, int]]:
    try:
        return parse_line(text).memory(batch, gpu)
    except UsageError:
        return None


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_lua_and_python_read_every_line_alike_to_the_last_mib(interpreter: str, tmp_path: Path) -> None:
    draw = random.Random(interpreter)
    gpus = list(gpu_table(tmp_path / "none").values())
    gpus += [in_environment(gpu, Environment()) for gpu in gpus]
    cases: List[Tuple[str, int, Gpu]] = []
    for number in range(900):
        text = draw_line(draw).text()
        text = damaged(text, draw) if number % 3 == 0 else text
        cases.append((text, draw.choice((1, 64, draw.randint(1, 6000), 1 << 20)), draw.choice(gpus)))
    path = tmp_path / "cases.lua"
    path.write_text("return " + to_lua([[text, batch, site_gpu(gpu)] for text, batch, gpu in cases]))
    done = subprocess.run(
        [interpreter, str(EVALUATE), str(LUA_FOLDER), str(path)], capture_output=True, text=True, check=True
    )
    told = [None if line == "nil" else tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    expected = [by_python(*case) for case in cases]
    differ = [(case, py, lua) for case, py, lua in zip(cases, expected, told) if py != lua]
    # A job that this version of Python does not know is one of a later version: Lua goes on without.
    assert [item for item in differ if item[1] is not None or not _unknown_job(item[0][0])] == []
    assert sum(value is not None for value in expected) > 500


def _unknown_job(text: str) -> bool:
    try:
        parse_line(text)
    except UsageError as error:
        return "unknown" in str(error) or "nothing a job can be" in str(error)
    return False


def test_a_memory_line_gives_the_shards_of_its_batch(play_each: Player) -> None:
    played = play_each({"script": HEAD, **JOB})
    assert played.job["tres_per_node"] == "gres:shard:20"
    assert played.user == ["gpumem: --gres=gpu:1 became --gres=shard:20 (one GPU has 40) for batch 128"]
    assert played.job["comment"] == (
        "gpumem/1:est=14091,req=19485,by=corrected,via=line,gpu=a100,batch=128,fp=ac00cd478b3c4d5e,"
        "opt=adam,prec=fp32,shards=20"
    )


@pytest.mark.parametrize(
    ("script", "environment", "shards"),
    [
        (HEAD.replace("batch-size=128", "batch-size=32"), {}, 6),
        (HEAD.replace("batch-size=128 ", ""), {}, 20),
        (HEAD, {"GPUMEM_BATCH_SIZE": "64"}, 11),
        (HEAD, {"GPUMEM_BATCH_SIZE": ""}, 20),
        (HEAD + "#GPUMEM mem=3G\n", {}, 3),
    ],
)
def test_the_batch_is_the_environment_s_then_the_script_s_then_the_line_s(
    play: Player, script: str, environment: Dict[str, str], shards: int
) -> None:
    played = play({"script": script, "environment": environment, **JOB})
    assert played.job["tres_per_node"] == f"gres:shard:{shards}"


def test_a_memory_line_is_of_one_process_and_not_of_a_rank(play: Player) -> None:
    played = play.untouched({"script": HEAD, **JOB, "min_nodes": 2})
    assert "its memory line is of one process" in played.user[0]
    assert play({"script": HEAD, **JOB, "min_nodes": 1}).job["tres_per_node"].startswith("gres:shard:")


def test_a_batch_outside_the_line_is_told(play: Player) -> None:
    played = play({"script": HEAD, "environment": {"GPUMEM_BATCH_SIZE": "8"}, **JOB})
    assert played.job["tres_per_node"] == "gres:shard:6"
    assert "for batch 8 (its memory-line is for 32 to 512; regenerate it)" in played.user[0]


def test_context_and_workspace_of_the_partition_s_gpus_count(play: Player) -> None:
    line = LINE._replace(small_shift=(-2000, -2000))
    gpu = {"type": "a100", "shares": 40, "memory_mib": 40960}
    for more, shards in (
        ({}, 20),
        ({"context": [1, 2, 3, 2764], "workspace_mib": 32}, 21),
        ({"context": [1, 2, 3, 764], "workspace_mib": 9}, 18),
    ):
        site = {**SITE, "partitions": {"gpu": [{**gpu, **more}]}}
        played = play({"script": f"#!/bin/sh\n{line.directive()}\n", **JOB}, site=site)
        assert played.job["tres_per_node"] == f"gres:shard:{shards}"


def test_of_several_kinds_of_gpu_the_one_that_needs_most_decides(play: Player) -> None:
    gpu = {"type": "a100", "shares": 40, "memory_mib": 40960, "context": [1, 2, 3, 764], "workspace_mib": 9}
    other = {**gpu, "type": "b100", "context": [1, 2, 3, 5000]}
    site = {**SITE, "partitions": {"gpu": [gpu, other]}}
    assert play({"script": HEAD, **JOB}, site=site).job["tres_per_node"] == "gres:shard:24"
    typed = {"script": HEAD, "tres_per_node": "gres:gpu:a100:1"}
    assert play(typed, site=site).job["tres_per_node"] == "gres:shard:a100:20"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("memory-line=1/", "memory-line=2/"), "memory-line is damaged: its version is not 1"),
        (("13327", "1e9"), "memory-line is damaged"),
        (("both", "$(touch x)"), "memory-line is damaged"),
        (("batch-size=128", "batch-size=0x10"), "#GPUMEM batch-size=0x10 is not a batch size"),
        (("batch-size=128", "optimizer=sgd"), "made for optimizer adam, not sgd"),
        (("batch-size=128", "precision=amp_bf16"), "made for precision fp32, not amp-bf16"),
    ],
)
def test_a_line_that_cannot_be_used_leaves_the_job_as_it_is(
    play: Player, change: Tuple[str, str], why: str
) -> None:
    played = play.untouched({"script": HEAD.replace(*change), **JOB})
    assert why in played.user[0]
    assert len(played.user[0]) < 300


def test_a_forged_line_asks_for_no_more_than_one_gpu_and_no_less_than_one_shard(play: Player) -> None:
    for knots, shards in ((f"1,{1 << 30},{1 << 30}", 40), (f"1,-{1 << 30},-{1 << 30}", 1)):
        text = f"1/abcd/x/adam.fp32/both.100.100/1/{knots}"
        played = play({"script": f"#!/bin/sh\n#GPUMEM memory-line={text}\n", **JOB})
        assert played.job["tres_per_node"] == f"gres:shard:{shards}"


def test_srun_without_a_script_has_no_line_and_is_left_alone(play: Player) -> None:
    play.untouched({**UNSET, **JOB})


def test_without_its_file_everything_else_still_works(play: Player, tmp_path: Path) -> None:
    for name in set(LUA_FILES) - {"gpumem_line.lua"}:
        (tmp_path / name).write_bytes((LUA_FOLDER / name).read_bytes())
    played = play.untouched({"script": HEAD, **JOB}, lua_folder=tmp_path)
    assert "gpumem_line.lua is missing" in played.user[0]
    shared = play({"script": "#!/bin/sh\n#GPUMEM mem=12G\n", **JOB}, lua_folder=tmp_path)
    assert shared.job["tres_per_node"] == "gres:shard:12"


@pytest.mark.timing
def test_the_longest_line_takes_under_a_millisecond(play: Player) -> None:
    knots = ":".join(f"{n},{n * 9},{n * 9}" for n in range(1, 120))
    script = f"#!/bin/sh\n#GPUMEM memory-line=1/abcd/x/adam.fp32/both.100.100/1/{knots}\n"
    assert min(play({"script": script, **JOB}, repeats=100).ms for _ in range(2)) < 1.0 * slowness()
