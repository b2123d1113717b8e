"""The sampler asks Slurm about its own jobs, one at a time, and less when Slurm is slow or away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node.sampler import tracked_jobs
from slurm_gpumem.node.sampler.tracked_jobs import Answer, SlurmTruth
from slurm_gpumem.slurm.state.queue import SlurmJob
from tests.support.waiting import until


def make(root: Path, squeue: str, every_s: float = 0.01) -> Tuple[SlurmTruth, Path]:
    program, asked = root / "squeue", root / "asked"
    program.write_text(f'#!/bin/sh\necho "$@" >>{asked}\n{squeue}\n')
    program.chmod(0o755)
    return SlurmTruth(NodeConfig(slurm_bin=root, slurm_every_s=every_s)), asked


def answers(truth: SlurmTruth, every_s: Dict[int, float], count: int) -> List[Answer]:
    found: List[Answer] = []

    def enough() -> bool:
        answer = truth.poll(every_s)
        found.extend([answer] if answer is not None else [])
        return len(found) >= count

    until(enough)
    return found


def questions(asked: Path) -> List[str]:
    return asked.read_text().splitlines() if asked.exists() else []


def test_each_job_is_asked_for_by_its_number_and_no_question_names_two(tmp_path: Path) -> None:
    truth, asked = make(tmp_path, 'echo "$4 1000 RUNNING 0 0 1 gres:shard:4"')
    found = answers(truth, {5: 60.0, 6: 60.0, 7: 60.0}, 3)
    assert {answer.job_id: answer.job for answer in found} == {
        job_id: SlurmJob(job_id, 1000, 4, "RUNNING", 0) for job_id in (5, 6, 7)
    }
    for _ in range(20):
        assert truth.poll({5: 60.0, 6: 60.0, 7: 60.0}) is None
    assert sorted(line.split()[3] for line in questions(asked)) == ["5", "6", "7"]
    assert not any("-w" in line.split() for line in questions(asked))
    truth.close()


def test_a_node_without_jobs_asks_nothing(tmp_path: Path) -> None:
    truth, asked = make(tmp_path, "exit 0")
    for _ in range(20):
        assert truth.poll({}) is None
    assert questions(asked) == []


def test_a_job_that_slurm_has_forgotten_is_an_answer_and_an_error_is_none(tmp_path: Path) -> None:
    truth, _ = make(tmp_path, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert answers(truth, {5: 0.0}, 1)[0].job is None
    truth, asked = make(tmp_path, "echo 'Unable to contact slurm controller' >&2; exit 1")
    before = len(questions(asked))
    assert until(lambda: truth.poll({5: 0.0}) is not None or len(questions(asked)) >= before + 3) is True
    assert truth._pause_s > 0


def test_a_controller_that_is_away_is_asked_less_and_less(tmp_path: Path) -> None:
    truth, asked = make(tmp_path, "exit 1")
    pauses = set()
    until(lambda: pauses.add(truth._pause_s) or truth.poll({5: 0.0}) or len(questions(asked)) >= 5)
    truth.close()
    grown = sorted(pauses - {0.0})
    assert len(grown) >= 3
    assert all(later >= 2 * earlier for earlier, later in zip(grown, grown[1:]))


def test_a_controller_that_is_slow_is_left_alone_for_twenty_times_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked_jobs, "_QUICK_S", 0.05)
    truth, asked = make(tmp_path, 'sleep 0.2; echo "$4 1000 RUNNING 0 0 1 gres:shard:4"')
    answers(truth, {5: 0.0}, 1)
    assert truth._not_before - time.monotonic() > 3.0
    assert truth.poll({5: 0.0, 6: 0.0}) is None
    assert len(questions(asked)) == 1
    monkeypatch.setattr(tracked_jobs, "_LONGEST_PAUSE_S", 0.0)
    truth._not_before = float("-inf")
    answers(truth, {5: 0.0}, 1)
    assert truth._not_before <= time.monotonic()


def test_an_answer_that_waited_for_the_next_look_does_not_count_as_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, asked = make(tmp_path, 'echo "$4 1000 RUNNING 0 0 1 gres:shard:4"; : >"$0.done"')
    assert truth.poll({5: 0.0}) is None
    until(lambda: (tmp_path / "squeue.done").exists())
    question = truth._slurm._question
    assert question is not None
    question.wait()
    monkeypatch.setattr(tracked_jobs, "_QUICK_S", 0.0)  # as if the looks were far apart
    assert truth.poll({5: 0.0, 6: 0.0}) is not None
    assert truth._slurm.is_asking
    assert len(until(lambda: len(questions(asked)) == 2 and questions(asked))) == 2


def test_an_array_with_thousands_of_tasks_is_read_whole(tmp_path: Path) -> None:
    # More than a pipe holds, so that a squeue that nobody reads would wait forever.
    body = "seq -f '1%.0f 1000 RUNNING 0 0 1 gres:shard:4' 9000"
    truth, _ = make(tmp_path, f'{body}; echo "5 1000 RUNNING 0 0 1 gres:shard:4"')
    assert answers(truth, {5: 60.0}, 1)[0].job == SlurmJob(5, 1000, 4, "RUNNING", 0)
