"""What a trace refused is named as the trace's, and what fails without one as the script's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_gpumem.tracing.guard.refusals import not_safe, only_refused, refused_by_trace

OVERLAY, LANDLOCK = {"files": "overlay"}, {"files": "landlock"}


@pytest.mark.parametrize(
    ("private", "error", "words"),
    [
        (
            LANDLOCK,
            "PermissionError: [Errno 13] Permission denied: 'output'",
            "may write to a scratch folder",
        ),
        (
            LANDLOCK,
            "PermissionError: [Errno 1] Operation not permitted: 'x'",
            "may write to a scratch folder",
        ),
        (OVERLAY, "OSError: [Errno 30] Read-only file system: 'x'", "makes private copies"),
        (OVERLAY, "OSError: [Errno 75] Value too large for defined data type: 'x'", "makes private copies"),
        (OVERLAY, "OSError: [Errno 40] Too many levels of symbolic links: '/data/x'", "list it once"),
    ],
)
def test_a_refusal_of_the_traces_is_said_to_be_one(private: dict[str, str], error: str, words: str) -> None:
    assert words in refused_by_trace(private, error)


@pytest.mark.parametrize(
    ("private", "error"),
    [
        (OVERLAY, "PermissionError: [Errno 13] Permission denied: 'x'"),
        (OVERLAY, "ValueError: bad shape"),
        (LANDLOCK, "FileNotFoundError: [Errno 2] No such file or directory: 'x'"),
    ],
)
def test_what_the_script_does_wrong_itself_is_not(private: dict[str, str], error: str) -> None:
    assert refused_by_trace(private, error) == ""


def test_a_place_that_is_closed_without_a_trace_too_is_the_scripts_own_fault(tmp_path: Path) -> None:
    error = "PermissionError: [Errno 13] Permission denied: '{}/new/file'"
    assert refused_by_trace(LANDLOCK, error.format(tmp_path)) != ""
    if os.geteuid() != 0:
        assert refused_by_trace(LANDLOCK, error.format("/usr")) == ""
    assert refused_by_trace(OVERLAY, "OSError: [Errno 30] Read-only file system: '/proc/sys/new'") == ""


def test_the_user_reads_that_there_was_no_private_copy() -> None:
    assert "no private copy of your files" in only_refused(LANDLOCK)
    assert only_refused(OVERLAY) == ""


def test_a_machine_that_protects_nothing_is_told_with_the_other_ways() -> None:
    said = not_safe({"files": "none", "why": "unshare: Operation not permitted"})
    for words in ("cannot trace safely here", "unshare: Operation", "--gpu-mem", "--model", 'where = "job"'):
        assert words in said
