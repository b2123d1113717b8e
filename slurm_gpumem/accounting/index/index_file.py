"""Where the index is for whoever asks: root's for the site, or one of the user's own jobs.

The file system decides who sees what. Root's index holds everybody's jobs; root, the coordinators of Slurm's
accounts and the groups that the site names may read it. All others get an index of their own jobs.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Callable, Optional

from slurm_gpumem.accounting.index import schema
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.errors import AccountingError
from slurm_gpumem.files import remove_dead_drafts, replaced

NAME = "index.sqlite"


def readable_site_index(config: AccountingConfig) -> Optional[Path]:
    """Root's index, when it is there and this user may read it; one's own is none, wherever it is."""
    path = config.site_index / NAME
    try:
        own = os.stat(path).st_uid == os.geteuid()
    except OSError:
        return None
    return path if not own and os.access(path, os.R_OK, effective_ids=True) else None


def open_own(config: AccountingConfig, fill: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
    """The index to write to, brought up to date; a new one is made beside it and moved in."""
    path = _folder(config) / NAME
    source = "\n".join(config.folders)
    try:
        connection = _existing(path, source)
        if connection is not None:
            try:
                fill(connection)
            except sqlite3.OperationalError as error:
                # Somebody else is at it, or the disk is full: what is there still answers.
                if "locked" not in str(error) and "full" not in str(error):
                    raise
            return connection
    except sqlite3.DatabaseError:
        # Damaged, by a full disk or a half copy. It holds nothing that is not in the records.
        pass
    return _make(path, source, fill)


def _existing(path: Path, source: str) -> Optional[sqlite3.Connection]:
    if not path.exists():
        return None
    connection = schema.connect(path)
    if schema.is_current(connection):
        known = connection.execute("SELECT value FROM meta WHERE key = 'folders'").fetchone()
        if known is not None and known[0] == source:
            return connection
    connection.close()
    return None


def _make(path: Path, source: str, fill: Callable[[sqlite3.Connection], object]) -> sqlite3.Connection:
    remove_dead_drafts(path.parent)
    try:
        with replaced(path, mode=0o600) as draft:
            connection = schema.create(draft)
            try:
                connection.execute("INSERT INTO meta VALUES ('folders', ?)", (source,))
                fill(connection)
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        raise AccountingError(
            f"{path}: cannot make the index: {error}\nIt needs a local disk with about 450 bytes a record; "
            "GPUMEM_INDEX=DIR names another folder."
        ) from None
    return schema.connect(path)


def _folder(config: AccountingConfig) -> Path:
    """The index's folder, made if need be, and nobody else's."""
    folder = config.own_index
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        about = os.stat(folder, follow_symlinks=False)
    except OSError as error:
        raise AccountingError(f"{folder}: cannot keep the index there: {error.strerror}") from None
    if about.st_uid != os.geteuid():
        raise AccountingError(f"{folder}: is another user's; GPUMEM_INDEX=DIR names a folder for the index")
    if not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o022:
        raise AccountingError(
            f"{folder}: others may write there, and so to the index; GPUMEM_INDEX=DIR names another folder"
        )
    return folder
