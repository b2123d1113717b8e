"""Readers: what they say of odd texts is what it was, and they raise nothing but our errors, nor take long.

Seeded: a failure names the seed, the reader and the text. More seeds: GPUMEM_FUZZ_SEEDS=1000.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import pytest

from lab.simulate.trace_file import read_trace
from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.config.load import load_config
from slurm_gpumem.config.node import load_node_config
from slurm_gpumem.config.recovery import load_recovery_config
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.environment import read_environment
from slurm_gpumem.estimators.gpus import gpu_table
from slurm_gpumem.formats import kit_file, live, notes, remembered, slot_state, task_file
from slurm_gpumem.formats.comment import parse_end, parse_record
from slurm_gpumem.formats.curve import parse_curve
from slurm_gpumem.formats.decisions import SCHEMA as DECISIONS
from slurm_gpumem.formats.decisions import BadDecisionsError, read_decisions
from slurm_gpumem.formats.job_record import BadRecordError, parse_job_record
from slurm_gpumem.formats.kit_file import read_kit_file
from slurm_gpumem.node import jobs
from slurm_gpumem.node.hooks.inbox import read_request
from slurm_gpumem.node.sampler import prometheus
from slurm_gpumem.recovery.job_comment import parse_comment
from slurm_gpumem.simulation.what_if import read_jobstats
from slurm_gpumem.simulation.what_if_text import parse_fleet
from slurm_gpumem.site.doctor.check_nodes import parse_gres_conf
from slurm_gpumem.site.doctor.lua_report import parse_report
from slurm_gpumem.site.nodes import parse_descriptions, parse_instances, parse_nvidia_smi
from slurm_gpumem.slurm import client, config_show, gres, node_names
from slurm_gpumem.slurm.state import nodes, queue, sacct
from slurm_gpumem.slurm.state.history import parse_history
from slurm_gpumem.slurm.submit.script import read_directives, read_script
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import parse_mib, parse_seconds
from tests.accounting.job_records import record
from tests.support.kept import assert_kept, plain

ROOT = Path(__file__).resolve().parents[1]
RECORD = "mine gpumem/1:est=11900,req=13000,by=corrected,gpu=a100,shards=13,slot=600,parts=1+2+3 " + (
    "gpumem-end/1:run=0,saw=oom,need=12000"
)
OURS = (GpumemError, BadRecordError, BadDecisionsError)
"""What a caller is prepared for: `BadRecordError` and `BadDecisionsError` are the formats' own."""
LONGEST_S = 5
"""Seconds of processor time for a text of 60 KB: a regular expression that backtracks takes minutes."""


class Reader(NamedTuple):
    """A reader and texts that it understands."""

    read: Callable[[str, Path], Any]
    seeds: Tuple[str, ...]


def of_file(read: Callable[[Path], Any], name: str = "file") -> Callable[[str, Path], Any]:
    """A reader of a path."""

    def call(text: str, folder: Path) -> Any:
        path = folder / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read(path)

    return call


def table(schema: str, **values: Any) -> str:
    return json.dumps({"schema": schema, **values})


def _setting(text: str, folder: Path) -> Any:
    def read(path: Path) -> Any:
        load_node_config(str(path))
        load_recovery_config(str(path))
        return load_config({"GPUMEM_SITE_CONFIG": str(path), "HOME": str(folder)})

    return of_file(read)(text, folder)


