"""`gpumem report`: what jobs were estimated to need, what they used, what sharing saved; like sacct."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from slurm_gpumem.accounting.store import Store, open_store
from slurm_gpumem.accounting.types import GROUPS, Filters
from slurm_gpumem.cli.options import add_color, add_units
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.report import columns as known
from slurm_gpumem.report.times import joined_times, parse_time
from slurm_gpumem.terminal.bars import speaks_unicode, terminal_width
from slurm_gpumem.terminal.colour import palette
from slurm_gpumem.terminal.progress import ProgressBar
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import moment, sizes_in

if TYPE_CHECKING:
    from slurm_gpumem.accounting.types import JobDetail
    from slurm_gpumem.report.arrays import Queued

_DEFAULT_DAYS = 7
_TOP = 5


_SELECTIONS = (
    "jobs", "user", "accounts", "partition", "nodelist", "model", "state", "starttime", "endtime"
)  # fmt: skip
"""Options that choose jobs; in a script, the variable behind one may be empty."""


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(joined_times(argv, ("-S", "-E", "--starttime", "--endtime")))
    for name in _SELECTIONS:
        if getattr(args, name) is not None and not getattr(args, name).strip(" ,"):
            raise UsageError(f"--{name} is empty; without it, all are shown")
    args.jobs = ",".join([*args.job, *([args.jobs] if args.jobs else [])]) or None
    with sizes_in(args.units):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    if args.helpformat:
        print("\n".join(known.field_names()))
        return 0
    if args.by and not args.summary:
        raise UsageError("--by says what a summary is taken by; add --summary")
    if args.names and not args.html:
        raise UsageError("--names is for the page of --html; tables show users by name")
    if sum(bool(given) for given in (args.json, args.csv, args.parsable2, args.html)) > 1:
        raise UsageError("--json, --csv, --html and -P each say what the output is; choose one")
    columns = known.columns(args.format or (known.LONG if args.long else known.DEFAULT))
    filters = _filters(args)
    with ProgressBar("indexing job records") as bar:
        store = open_store(force=args.update, progress=bar)
    with store:
        if args.html:
            from slurm_gpumem.report.html.page import write_html

            code = write_html(store, filters, args.html, names=args.names)
        elif args.jobs and not args.summary and not (args.csv or args.parsable2 or args.format or args.long):
            code = _in_depth(store, filters, args)
        elif args.summary:
            code = _summary(store, filters, args)
        else:
            code = _list(store, filters, columns, args)
        sys.stdout.flush()
        if not (args.json or args.noheader):
            _say_what_is_missing(store, args)
    return code


def _list(store: Store, filters: Filters, columns: List[known.Column], args: argparse.Namespace) -> int:
    from slurm_gpumem.report import listing as shown
    from slurm_gpumem.report.listing import Listed, expanded, folded

    rows = store.select(filters)
    if args.json:
        shown.write_json(rows, sys.stdout, _about(store, args))
    elif args.csv:
        shown.write_csv(rows, columns, sys.stdout, header=not args.noheader)
    elif args.parsable2:
        shown.out(shown.parsable_lines(rows, columns, header=not args.noheader))
    else:
        unicode = speaks_unicode()
        listed: Iterator[Listed] = rows
        if not args.jobs:
            listed = folded(rows, store.select, filters, lru_cache(maxsize=1)(_queued))
        if args.array:
            listed = expanded(listed)
        style = shown.TableStyle(unicode, terminal_width(), palette(args.color))
        shown.out(shown.table_lines(listed, columns, header=not args.noheader, style=style))
        if not args.noheader:
            print("--\n" + shown.footer(store.summary(filters)) + _window(args))
    return 0


def _in_depth(store: Store, filters: Filters, args: argparse.Namespace) -> int:
    from slurm_gpumem.report import job as shown

    shard_mib = store.config.shard_mib
    rows = list(store.select(filters))
    details = (store.detail(row) for row in rows)
    if args.json:
        import json

        from slurm_gpumem.report.listing import SCHEMA

        jobs = [shown.detail_json(detail, shard_mib) for detail in details]
        print(json.dumps({"schema": SCHEMA, **_about(store, args), "jobs": jobs}))
    elif rows:
        unicode = speaks_unicode()
        found = list(details)
        screens = [shown.job_lines(detail, shard_mib, unicode=unicode) for detail in found]
        screens += _arrays([detail for detail in found if detail.row.array_job in filters.jobs])
        print("\n\n".join("\n".join(lines) for lines in screens))
    missing = set(filters.jobs) - {row.job_id for row in rows} - {row.array_job for row in rows}
    tasks = set(filters.tasks) - {(row.array_job, row.array_task) for row in rows}
    names = [*map(str, sorted(missing)), *(f"{job}_{task}" for job, task in sorted(tasks))]
    if names:
        _say_of_missing(names, everybody=store.freshness.everybody)
    return 1 if (missing or tasks) and not rows else 0


def _arrays(details: List[JobDetail]) -> List[List[str]]:
    """What there is to say of each array below its tasks."""
    from slurm_gpumem.report.arrays import Queued, summary_lines

    by_array: Dict[int, List[JobDetail]] = {}
    for detail in details:
        if detail.row.array_job is not None:
            by_array.setdefault(detail.row.array_job, []).append(detail)
    queued = _queued() if any(one.row.end is None for tasks in by_array.values() for one in tasks) else {}
    return [
        summary_lines(tasks, queued.get(array, Queued()))
        for array, tasks in by_array.items()
        if len(tasks) > 1 or array in queued
    ]


def _queued() -> Dict[int, Queued]:
    """What Slurm has of arrays now; nothing where it does not answer."""
    from slurm_gpumem.errors import SlurmError
    from slurm_gpumem.report.arrays import queued_arrays
    from slurm_gpumem.slurm.client import COMMANDS

    try:
        return queued_arrays(COMMANDS)
    except SlurmError:
        return {}  # Records say the rest.


def _say_of_missing(names: List[str], *, everybody: bool) -> None:
    """Why there is nothing on a job: it has not started, or nobody wrote a record of it."""
    from slurm_gpumem.errors import SlurmError
    from slurm_gpumem.slurm.client import COMMANDS
    from slurm_gpumem.slurm.state.queue import waiting_jobs

    try:
        waiting = waiting_jobs(COMMANDS, names)
    except SlurmError:
        waiting = {}  # Without Slurm's word the question below is as good as before.
    for job, why in waiting.items():
        say(f"job {job} has not started yet ({why}); there is something to report once it runs")
    others = [name for name in names if name not in waiting]
    if others:
        whose = "" if everybody else " of yours"
        say(f"no record of job {', '.join(others)}{whose}; was it submitted with gpusbatch?")


def _summary(store: Store, filters: Filters, args: argparse.Namespace) -> int:
    from slurm_gpumem.report import summary as shown

    total = store.summary(filters)
    groups = store.summary_by(args.by, filters) if args.by else []
    header = not args.noheader
    if args.json:
        wasters = store.wasters(filters, limit=_TOP)
        shown.write_summary_json(total, args.by, groups, wasters, sys.stdout, _about(store, args))
    elif args.csv:
        shown.write_summary_csv(args.by, groups or [total], sys.stdout, header=header)
    elif args.parsable2:
        from slurm_gpumem.report.listing import out

        out(shown.group_parsable(args.by or "all", groups or [total], header=header))
    elif args.by:
        from slurm_gpumem.report.listing import footer, out

        out(shown.group_lines(args.by, groups, header=header))
        if header:
            print("--\n" + footer(total) + _window(args))
    else:
        wasters = store.wasters(filters, limit=_TOP)
        about = _window(args, "of all time").strip()
        print("\n".join(shown.summary_lines(total, wasters, about, store.faults(filters))))
    return 0


def _filters(args: argparse.Namespace) -> Filters:
    since = parse_time(args.starttime) if args.starttime else None
    until = parse_time(args.endtime) if args.endtime else None
    if since is not None and until is not None and until < since:
        raise UsageError(f"-E {args.endtime} is before -S {args.starttime}")
    if since is None and not (args.summary or args.jobs or args.all_time):
        since = (until or time.time()) - _DEFAULT_DAYS * 86_400
    jobs = _jobs(args.jobs)
    return Filters(
        users=tuple(_user(name) for name in _words(args.user)),
        accounts=_words(args.accounts),
        partitions=_words(args.partition),
        models=_words(args.model),
        states=tuple(_states(args.state)),
        nodes=_words(args.nodelist),
        jobs=tuple(number for number, task in jobs if task is None),
        tasks=tuple((number, task) for number, task in jobs if task is not None),
        since=since,
        until=until,
    )


def _words(text: Optional[str]) -> Tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _states(text: Optional[str]) -> List[str]:
    from slurm_gpumem.slurm.state.queue import CODES

    found = []
    for word in _words(text):
        state = CODES.get(word.upper(), word.upper())
        if state in ("PD", "PENDING"):
            raise UsageError(f"-s {word}: jobs that have not started have no record yet; squeue shows them")
        if state not in (*CODES.values(), "UNKNOWN"):
            raise UnknownNameError("state", word, list(CODES.values()))
        found.append(state)
    return found


def _jobs(text: Optional[str]) -> List[Tuple[int, Optional[int]]]:
    """The jobs of -j: (4711, None) for a job or a whole array, (4711, 3) for a task of one."""
    found: List[Tuple[int, Optional[int]]] = []
    for word in _words(text):
        match = re.fullmatch(r"([0-9]{1,11})(?:_([0-9]{1,10}))?(?:\..*)?", word, re.ASCII)
        if not match:
            raise UsageError(f"-j {word!r}: a job is a number, like -j 1234, -j 1234,1235 or -j 1234_5")
        found.append((int(match[1]), None if match[2] is None else int(match[2])))
    return found


def _user(name: str) -> str:
    """A user's name, also of a number."""
    if name.isascii() and name.isdigit():
        try:
            return pwd.getpwuid(int(name)).pw_name
        except (KeyError, OverflowError):
            return name
    return name


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(_user(name))
    except KeyError:
        return False
    return True


