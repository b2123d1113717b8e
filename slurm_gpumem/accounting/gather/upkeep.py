"""A round of `gpumem collect`: books from the spool, the index up to date, peaks remembered, readers."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Callable, Iterable, List, NamedTuple, Optional, Tuple

from slurm_gpumem.accounting import sacct
from slurm_gpumem.accounting.gather import remember
from slurm_gpumem.accounting.gather.collect import Collected, collect
from slurm_gpumem.accounting.gather.record_files import why_distrusted
from slurm_gpumem.accounting.index import index_file
from slurm_gpumem.accounting.store import Store, open_store
from slurm_gpumem.accounting.types import Freshness
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.files import allow_readers
from slurm_gpumem.formats.remembered import NAME
from slurm_gpumem.slurm.state.sacct import ask_coordinators

# Who may read the site's index besides root: groups the site names, and coordinators of Slurm's accounts.


def allow(path: Path, users: Iterable[str], groups: Iterable[str]) -> Tuple[str, ...]:
    """Let these read a file of root's, by an access list; the names nobody here has."""
    unknown: List[str] = []
    uids, gids = [], []
    for name in users:
        try:
            uids.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            unknown.append(name)
    for name in groups:
        try:
            gids.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            unknown.append(name)
    if not uids and not gids:
        os.chmod(path, 0o600)
        return tuple(unknown)
    allow_readers(path, set(uids) - {0}, gids)
    return tuple(unknown)


_JOIN_S = 120.0

Progress = Callable[[int, int], None]
ProgressOf = Callable[[], AbstractContextManager[Progress]]
"""Begins to show how far the index has come."""


class Upkeep(NamedTuple):
    """What a round did."""

    collected: Optional[Collected]
    """None where only the index was brought up to date."""
    freshness: Freshness
    notes: List[str]
    """What an admin should know."""


def keep_up(
    config: AccountingConfig, spool: Optional[Path], store: Path, older_s: float, progress: ProgressOf
) -> Upkeep:
    """Move old records of `spool` into the store's books (None: move nothing), then index all there is."""
    notes: List[str] = []
    collected = None
    if spool is not None:
        collected = collect(spool, store, older_s=older_s)
        notes += [f"not written: {why}" for why in collected.failed]
    with progress() as bar, open_store(config=config, join=False, force=True, progress=bar) as index:
        sacct.join_slurm(index.connection, force=True, budget_s=_JOIN_S)
        users = [uid for (uid,) in index.connection.execute("SELECT DISTINCT uid FROM job WHERE judged = 1")]
        for uid in users:
            notes += _remember(index, uid, store)
        freshness = index.freshness
    unknown = allow(config.own_index / index_file.NAME, ask_coordinators(), config.readers)
    if unknown:
        notes.append(f"no such user or group here, so no access to the index: {', '.join(unknown)}")
    return Upkeep(collected, freshness, notes)


def _remember(index: Store, uid: int, store: Path) -> List[str]:
    """A user's peaks beside their books, for gpusbatch on any machine that sees the store."""
    folder = store / str(uid)
    try:
        why = why_distrusted(os.stat(folder, follow_symlinks=False))
        if not why:
            remember.write_peaks(index.connection, uid, folder / NAME, mode=0o644)
    except FileNotFoundError:
        return []
    except OSError as error:
        why = error.strerror or "cannot be written"
    return [f"{folder}: {why}; what user {uid} ran is not remembered there"] if why else []
