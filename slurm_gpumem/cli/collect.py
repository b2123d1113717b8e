"""`gpumem collect`: gather the nodes' job records, keep the site's index up to date; for cron, as root."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import List

from slurm_gpumem.accounting import place, remember, sacct
from slurm_gpumem.accounting.collect import collect
from slurm_gpumem.accounting.readers import allow
from slurm_gpumem.accounting.store import open_store
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.terminal.progress import ProgressBar
from slurm_gpumem.terminal.say import say

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_JOIN_S = 120.0


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if os.geteuid() != 0:
        raise UsageError(
            "gpumem collect gathers everybody's records and must run as root; yours: gpumem report"
        )
    config = load_accounting_config()
    spool, store = args.spool or config.spool, args.to or config.dir
    done = None
    if not args.index_only:
        if not store.is_dir():
            raise UsageError(
                f"{store}: no such folder; make it, or name another with accounting.dir in gpumem.toml"
            )
        # First: where root is squashed it could not read any more what users have written to the store.
        with ProgressBar("indexing job records") as bar:
            open_store(config=config, join=False, force=True, progress=bar).close()
        done = collect(spool, store, older_s=_seconds(args.older))
        for why in done.failed:
            say(f"not written: {why}")
    with (
        ProgressBar("indexing job records") as bar,
        open_store(config=config, join=False, force=True, progress=bar) as index,
    ):
        sacct.join_slurm(index.connection, force=True, budget_s=_JOIN_S)
        users = [uid for (uid,) in index.connection.execute("SELECT DISTINCT uid FROM job WHERE judged = 1")]
        for uid in users:
            _remember(index, uid, store)
        fresh = index.freshness
    unknown = allow(config.own_index / place.NAME, sacct.coordinators(), config.readers)
    if unknown:
        say(f"no such user or group here, so no access to the index: {', '.join(unknown)}")
    if not args.quiet:
        moved = (
            f"{done.records:,} records moved into books, {done.kept:,} stay in the spool; " if done else ""
        )
        why = f" (without Slurm's accounting: {fresh.slurm})" if fresh.slurm else ""
        bad = f", {fresh.bad:,} bad" if fresh.bad else ""
        sys.stdout.write(f"{moved}{fresh.records:,} records indexed{bad}{why}\n")
    return 1 if done and done.failed else 0


def _remember(index: object, uid: int, store: Path) -> None:
    """A user's peaks beside their books, for gpusbatch on any machine that sees the store."""
    from slurm_gpumem.accounting.store import Store

    assert isinstance(index, Store)
    folder = store / str(uid)
    if folder.is_dir():
        try:
            path = folder / "remembered.json"
            if remember.write_peaks(index.connection, uid, path):
                os.chmod(path, 0o644)
        except OSError as error:
            say(f"{folder}: {error.strerror}; what user {uid} ran is not remembered there")


def _seconds(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and unit in _UNITS):
        raise UsageError(f"--older {text!r}: write it like 2d, 12h or 0s")
    return float(int(number) * _UNITS[unit])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem collect", description=__doc__)
    parser.add_argument("--spool", type=Path, metavar="DIR", help="where nodes write (default: node.spool)")
    parser.add_argument("--to", type=Path, metavar="DIR", help="the store (default: accounting.dir)")
    parser.add_argument(
        "--older", default="2d", metavar="AGE", help="of jobs that ended so long ago (default 2d)"
    )
    parser.add_argument(
        "--index-only", action="store_true", help="move nothing, only bring the index up to date"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")
    return parser