def _job_file(text: str, folder: Path) -> Any:
    run = jobs.RunFolder(folder)
    run.jobs.mkdir(exist_ok=True)
    (run.jobs / "7.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    return jobs.get(run, 7), jobs.all_jobs(run)


def _task(path: Path) -> Any:
    return task_file.read_task_run(path), task_file.read_task_gpus(path)


def _live(path: Path) -> Any:
    return live.read_live(path), live.read_live_jobs(path, [7])


def _remembered(path: Path) -> Any:
    recipe = remembered.Recipe("0123456789abcdef", "64", "adam", "fp32", "")
    found = [
        remembered.read_remembered(path, recipe, name) for name in (remembered.PEAKS, remembered.ACTIVITY)
    ]
    return found, remembered.read_cpus(path, recipe), remembered.read_savers(path)


def _gres(text: str, _: Path) -> Any:
    return (
        gres.parse_gres(text), gres.parse_gpus(text), gres.held_by(text), gres.shares(text),
        gres.units_by_type(text, "shard"), gres.replaced(text, "shard:1"),
    )  # fmt: skip


def _examples(*names: str) -> Tuple[str, ...]:
    return tuple((ROOT / "docs" / "examples" / name).read_text()[:20_000] for name in names)


SHOWN_NODE = (
    "NodeName=n1 Arch=x86_64 CPUTot=64 RealMemory=512000 Gres=gpu:a100:4(S:0-1),shard:a100:160(S:0-1) "
    "State=IDLE Partitions=gpu,long\n"
)
SHOWN_JOB = (
    "JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName=x UserId=anna(1000) Priority=10 JobState=RUNNING Reason=None "
    "Restarts=1 BatchFlag=1 ExitCode=0:0 RunTime=00:10:02 TimeLimit=01:00:00 Partition=gpu NodeList=n[1-2] "
    f"TresPerNode=gres:shard:a100:12 Comment={RECORD}\n"
)
RECORD_BYTES = json.dumps(record(7, events=[[1, "oom", "x"]], claim={"slot": "600"}))
LIVE = table(
    live.SCHEMA, node="n1", at=5.0, gpus={"GPU-1": {"number": 0, "name": "A100", "sm": 0.5}},
    jobs={"7": {"gpus": ["GPU-1"], "uid": 1, "start": 5.0, "now_mib": {"GPU-1": 5.0}, "notes": ["x"]}},
)  # fmt: skip
REMEMBERED = table(
    remembered.SCHEMA, runs={"0123456789abcdef 64 adam fp32 ": {"a100": [9000, 9100]}},
    cpus={"0123456789abcdef 64 adam fp32 ": {"a100": [[1.5, 4]]}}, savers=["0123456789abcdef"],
)  # fmt: skip
SMI = "0, NVIDIA A100-SXM4-40GB, 40960, Disabled\n1, NVIDIA A100-SXM4-40GB, 40960, [N/A]\n"
KIT = table(
    kit_file.SCHEMA, date="2026-11-19", version="1.0.0", seconds=273, complete=True,
    gpu={"name": "NVIDIA H200", "driver": "580.1", "memory_mib": 143771, "compute_capability": "9.0",
         "sms": 132, "torch": "2.11.0", "cuda": "13.0", "cudnn": "91900"},
    context={"bare_mib": 518, "conv_mib": 630, "matmul_mib": 742, "both_mib": 758,
             "cublas_workspace_bytes": 33554432, "rounds_as_simulated": True},
    rows=[{"part": "ends", "what": "x", "tried": 2, "held": 2, "promised": True, "said": "within 0.1 s"}],
    trainings=[{"name": "cnn", "measured_mib": 9, "peak_mib": 8, "request_mib": None, "why": "y"}],
)  # fmt: skip
JOBSTATS = "JS1:" + base64.b64encode(b'{"nodes":{"n1":{"gpu_utilization":{"0":50.0}}}}').decode()

READERS: Dict[str, Reader] = {
    "comment": Reader(lambda text, _: (parse_record(text), parse_end(text), parse_comment(text)), (RECORD,)),
    "curve": Reader(lambda text, _: parse_curve(text), ("1700049600.0 60.0;500 9000 - 11600;0 40 80 -",)),
    "job record": Reader(
        lambda text, _: parse_job_record(text.encode("utf-8", "surrogatepass")), (RECORD_BYTES,)
    ),
    "decisions": Reader(
        of_file(read_decisions), (table(DECISIONS, decisions=[{"run": 0, "at": 5.0, "used_s": 600}]),)
    ),
    "live": Reader(of_file(_live), (LIVE,)),
    "own live": Reader(
        of_file(live.read_own_live),
        (table(live.OWN_SCHEMA, node="n1", at=5.0, jobs={"7": {"gpus": [0], "shards": 12}}),),
    ),
    "fault note": Reader(
        of_file(lambda path: notes.read_fault_note(path, 5.0)), (table(notes.FAULT_SCHEMA, at=5.0, jobs=[7]),)
    ),
    "slot state": Reader(
        of_file(lambda path: slot_state.read_slot_state(path.parent), slot_state.FILE_NAME),
        (table(slot_state.SCHEMA, run=0, step=5, save_s=3, ended=True),),
    ),
    "task file": Reader(
        of_file(_task), ("mode mps\nshard_mib 1024\nrun 3\nslot 5 6\ngpu 0 GPU-1 /run/x 40960\n",)
    ),
    "remembered": Reader(of_file(_remembered), (REMEMBERED,)),
    "node's job": Reader(_job_file, (RECORD_BYTES,)),
    "tally": Reader(of_file(prometheus.load_tally), (table(prometheus.SCHEMA, ratios=[1, 2, 3]),)),
    "request of a hook": Reader(of_file(read_request, "prolog.7.1"), ("SLURM_JOB_ID=7\0x=1\0end",)),
    "gres": Reader(_gres, ("gpu:a100:4(S:0-1),shard:a100:160", "gres/shard:a100=12", "gpu:3090:2,mps:100")),
    "nodes": Reader(
        lambda text, _: [nodes.parse_records(text, key) for key in ("NodeName", "Partitions")], (SHOWN_NODE,)
    ),
    "job": Reader(lambda text, _: (queue.parse_job(text), queue.parse_slurm_job(text, 7)), (SHOWN_JOB,)),
    "scontrol show config": Reader(
        lambda text, _: config_show.parse_config(text), ("SLURM_VERSION = 22.05.8\nProlog[0] = /x\n",)
    ),
    "version": Reader(lambda text, _: client.parse_version(text), ("slurm 24.11.5", "slurm-wlm 22.05.8")),
    "node names": Reader(lambda text, _: node_names.expand_names(text), ("n[1-4,7],gpu[01-03]x,login",)),
    "sacct": Reader(
        lambda text, _: sacct.parse_runs(text),
        (json.dumps({"jobs": [{"job_id": 7, "time": {"start": 5}, "state": "X", "array": {"job_id": 3}}]}),),
    ),
    "sacct, for what-if": Reader(
        lambda text, _: parse_history(text.splitlines(), "x"), _examples("sacct.txt")
    ),
    "sacctmgr": Reader(
        lambda text, _: sacct.parse_limits(text, text), ("normal|gres/gpu=2||cpu=9|\n",)
    ),
    "script and its directives": Reader(
        of_file(lambda path: read_directives(read_script(str(path)), ["model", "slot"]), "job.sh"),
        _examples("resnet50.sh"),
    ),
    "summary": Reader(
        of_file(lambda path: read_summary(path)), _examples("resnet50.txt", "small-cnn.txt", "bert.txt")
    ),
    "gpumem.toml": Reader(
        _setting,
        ('[sharing]\nmode = "opt-in"\nshard_mib = 1024\n[slots.partitions]\ngpu = "2h"\n',),
    ),
    "gpumem-gpus.toml": Reader(
        of_file(lambda path: gpu_table(path)), ('[a100]\nmemory_mib = 40960\ncontext_mib = 500\n',)
    ),
    "environment": Reader(of_file(read_environment), (
        next(iter(sorted((ROOT / "models" / "environments").glob("*.toml")))).read_text(),
    )),
    "kit's file": Reader(of_file(read_kit_file), (KIT,)),
    "ladder": Reader(lambda text, _: parse_ladder(text.split()), ("+25% need+25% whole-gpu",)),
    "sizes and times": Reader(
        lambda text, _: [_try(read, text) for read in (parse_mib, parse_seconds)], ("12G", "1.5GiB", "90m")
    ),
    "jobstats": Reader(lambda text, _: read_jobstats(text), (JOBSTATS,)),
    "simulated jobs": Reader(of_file(read_trace, "jobs.csv"), ("arrival_s,work_s,memory_mib\n0,60,9000\n",)),
    "fleet": Reader(lambda text, _: parse_fleet(text), ("16x8xh100",)),
    "gres.conf": Reader(
        lambda text, _: parse_gres_conf(text).units("n1", "gpu"),
        ("AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]\nName=shard Count=2K\n",),
    ),
    "Lua's report": Reader(
        lambda text, _: parse_report(text), ("gpu\tgpu\ta100\t40\ncontext\ta100\t40000\t1,2,3,4,5,6,7,8\n",)
    ),
    "nvidia-smi": Reader(
        lambda text, _: (parse_nvidia_smi(text, "n1"), parse_instances(text, text)),
        (SMI, "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.5gb  Device 0: (UUID: MIG-1)\n"),
    ),
    "--gpu of setup": Reader(lambda text, _: parse_descriptions([text], "n1"), ("n[1-4]=a100:4:40G",)),
}  # fmt: skip


def _try(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except GpumemError:
        return None


# -- Texts ---------------------------------------------------------------------------------------------

ODD = (
    "9" * 5000, "-1", "0", "1e999", "NaN", "Infinity", "null", "true", "²", "٣", "１", "\0", "\x1b[2J", "\r",
    "\ud800", "((((", "))))", "[[[[", "[1-999999999]", "[", "]", "{", "}", '"', "'", "\\", ",", "=", ":", "|",
    "\t", "\n", " ", "#",
    "1" * 400 + "G", "9999999999999999999999", "é", "\u202e", "%s", "../../x", "",
)  # fmt: skip
VALUES: Tuple[Any, ...] = (
    None, True, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "x" * 5000, "²", "9" * 5000, [], {},
    [[]], [None], {"": None}, [{}] * 40, "\ud800",
)  # fmt: skip


LONG = tuple(
    ((word * 60_000)[:58_000] + end)
    for word in ("(", "[", "gpu:(", "n[1-", " ", "=", ",", "\t", "a", "7", "{", '"')
    for end in ("", "x\n")
)
"""What a regular expression may go back and forth in."""


def damaged(text: str, draw: random.Random) -> str:
    """A text like this one, and not: cut, repeated, with odd words in it; of JSON also with odd values."""
    if text.startswith("{") and draw.random() < 0.6:
        value = json.loads(text)
        for _ in range(draw.randint(1, 3)):
            _damage_value(value, draw)
        return json.dumps(value)
    for _ in range(draw.randint(1, 4)):
        at, to = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
        part = text[at : min(to, at + 40)]
        how = draw.randrange(6)
        if how == 0:
            text = text[:at] + text[to:]
        elif how == 1:
            text = text[:at] + draw.choice(ODD) + text[at:]
        elif how == 2:
            text = text[:at] + draw.choice(ODD) + text[min(to, at + 8) :]
        elif how == 3:
            text = text[:at] + part * draw.choice((2, 50)) + text[at:]
        elif how == 4:
            numbers = [match.span() for match in re.finditer("[0-9]+", text)]
            if numbers:
                begin, end = draw.choice(numbers)
                text = text[:begin] + draw.choice(ODD) + text[end:]
        else:
            text = draw.choice(ODD[13:]) * draw.choice((3, 60_000)) + draw.choice(("", text))
    return text[:120_000]


def _damage_value(value: Any, draw: random.Random) -> None:
    """Something odd somewhere in a JSON value."""
    while True:
        keys: List[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], (dict, list)) and draw.random() < 0.7:
            value = value[key]
            continue
        value[key] = copy.deepcopy(draw.choice(VALUES))
        return


def _seeds() -> Iterator[int]:
    yield from range(int(os.environ.get("GPUMEM_FUZZ_SEEDS") or 3))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LONGEST_S} s of processor time")


