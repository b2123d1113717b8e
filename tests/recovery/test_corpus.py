"""Sixty and more logs, each in the folder of what it says: tests/recovery/logs/KIND/NAME.txt."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.formats.verdicts import CHECKPOINTED, VERDICTS
from slurm_gpumem.recovery.log_verdict import LogVerdict, judge_log, read_tail
from slurm_gpumem.recovery.patterns import PATTERNS
from slurm_gpumem.recovery.task_epilog import Measured, verdict_on
from tests.support.timing import best_cpu_s, slowness

LOGS = sorted((Path(__file__).parent / "logs").glob("*/*.txt"))
CHECK = Path(__file__).resolve().parents[2] / "prolog" / "log_check.sh"
FULL = Measured(peak_mib=11_900, limit_mib=12_288, samples=60, fresh=True)


def judged(path: Path) -> LogVerdict:
    return judge_log(read_tail(str(path)))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_log_says_what_its_folder_is_called(path: Path) -> None:
    found = judged(path)
    assert (found.kind.value if found.kind else "none") == path.parent.name


def verdict(path: Path, measured: Measured = Measured()) -> Optional[str]:  # noqa: B008
    return verdict_on(judged(path), measured)


def test_no_log_of_another_failure_leads_to_a_requeue_and_no_out_of_memory_is_missed() -> None:
    others = [path for path in LOGS if path.parent.name in ("other", "none", "host", "maybe", "fault")]
    ooms = [path for path in LOGS if path.parent.name == "oom"]
    assert (len(LOGS) >= 60, len(others) >= 20) == (True, True)
    assert [path.name for path in others if verdict(path) in ("oom", "neighbour")] == []
    assert [path.name for path in ooms if verdict(path) != "oom"] == []


@pytest.mark.parametrize("name", [name for name in VERDICTS if name not in CHECKPOINTED])
def test_every_verdict_has_logs_that_lead_to_it(name: str) -> None:
    samples = [path for path in LOGS if path.parent.name == name]
    assert samples
    assert {verdict(path) for path in samples} == {name}


def test_an_ambiguous_error_is_one_of_memory_when_the_peak_was_at_the_limit() -> None:
    ambiguous = [path for path in LOGS if path.parent.name == "maybe"]
    assert {verdict(path, FULL) for path in ambiguous} == {"oom"}
    assert {verdict(path, FULL._replace(peak_mib=6000)) for path in ambiguous} == {None}


def test_every_pattern_has_a_sample_of_its_name() -> None:
    names = [path.stem for path in LOGS]
    missing = [row.name for row in PATTERNS if not any(name.startswith(row.name) for name in names)]
    assert missing == []


@pytest.mark.timing
def test_a_full_tail_is_judged_in_a_tenth_of_a_second(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "2025-01-01 12:00:00 a line of no interest with CUDA error words, out of luck 2\n" * 20_000
    )
    text = read_tail(str(path))
    assert best_cpu_s(lambda: judge_log(text), 3) < 0.1 * slowness()


def test_the_shell_finds_a_word_in_every_log_that_python_has_to_judge(tmp_path: Path) -> None:
    """prolog/log_check.sh decides whether Python is started at the end of a job."""
    clean = [path for path in LOGS if path.parent.name not in ("none", "other") and _is_clean(path, tmp_path)]
    assert clean == []


def test_the_shell_starts_no_python_for_a_log_without_such_words(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("epoch 1 loss 0.5\nepoch 2 loss 0.25\n")
    assert _is_clean(log, tmp_path)
    log.write_text(f"CUDA out of memory\n{'epoch 1 loss 0.5 ' * 5000}\n")
    assert _is_clean(log, tmp_path)
    log.write_bytes(b"\xff\x00 Killed\n")
    assert not _is_clean(log, tmp_path)


@pytest.mark.parametrize("where", ["stdout", "nowhere"])
def test_the_shell_reads_stdout_where_that_is_another_file_and_leaves_it_to_python_if_slurm_is_silent(
    tmp_path: Path, where: str
) -> None:
    err, out = tmp_path / "job.err", tmp_path / "job.out"
    err.write_text("")
    out.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    answer = f"   StdOut={out}" if where == "stdout" else ""
    assert not _is_clean(err, tmp_path, name="job.err", answer=answer)
    out.write_text("fine\n")
    assert _is_clean(err, tmp_path, name="job.err", answer=answer) == (where == "stdout")


def _is_clean(log: Path, folder: Path, *, name: str = "slurm-7.out", answer: str = "") -> bool:
    """What the shell says of a job whose stderr is this file; `answer` is what Slurm says of the job."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "scontrol").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (folder / "bin" / "scontrol").chmod(0o755)
    stderr = folder / name
    if stderr != log:
        stderr.write_bytes(log.read_bytes())
    with open(stderr, "a") as file:
        done = subprocess.run(
            ["/bin/sh", "-c", '. "$0" && log_is_clean', str(CHECK)],
            env={"SLURM_JOB_ID": "7", "PATH": f"{folder}/bin:/usr/bin:/bin"},
            stderr=file,
            check=False,
        )
    assert stderr.stat().st_size == log.stat().st_size
    return done.returncode == 0
