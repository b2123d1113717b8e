"""What recovery decides and says of thousands of made histories is what it was, to the letter.

Each case is drawn from what jobs, their owners, logs and nodes can say; `_WORDS` and the lists below are all
of it. Where a change is meant, the test run with WRITE=1 keeps it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.job_record import JobRecord, Measurement
from slurm_gpumem.formats.verdicts import CHECKPOINTED, VERDICTS
from slurm_gpumem.recovery.job_comment import end_message, parse_comment, with_end, with_record
from slurm_gpumem.recovery.ladder import decide, record_of_next, why_not
from slurm_gpumem.recovery.log_verdict import judge_log
from slurm_gpumem.recovery.slots import next_slot
from slurm_gpumem.recovery.task_epilog import Measured, verdict_on
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.state.queue import Job
from tests.support.kept import assert_kept, plain

LOGS = sorted((Path(__file__).parent / "logs").glob("*/*.txt"))
LADDERS = [parse_ladder(words.split()) for words in ("+25% need+25% whole-gpu", "whole-gpu", "need+50%", "")]
REQUESTS = (
    "gres/shard:12", "gres:shard:a100:12", "gres/shard:40", "gres/gpu:1", "gres/gpu:1g.5gb:1",
    "gres/gpu:a100:1", "gres/shard:1,license:2", "gres/mps:50", "", "gres/gpu:2",
)  # fmt: skip
UNITS: List[Dict[Any, int]] = [
    {}, {None: 40}, {"a100": 40, "v100": 16}, {"a100": 40, "h100": 80}, {None: 12}, {"a100": 0, None: 100},
]  # fmt: skip
SIZES: List[Dict[str, int]] = [
    {}, {"1g.5gb": 4864, "3g.20gb": 19968, "a100": 40960}, {"1g.5gb": 4864, "2g.10gb": 9856},
    {"a100": 40960, "h100": 81920},
]  # fmt: skip
_WORDS: Dict[str, Any] = {
    "est": (None, 9000, 11000), "req": (None, 12288, 40960), "by": ("corrected", "mem"),
    "shards": (0, 12, 40), "oom": ("requeue", "requeue", "requeue", "fail"), "retry": (None,) * 9 + (1, 2, 3),
    "again": (None, None, 1), "whole": (None, None, None, "yes"), "why": (None, "oom", "slot"),
    "was": (None, 8, 12), "run": (None, 0, 1), "need": (None, 13000), "slot": (None, 60, 600, 600, 600, 3600),
    "save": (None, 3), "slots": (None, 1, 5),
}  # fmt: skip


def _word(dice: random.Random, prefix: str, words: Dict[str, Any]) -> str:
    drawn = {key: dice.choice(values) for key, values in words.items()}
    return prefix + ",".join(f"{key}={value}" for key, value in drawn.items() if value is not None)


def _history(dice: random.Random) -> Any:
    """A job, its comment, its site, what was decided and measured before."""
    choose = dice.choice
    restarts = choose((0, 0, 1, 2))
    saw = {
        "run": (restarts, restarts, 0), "by": ("torch",),
        "saw": ("oom",) * 9 + ("slot",) * 4 + tuple(VERDICTS),
        "need": (None, None, 5000, 13000, 50000), "save": (None, 9),
        "used": (None, 5, 30, 590, 600, 4000, 9000),
    }  # fmt: skip
    ours = _word(dice, "gpumem/1:", _WORDS) if dice.random() < 0.95 else ""
    end = _word(dice, "gpumem-end/1:", saw) if dice.random() < 0.95 else ""
    room = choose(("mine", "", "mine", "x" * 800, "x" * 1000))
    job = Job(
        name="7", state=choose(("COMPLETING", "FAILED", "RUNNING", "PENDING")),
        reason=choose(("NonZeroExitCode", "RaisedSignal:9", "None")), restarts=restarts,
        may_requeue=dice.random() < 0.9, batch=dice.random() < 0.95,
        status=choose(("1:0", "1:0", "75:0", "0:0", "0:9", "0:15", "137:0", "143:0")),
        het=dice.random() < 0.05, priority=100, uid=1, partitions=("gpu",), request=choose(REQUESTS),
        comment=f"{room} {ours} {end}", number=7, limit_min=choose((None, 1, 10, 60, 600)),
        used_s=choose((0, 600)),
    )  # fmt: skip
    config = RecoveryConfig(
        enabled=dice.random() < 0.95, ladder=choose(LADDERS), shard_mib=choose((1024, 512)),
        least_slot_s=choose((60, 600)),
    )  # fmt: skip
    site = Site(choose(((22, 5, 8), (23, 2, 0), (24, 11, 5))), dice.random() < 0.5, None)
    decided = {
        run: Decision(run, 0.0, dice.random() < 0.8, "", choose(tuple(VERDICTS)), used_s=choose((None, 600)))
        for run in range(choose((0, 0, 1, 3)))
    }
    records = [
        JobRecord(
            7, choose((restarts, 0)), 1, "n1", 1000.0, end=choose((None, 1030.0, 1600.0)),
            measured=Measurement(
                12, True, 12288, choose((None, 900.0, 5000.0, 5300.4, 12000.0)),
                samples=choose((0, 59, 60, 500)),
            ),
        )
        for _ in range(choose((0, 1, 1, 2)))
    ]  # fmt: skip
    return job, parse_comment(job.comment), config, site, decided, records


def _decision(dice: random.Random) -> Any:
    job, comment, config, site, decided, records = _history(dice)
    refused = why_not(job, comment, config, site)
    if refused is not None and (comment.record is None or comment.end is None):
        return refused
    allowed = dice.choice((1000, 1000, 30, 12, 0))

    def limit_on(gres: str, kind: Any, count: int) -> Any:
        return None if count <= allowed else f"{gres}={allowed} for {kind}"

    if comment.end is not None and comment.end.saw in CHECKPOINTED:
        found: Any = next_slot(job, comment, config, decided, records)
    else:
        found = decide(
            job, comment, config, site, decided, units=dice.choice(UNITS), sizes=dice.choice(SIZES),
            limit_on=limit_on,
        )  # fmt: skip
    if not isinstance(found, Decision):
        return refused, found
    assert comment.record is not None
    return refused, found._replace(at=0.0), with_record(comment, record_of_next(comment.record, found))


def _line(dice: random.Random) -> Any:
    _, comment, config, *_ = _history(dice)
    if comment.end is None:
        return None
    told = end_message(
        comment.end, comment, config.ladder, enabled=config.enabled, on_instance=dice.random() < 0.3,
        type_can_change=dice.random() < 0.5,
    )  # fmt: skip
    return told, with_end(comment, comment.end)


def _log(dice: random.Random) -> Any:
    """Logs that follow each other, are cut and have lines of others between."""
    lines = [line for path in dice.sample(LOGS, dice.choice((1, 1, 2))) for line in path.read_text(
        errors="replace").splitlines()]  # fmt: skip
    for _ in range(dice.choice((0, 1, 4))):
        at = dice.randrange(len(lines) + 1)
        lines[at:at] = [dice.choice((
            "", "Traceback (most recent call last):", "  File \"x.py\", line 3, in f", "epoch 3 loss 0.1",
            "During handling of the above exception, another exception occurred:",
            "Exception ignored in: <function f>", "[rank0]: RuntimeError: no", "gpumem: this run ended x",
            "*** STEP 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***", "x" * 1200,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 39.39 GiB of which 1.2 GiB is free. this process has 37.5 GiB memory in use.",
        ))]  # fmt: skip
    if dice.random() < 0.3:
        lines = lines[: dice.randrange(len(lines) + 1)]
    log = judge_log("\n".join(lines))
    measured = Measured(
        dice.choice((None, 10.0, 1200.0, 6000.0, 11900.0, 12288.0, 13000.0)),
        dice.choice((None, 0.0, 12288.0)),
        dice.choice((0, 4, 5, 60)), dice.random() < 0.6, dice.random() < 0.1, dice.random() < 0.3,
    )  # fmt: skip
    return log, verdict_on(log, measured, dice.choice(((), (8,))))


@pytest.mark.parametrize(("made", "count"), [(_decision, 3000), (_line, 600), (_log, 1200)])
def test_what_is_decided_is_what_it_was(made: Callable[[random.Random], Any], count: int) -> None:
    said: Dict[str, str] = {}
    for number in range(count):
        name = f"{made.__name__[1:]} {number // 100}"
        said[name] = said.get(name, "") + repr(plain(made(random.Random(number)))) + "\n"
    assert_kept(Path(__file__).with_name("decisions.json"), said)
