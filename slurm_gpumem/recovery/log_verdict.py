"""What the end of a job's log says about why it ended: the last line that means something counts.

An out-of-memory error that the job survived (a search for a batch size, a skipped batch) is followed
by more work or by another error, and is then not why it ended. Read backwards, what really
happened is the first line that is neither a consequence nor an echo of it.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from contextlib import contextmanager
from types import FrameType
from typing import Iterator, List, NamedTuple, Optional, Sequence

from slurm_gpumem.recovery.job_comment import RUN_ENDED
from slurm_gpumem.recovery.patterns import Kind, find_pattern

MAX_LINES = 4000
_MAX_LINE = 1000
_SHOWN = 160

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
# What launchers and loggers put before a line: "[rank0]: ", srun -l's "0: ", a time.
_PREFIX = re.compile(
    r"^(?:\[(?:rank ?)?\d+\]:? ?|\[\d+,\d+\]<std(?:err|out)>:?|\(\w+ pid=\d+[^)]*\) ?|\d+: "
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*\w? ?(?:\| )?)+"
)
_TRACEBACK = "Traceback (most recent call last):"
_REQUEUED = re.compile(r"CANCELLED AT .* DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_IGNORED = ("Exception ignored in", "Error in sys.excepthook", "Error in atexit")
_IGNORED_LINES = 3
"""Its traceback must begin within this many lines."""
_FEW, _SOME, _MESSAGE_LINES = 8, 20, 25
_TRIED = re.compile(r"[Tt]r(?:ied|ying) to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB|TiB|[KMGT]B)?")
_HELD = re.compile(r"this process has ([\d.]+) ?(bytes|KiB|MiB|GiB) memory in use")
_ABSURD_MIB = 10_000_000
_UNITS = {"b": 2**-20, "k": 2**-10, "m": 1.0, "g": 1024.0, "t": 1024.0**2}


class LogVerdict(NamedTuple):
    """The last line of a log that says why the run ended."""

    kind: Optional[Kind]
    """None when no line does."""
    pattern: str = ""
    """Name of the pattern that matched."""
    line: str = ""
    """The line itself, fit to be shown."""
    need_mib: Optional[int] = None
    """What the process held plus what it tried to allocate, where the text says it."""


NO_VERDICT = LogVerdict(None)


class _Line(NamedTuple):
    text: str
    header: bool
    """Whether it names the exception of a traceback."""
    chained: bool
    """Whether that traceback says that another exception, above it, came first."""


def judge_log(text: str) -> LogVerdict:
    """What the text of a log says about its run's end."""
    lines = _lines(text)
    later = 0
    for at in range(len(lines) - 1, -1, -1):
        found = _judge_line(lines[at])
        if found.kind is None:
            later += 1
            continue
        if found.kind is Kind.CONSEQUENCE:
            # What follows is what launchers print about a failure.
            later = 0
            continue
        if found.kind is Kind.PROGRESS:
            return NO_VERDICT
        if found.kind is Kind.OOM and later > _allowed_after(lines, at, found.pattern):
            return found._replace(kind=Kind.MAYBE)
        if found.kind is Kind.OTHER and lines[at].chained:
            # Raised while another was handled: that other one is where it began.
            return _first_of_chain(lines[:at]) or found
        return found
    return NO_VERDICT


def _allowed_after(lines: Sequence[_Line], at: int, pattern: str) -> int:
    """How many lines may follow an error that was the end: few of a script, more of a job that goes on.

    Some libraries' messages are long themselves; those stand in an exception or shortly behind its name.
    """
    in_message = any(line.header for line in lines[max(0, at - _MESSAGE_LINES) : at + 1])
    if not in_message:
        return _FEW
    return _SOME if pattern.startswith("torch") else MAX_LINES


def _judge_line(line: _Line) -> LogVerdict:
    pattern = find_pattern(line.text)
    if pattern is not None:
        return LogVerdict(pattern.kind, pattern.name, line.text[:_SHOWN], _need(line.text))
    return LogVerdict(Kind.OTHER, "exception", line.text[:_SHOWN]) if line.header else NO_VERDICT