def _check(name: str, seed: int, count: int, folder: Path) -> Dict[str, str]:
    """What it says of the damaged texts, by tens."""
    draw = random.Random(f"{name} {seed}")
    reader = READERS[name]
    said: Dict[str, str] = {}
    before = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        for number in range(count + len(LONG)):
            text = damaged(draw.choice(reader.seeds), draw) if number < count else LONG[number - count]
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
            answer: Any = None
            try:
                answer = reader.read(text, folder)
            except OURS as error:
                answer = error
            except Exception as error:
                raise AssertionError(
                    f"{name}, seed {seed}, text {number}: {text[:300]!r}: {error!r}"
                ) from error
            if number < count:
                ten = f"{name} {number // 10}"
                told = repr(plain(answer)).replace(str(folder), "DIR")
                said[ten] = said.get(ten, "") + f"{text[:200]!r} -> {told}\n"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return said


@pytest.mark.parametrize("name", READERS)
def test_what_it_is_made_from_is_read(name: str, tmp_path: Path) -> None:
    """A seed that is refused at once would test nothing behind the first look."""
    for text in READERS[name].seeds:
        READERS[name].read(text, tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_says_what_it_said_and_raises_nothing_but_our_errors(name: str, tmp_path: Path) -> None:
    said = _check(name, 0, 120, tmp_path)
    assert_kept(Path(__file__).with_name("readers.json"), said)


@pytest.mark.parametrize("name", READERS)
def test_the_same_with_many_seeds(name: str, tmp_path: Path) -> None:
    for seed in _seeds():
        _check(name, 1 + seed, 300, tmp_path)
