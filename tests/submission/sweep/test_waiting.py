"""Who is changed and who is not, with Slurm's answers recorded."""

from __future__ import annotations

from typing import Dict, List, Sequence

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.recovery.siblings import raise_waiting
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import Job, array_tasks
from slurm_gpumem.slurm.state.waiting import WaitingTasks, waiting_tasks
from slurm_gpumem.submission.submission import MeasuredRun
from slurm_gpumem.submission.sweep import resize as resizing
from slurm_gpumem.submission.sweep.resize import Change, resize
from tests.support.fake_slurm import Answer, FakeSlurm

KEY = "s0123456789abcdef"
WORD = f"gpumem/1:gpu=a100,shards={{}},est={{}},oom=requeue,fp={KEY},hold={{}},host=cpus+mem"
FRESH, RAISED = WORD.format(0, "", 4), WORD.format(6, 5000, 4)


def row(array: int, tasks: str, comment: str, gres: str = "gres:gpu:1") -> str:
    rest = (2, 16), ("gpu,whole", 400), (gres, 400), (comment, 1100)
    names = [f"{array}_{number}" for number in array_tasks(tasks)]
    tables = [((array, 16), (name, 32), *rest) for name in names]
    return "\n".join("".join(f"{text!s:{width}}" for text, width in cells) for cells in tables)


def asked(*rows: str, throttle: int = 1, update: Answer = "") -> FakeSlurm:
    shown = f"JobId=7 ArrayTaskThrottle={throttle} JobName=x ArrayTaskThrottle=9"
    queue = "\n".join([*rows, ""])
    return FakeSlurm({"squeue -O": queue, "scontrol show": shown, "scontrol update": update})


def updates(slurm: FakeSlurm) -> List[List[str]]:
    return [words[2:] for words in slurm.asked if words[:2] == ["scontrol", "update"]]


@pytest.mark.parametrize("tasks", ["1-7", "1,3,5-7", "5", ",".join(map(str, range(0, 4000, 2))), "0-3000"])
def test_tasks_that_ask_for_the_same_are_changed_together(tasks: str) -> None:
    (found,) = waiting_tasks(asked(row(7, tasks, "größer 8_[1-2] " + FRESH)))
    assert found.name == f"7_[{tasks}]"
    assert found.comment.endswith(FRESH)
    assert found.how_many == len(array_tasks(tasks))


def test_a_task_that_asks_for_something_else_is_not_changed_with_the_others() -> None:
    found = waiting_tasks(asked(row(7, "2-9", FRESH), row(7, "0", RAISED, "gres:shard:6"), "7_1", "x" * 3000))
    assert [(one.name, one.request) for one in found] == [
        ("7_[2-9]", "gres:gpu:1"),
        ("7_[0]", "gres:shard:6"),
    ]


def test_an_array_that_refuses_does_not_keep_the_others_back() -> None:
    def refuse(argv: Sequence[str]) -> str:
        if "JobId=1" in argv:
            raise SlurmError("Access denied")
        return ""

    slurm = asked(row(1, "1-7", FRESH), row(2, "1-7", FRESH), update=refuse)
    with pytest.raises(SlurmError, match="array 2: its tasks start on whole GPUs; array 1: Access denied"):
        resize(slurm, KEY, None)
    assert updates(slurm) == [[f"JobId={array}", "ArrayTaskThrottle=4"] for array in (1, 2)]


def test_a_limit_that_was_changed_in_spite_of_an_error_is_changed() -> None:
    shown = iter(["ArrayTaskThrottle=1 JobName=x", "ArrayTaskThrottle=4 JobName=x"])
    answers: Dict[str, Answer] = {
        "squeue -O": row(7, "1-7", FRESH),
        "scontrol show": lambda _: next(shown),
        "scontrol update": SlurmError("7_0: Job has already finished 7_1-7: No error"),
    }
    assert resize(FakeSlurm(answers), KEY, None) == ["array 7: its tasks start on whole GPUs"]


@pytest.mark.parametrize(
    ("comment", "throttle", "changed"),
    [
        (FRESH, 1, True),
        (WORD.format(0, "", 1), 1, False),
        (FRESH, 3, False),
        (FRESH, 0, False),
        (RAISED, 1, True),
        (FRESH.replace(KEY, "sother"), 1, False),
        ("words of the user", 1, False),
    ],
)
def test_an_array_that_waited_long_enough_gets_its_own_limit_back(
    comment: str, throttle: int, changed: bool
) -> None:
    slurm = asked(row(7, "1-7", comment), throttle=throttle)
    resize(slurm, KEY, None)
    assert updates(slurm) == ([["JobId=7", "ArrayTaskThrottle=4"]] if changed else [])


def test_a_refused_change_lets_the_tasks_go_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(tasks: WaitingTasks, *_: object) -> Change:
        return Change({"Gres": "shard:6"}, 6, 6)

    def refuse(argv: Sequence[str]) -> str:
        if "Gres=shard:6" in argv:
            raise SlurmError("Invalid gres")
        return ""

    monkeypatch.setattr(resizing, "_change", changed)
    slurm = asked(row(7, "1-7", FRESH), update=refuse)
    assert resize(slurm, KEY, MeasuredRun("a100", 5000)) == [
        "array 7: its tasks start on whole GPUs: Invalid gres"
    ]
    assert updates(slurm)[-1] == ["JobId=7", "ArrayTaskThrottle=4"]


RETRY = Decision(0, 1.0, True, "more", "oom", "shard:12", 12, 6)


@pytest.mark.parametrize(
    ("name", "decision", "rows", "changed"),
    [
        ("7_2", RETRY, [row(7, "3-9", RAISED, "gres:shard:6")], {"7_[3-9]": "Gres=shard:12"}),
        ("7_2", RETRY, [row(7, "3-9", RAISED, "gres:shard:a100:6")], {"7_[3-9]": "Gres=shard:a100:12"}),
        ("7_2", RETRY, [row(7, "3-9", WORD.format(14, 9000, 4), "gres:shard:14")], {}),
        ("7_2", RETRY, [row(7, "3-9", FRESH)], {}),
        ("7_2", RETRY, [row(8, "3-9", RAISED, "gres:shard:6")], {}),
        ("7_2", RETRY, [row(7, "3-9", "mine", "gres:shard:6")], {}),
        ("7_2", RETRY, [row(7, "3-9", RAISED, "gres:gpu:1")], {}),
        ("7_2", RETRY._replace(whole=True), [row(7, "3-9", RAISED, "gres:shard:6")], {}),
        ("7", RETRY, [row(7, "3-9", RAISED, "gres:shard:6")], {}),
    ],
)
def test_out_of_memory_raises_only_shares_that_were_measured(
    name: str, decision: Decision, rows: List[str], changed: Dict[str, str]
) -> None:
    slurm = asked(*rows)
    said = raise_waiting(slurm, Controller(slurm), _job(name), decision)
    assert said == ("array 7: 7 waiting tasks ask for 12 shards, too" if changed else None)
    assert {words[0][len("JobId=") :]: words[1] for words in updates(slurm)} == changed


def _job(name: str) -> Job:
    return Job(name, "FAILED", "", 0, True, True, "1:0", False, 1, 65534, ("gpu",), "gres:shard:6", "")
