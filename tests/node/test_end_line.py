from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.notes import UsageNote, write_usage_note
from slurm_gpumem.node import jobs
from slurm_gpumem.node.end_line import line
from slurm_gpumem.node.jobs import RunFolder
from tests.node.conftest import USER, needs_root
from tests.node.desk import Desk

NOTE = UsageNote(
    job_id=7,
    samples=60,
    peak_mib=11_878.4,
    limit_mib=13_312,
    estimate_mib=12_186,
    shards=13,
    shard_mib=1024,
    sm_active_share=0.34,
    energy_j=151_200.0,
    met=(8, 9),
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"peak_mib": 12_300.0},
            "gpumem: job 7 used 12.0 of 13.0 GiB of GPU memory (estimated 11.9, -1 %), SM 34 %, 42 Wh, "
            "with 8, 9",
        ),
        (
            {"met": (), "energy_j": None, "sm_active_share": None, "estimate_mib": None, "peak_mib": 3000.0},
            "gpumem: job 7 used 2.9 of 13.0 GiB of GPU memory, alone on its GPU; 3 shards would have done",
        ),
        ({"met": tuple(range(10, 17))}, "with 10, 11, 12, 13, 14 and 2 more"),
        ({"peak_mib": 13_000.0}, "; close to its limit, ask for more"),
        ({"peak_mib": 13_400.0}, "; more than it was given"),
        ({"peak_mib": 900.0}, "; 1 shard would have done"),
        ({"peak_mib": 900.0, "request_mib": 12_400}, "; 1 shard would have done"),
        ({"peak_mib": 3000.0, "request_mib": 4000}, "; memory alone takes 3 of its 13 shards"),
        ({"peak_mib": 0.0}, "gpumem: job 7 used no GPU memory of its 13.0 GiB"),
        ({"peak_mib": None}, "gpumem: job 7: its GPU memory was not measured on this node"),
        ({"samples": 0}, "gpumem: job 7: its GPU memory was not measured on this node"),
        ({"shards": None, "limit_mib": None}, "gpumem: job 7 used 11.6 GiB of GPU memory"),
    ],
)
def test_the_line_says_what_was_used_and_what_would_have_done(changes: Dict[str, Any], said: str) -> None:
    text = line(NOTE._replace(**changes))
    assert said in text
    assert text.isascii()
    assert "\n" not in text


@pytest.mark.parametrize(
    ("setting", "asked", "wanted"),
    [
        ("off", True, False),
        ("ask", True, True),
        ("ask", False, False),
        ("all", False, True),
    ],
)
def test_the_site_and_the_job_decide_together(setting: str, asked: bool, wanted: bool) -> None:
    assert NodeConfig(end_line=setting).wants_end_line(asked) == wanted


def test_only_a_job_that_wants_it_gets_a_file_and_not_at_every_look(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.job(1, claim=CommentRecord(tell="end", estimate_mib=900))
    desk.job(2)
    first = desk.process(1)
    desk.hold({first: 500.0, desk.process(2): 100.0})
    desk.live()
    file = desk.folder.usage_file(1)
    assert json.loads(file.read_text())["peak_mib"] == 500.0
    assert not desk.folder.usage_file(2).exists()
    stamp = file.stat().st_mtime_ns
    desk.live()
    assert file.stat().st_mtime_ns == stamp
    desk.hold({first: 700.0})
    desk.live()
    assert json.loads(file.read_text())["peak_mib"] == 700.0
    jobs.drop(desk.folder, 1)
    desk.live()
    assert not file.exists()


class Ended:
    """A job that has ended: its note, its output, and a scontrol that says where that is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = RunFolder(root / "run")
        self.folder.make()
        write_usage_note(self.folder.usage_file(7), NOTE, os.geteuid())
        (root / "bin").mkdir()
        (root / "out").mkdir()
        (root / "out").chmod(0o777)
        self.output, self.errors = root / "out" / "job.out", root / "out" / "job.err"
        for file in (self.output, self.errors):
            file.write_text("trained\n")
            file.chmod(0o666)
        self.scontrol(f"echo '   StdErr={self.errors}'; echo '   StdOut={self.output}'")

    def scontrol(self, body: str) -> None:
        path = self.root / "bin" / "scontrol"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def tell(self, first: str = "") -> int:
        env = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "GPUMEM_RUN_DIR": str(self.folder.root),
            "SLURM_JOB_ID": "7",
        }
        with open(self.errors, "a") as errors:
            # All imports first: the user that `first` turns into may not be able to read this interpreter.
            imports = "import os, subprocess, sys; from slurm_gpumem.node.end_line import main"
            code = f"{imports}; {first}sys.exit(main())"
            command = [sys.executable, "-I", "-c", code]
            return subprocess.run(command, env=env, stderr=errors, timeout=120, check=False).returncode


@pytest.fixture
def ended(state_folder: Path) -> Ended:
    return Ended(state_folder)


def test_it_is_appended_to_the_jobs_output(ended: Ended) -> None:
    assert ended.tell() == 0
    first, second = ended.output.read_text().splitlines()
    assert (first, second[:18]) == ("trained", "gpumem: job 7 used")
    assert ended.errors.read_text() == "trained\n"


def test_one_file_for_both_gets_it_once(ended: Ended) -> None:
    ended.output.unlink()
    ended.output.symlink_to(ended.errors)
    assert ended.tell() == 0
    assert ended.errors.read_text().count("gpumem: job 7") == 1


@pytest.mark.parametrize(
    "broken", ["exit 1", "echo StdOut=relative", "echo StdOut=/nonexistent/x", "sleep 30"]
)
def test_without_an_output_to_be_had_it_goes_to_the_jobs_stderr(ended: Ended, broken: str) -> None:
    ended.scontrol(broken)
    assert ended.tell() == 0
    assert ended.errors.read_text().count("gpumem: job 7") == 1
    assert ended.output.read_text() == "trained\n"


def test_an_output_that_is_a_pipe_does_not_hold_the_jobs_end(ended: Ended) -> None:
    ended.output.unlink()
    os.mkfifo(ended.output)
    assert ended.tell() == 0
    assert ended.errors.read_text().count("gpumem: job 7") == 1


@needs_root
def test_it_writes_with_the_users_rights_only(ended: Ended) -> None:
    ended.output.chmod(0o644)
    ended.folder.usage_file(7).chmod(0o644)
    assert ended.tell(f"os.setgroups([]); os.setgid({USER}); os.setuid({USER}); ") == 0
    assert ended.output.read_text() == "trained\n"
    assert "gpumem: job 7 used" in ended.errors.read_text()
