"""Before an estimate: take in runs that ended since the last time, if that is a matter of milliseconds.

On the submit path: nothing is loaded before it is known that there is something to read.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.config.accounting import AccountingConfig, load_accounting_config
from slurm_gpumem.errors import GpumemError

_AT_ONCE = 300
"""Most new records that are read while a user waits for gpusbatch; `gpumem report` reads the others."""
_QUICK_S = 0.1


def note_new_runs(config: Optional[AccountingConfig] = None) -> None:
    """Bring the user's remembered peaks up to date.

    Whatever goes wrong here leaves gpusbatch with the peaks that it knows already.
    """
    try:
        settings = config or load_accounting_config()
        stamps = _stamps(settings.folders)
        if not stamps:
            return
        import sqlite3
    except (GpumemError, OSError):
        return
    try:
        if _worth_it(settings, stamps):
            from slurm_gpumem.accounting.store import open_store

            open_store(config=settings, join=False).close()
    except (GpumemError, OSError, sqlite3.Error):
        return


def _stamps(folders: Tuple[str, ...]) -> Dict[str, int]:
    """The times of those of the store's folders that are there."""
    found = {}
    for folder in folders:
        try:
            found[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            continue
    return found


def _worth_it(config: AccountingConfig, stamps: Dict[str, int]) -> bool:
    """Whether there is something new, and little of it."""
    index = config.own_index / "index.sqlite"
    if not index.exists():
        return all(_count(folder) <= _AT_ONCE for folder in stamps)
    known = _known(str(index))
    if any(took > _QUICK_S for _, _, took in known):
        return False
    before = {path: stamp for path, stamp, _ in known}
    return any(before.get(folder) != stamp for folder, stamp in stamps.items())


def _known(index: str) -> List[Tuple[str, int, float]]:
    """What the index knows of the folders: path, time, and how long the last look took."""
    import sqlite3

    connection = sqlite3.connect(f"file:{index}?mode=ro", uri=True, timeout=0.2)
    try:
        return connection.execute("SELECT path, stamp, coalesce(took, 0) FROM folder").fetchall()
    finally:
        connection.close()


def _count(folder: str) -> int:
    """How many entries a folder has, counted no further than is of interest."""
    with os.scandir(folder) as entries:
        return sum(1 for _, _ in zip(entries, range(_AT_ONCE + 1)))
