"""gpusbatch asks before it submits a job whose script was not seen to its end, where the site wants that."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from slurm_gpumem.cli.gpusbatch import _asked_of_user
from slurm_gpumem.config.load import Config, TraceSettings
from slurm_gpumem.slurm.submit.options import read_command_line, sbatch_table
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.submission.submission import RawInput, read_submission
from slurm_gpumem.summaries.reader import read_summary

SUMMARY = read_summary(Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.json")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "terminal", "seen", "rule"),
    [
        ("y\n", True, "2 of 30 epochs", "margin"),
        ("\n", True, "2 of 30 epochs", "ask"),
        ("y\n", False, "2 of 30 epochs", "ask"),
        ("y\n", True, "", "ask"),
    ],
)
def test_a_user_at_a_terminal_may_take_the_margin(
    monkeypatch: pytest.MonkeyPatch, answer: str, terminal: bool, seen: str, rule: str
) -> None:
    assert SUMMARY.trace is not None
    summary = SUMMARY._replace(trace=SUMMARY.trace._replace(unfinished=seen))
    raw = RawInput(read_command_line(["--wrap=true"], sbatch_table()), OwnOptions({"mem": "4G"}), None)
    asked = read_submission(raw)._replace(config=Config(trace=TraceSettings(unfinished="ask")))
    written = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdin", (_Terminal if terminal else io.StringIO)(answer))
    monkeypatch.setattr("sys.stderr", written)
    assert _asked_of_user(asked, summary).config.trace.unfinished == rule
    assert ("submit it with a margin" in written.getvalue()) == (terminal and bool(seen))