def _first_of_chain(before: Sequence[_Line]) -> Optional[LogVerdict]:
    """The error that a chain of exceptions began with, when it is one that we know."""
    for line in reversed(before):
        if not line.header:
            continue
        found = _judge_line(line)
        if found.kind not in (Kind.OTHER, Kind.CONSEQUENCE, Kind.PROGRESS):
            return found
        if not line.chained:
            return None
    return None


def _lines(text: str) -> List[_Line]:
    """The log's last lines, without escapes and prefixes; which of them name a traceback's exception."""
    kept: List[_Line] = []
    inside = chained = False
    ignored = 0
    for line in _plain_lines(text):
        if line.startswith(RUN_ENDED) or _REQUEUED.search(line):
            # A log that is appended to: what stands before is of an earlier run.
            kept, inside, chained, ignored = [], False, False, 0
            continue
        ignored -= 1 if ignored and not inside else 0
        if line.endswith(_TRACEBACK):
            # Perhaps behind a progress bar that had not ended its line.
            inside = True
            continue
        if line.startswith(_CHAINED):
            chained = True
            continue
        if line.startswith(_IGNORED):
            # Clean-up: the process was ending anyway.
            ignored = _IGNORED_LINES
            continue
        if inside and line[:1] in (" ", "\t", ""):
            continue
        if inside:
            inside = False
            if ignored:
                ignored = 0
                continue
            kept.append(_Line(line, True, chained))
            chained = False
        elif line.strip():
            kept.append(_Line(line, False, False))
    return kept


def _plain_lines(text: str) -> Iterator[str]:
    for line in re.split(r"\r?\n|\r", text)[-MAX_LINES:]:
        yield _PREFIX.sub("", _ESCAPES.sub("", line[:_MAX_LINE])).rstrip()


def _need(line: str) -> Optional[int]:
    tried = _TRIED.search(line)
    if tried is None:
        return None
    held = _HELD.search(line)
    # Under an MPS limit PyTorch's own figure can be nonsense.
    sizes = (_mib(match) for match in (tried, held) if match)
    return round(sum(mib for mib in sizes if mib < _ABSURD_MIB))


def _mib(match: re.Match[str]) -> float:
    number, unit = match[1].rstrip("."), (match[2] or "bytes")[:1].lower()
    try:
        return float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        return 0.0


# Read the end of a job's log as its user: a regular file, the last 64 KiB, in bounded time.
#
# Only ever called in the user's own context. Even so, a log may be a FIFO that nobody writes, a device, or
# a file of a terabyte with holes: none of them may hold a job's end.

TAIL_BYTES = 64 * 1024
TIME_LIMIT_S = 2.0
_STDERR = 2


def read_tail(path: str) -> str:
    """The last 64 KiB of a regular file; "" for anything else and for what cannot be read."""
    try:
        return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except (OSError, ValueError):
        # No log is no witness; the job's exit code stands for itself.
        return ""


def read_own_stderr() -> str:
    """The same for the file behind our own stderr: Slurm gives a task epilog the job's."""
    try:
        # Through /proc: it was opened for writing, and this leads to that very file, whatever its name.
        path = f"/proc/self/fd/{_STDERR}"
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return ""
        return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return ""


def is_own_stderr(path: str) -> bool:
    """Whether a path is the file behind our stderr."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(_STDERR))
    except OSError:
        return False


class TooSlowError(OSError):
    """A file system that does not answer."""


@contextmanager
def time_limit(seconds: float = TIME_LIMIT_S) -> Iterator[None]:
    """TooSlowError when what is inside takes longer."""

    def stop(number: int, frame: Optional[FrameType]) -> None:
        raise TooSlowError(f"no answer within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _read(handle: int) -> str:
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        start = max(0, found.st_size - TAIL_BYTES)
        data = os.pread(handle, TAIL_BYTES, start)
    finally:
        os.close(handle)
    text = data.decode("utf-8", "replace").replace("\0", "")
    # The first line is only the end of one.
    return text.partition("\n")[2] if start else text