def _window(args: argparse.Namespace, otherwise: str = "") -> str:
    """In words, which time the answer is of."""
    if args.starttime or args.endtime:
        since = f" since {args.starttime}" if args.starttime else ""
        return since + (f" until {args.endtime}" if args.endtime else "")
    if args.summary or args.jobs or args.all_time:
        return f" {otherwise}" if otherwise else ""
    return f" (last {_DEFAULT_DAYS} days; see -S)"


def _about(store: Store, args: argparse.Namespace) -> Dict[str, Any]:
    fresh = store.freshness
    return {
        "records": fresh.records,
        "bad_records": fresh.bad,
        "bad_reasons": dict(fresh.bad_reasons),
        "indexed_at": fresh.indexed_at,
        "slurm": fresh.slurm or "joined",
        "everybody": fresh.everybody,
    }


def _say_what_is_missing(store: Store, args: argparse.Namespace) -> None:
    fresh = store.freshness
    if fresh.bad:
        why = ", ".join(f"{count:,} {reason}" for reason, count in fresh.bad_reasons.items())
        say(f"{count(fresh.bad, 'record')} left out: {why}")
        if args.verbose:
            for path, reason in store.bad_records():
                say(f"  {path}: {reason}")
    age = time.time() - fresh.indexed_at if fresh.indexed_at else 0.0
    if age > 3600:
        say(f"as of {moment(fresh.indexed_at)}; records since then are not in it")
    if args.verbose and fresh.slurm:
        say(f"without Slurm's accounting: {fresh.slurm}")
    if not fresh.records:
        folders = ", ".join(store.config.folders)
        say(
            f"no job records in {folders}.\nThe nodes' hooks write them (gpumem docs node); "
            "accounting.dir in gpumem.toml names where they are gathered."
        )
    elif unknown := [name for name in _words(args.user) if not _is_user(name)]:
        say(f"no user {', '.join(unknown)} on this system")
    elif not fresh.everybody and args.user and _words(args.user) != (pwd.getpwuid(os.geteuid()).pw_name,):
        say("you see your own jobs only; root and coordinators see everybody's")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem report",
        description=__doc__,
        epilog="Times are as sacct takes them: 2026-11-15, 08:30, today, now-2hours; also 7d and -7days. "
        "For a login message: gpumem report --me --brief.",
    )
    which = parser.add_argument_group("which jobs")
    which.add_argument("job", nargs="*", metavar="JOB", help="the same as -j JOB")
    which.add_argument(
        "-j",
        "--jobs",
        metavar="JOB",
        help="one job in depth, or several: 12,13,14_3",
    )
    which.add_argument("-u", "--user", "--uid", metavar="USER", help="of these users")
    which.add_argument("-A", "--accounts", metavar="ACCOUNT", help="of these accounts")
    which.add_argument("-r", "--partition", metavar="NAME", help="in these partitions")
    which.add_argument("-N", "--nodelist", metavar="NODE", help="on these nodes")
    which.add_argument("-m", "--model", metavar="NAME", help="of these models")
    which.add_argument("-s", "--state", metavar="STATE", help="in these states: COMPLETED, FAILED, TO, …")
    which.add_argument(
        "-S",
        "--starttime",
        metavar="TIME",
        help=f"that ran since then (default: the last {_DEFAULT_DAYS} days)",
    )
    which.add_argument("-E", "--endtime", metavar="TIME", help="that ran until then")
    which.add_argument("-a", "--all-time", action="store_true", help="however old")
    how = parser.add_argument_group("what is shown")
    how.add_argument(
        "--summary", action="store_true", help="accuracy, GPU-hours, OOMs and wasters, of all time"
    )
    how.add_argument("--by", choices=GROUPS, help="the summary by …")
    how.add_argument("-o", "--format", metavar="COLUMNS", help="columns, like JobID,User,Model%%20,Peak")
    how.add_argument("-l", "--long", action="store_true", help="more columns")
    how.add_argument("-e", "--helpformat", action="store_true", help="list all columns")
    how.add_argument("-P", "--parsable2", action="store_true", help='columns parted by "|", nothing cut')
    how.add_argument("--array", action="store_true", help="every task of an array on a line of its own")
    how.add_argument("-n", "--noheader", action="store_true", help="no header, no line below")
    how.add_argument("--csv", action="store_true", help="for spreadsheets: MiB, seconds, parts of 1")
    how.add_argument("--json", action="store_true", help="for programs")
    how.add_argument("--names", action="store_true", help="with --html: users by name, not numbered")
    how.add_argument("--html", metavar="FILE", help="one page with charts, for a browser")
    add_units(how)
    add_color(how)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say which records were left out, and why"
    )
    parser.add_argument(
        "--update", action="store_true", help="look for new records even if that was just done"
    )
    return parser
