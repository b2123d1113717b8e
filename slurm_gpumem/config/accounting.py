"""The `[accounting]` table of gpumem.toml: where records are gathered and where their index is."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.read import read_file
from slurm_gpumem.config.schema import ACCOUNTING, DEVCLUSTER, NODE, SHARING
from slurm_gpumem.xdg import cache_path


class AccountingConfig(NamedTuple):
    """Where the store is, and who reads it."""

    dir: Path
    """Gathered records; the nodes' own spool where a site gathers nothing."""
    spool: Path
    """Where nodes write them."""
    site_index: Path
    """The folder of root's index, on a local disk."""
    own_index: Path
    """The folder of this user's index, on a local disk."""
    readers: Tuple[str, ...] = ()
    """Groups that may read the site's index, besides root and coordinators."""
    shard_mib: int = SHARING.default("shard_mib")
    unknown: Tuple[str, ...] = ()
    """Names that this version does not know."""

    @property
    def folders(self) -> Tuple[str, ...]:
        """Where records may lie."""
        return tuple(dict.fromkeys((str(self.dir), str(self.spool))))


def load_accounting_config(environ: Optional[Mapping[str, str]] = None) -> AccountingConfig:
    """The site's file; without one, the defaults. ConfigError when its `[accounting]` is wrong."""
    env = os.environ if environ is None else environ
    # Of [node] and [sharing] the same values as the nodes use, which take the default for a wrong one.
    reading = read_file(site_config_path(env), (ACCOUNTING, NODE, SHARING, DEVCLUSTER)).usable(ACCOUNTING)
    table = reading.table(ACCOUNTING)
    spool = reading.table(NODE).get("spool", NODE.default("spool"))
    site_index = reading.table(DEVCLUSTER).get("index", DEVCLUSTER.default("index"))
    own_index = site_index if os.geteuid() == 0 else _users_index()
    return AccountingConfig(
        dir=table.get("dir", spool),
        spool=spool,
        site_index=site_index,
        own_index=Path(env["GPUMEM_INDEX"]) if env.get("GPUMEM_INDEX") else own_index,
        readers=table.get("readers", ACCOUNTING.default("readers")),
        shard_mib=reading.table(SHARING).get("shard_mib", SHARING.default("shard_mib")),
        unknown=reading.unknown(ACCOUNTING),
    )


def _users_index() -> Path:
    """Not in the home, which is on the network at most sites, where a database is slow and may break.

    Unless somebody else took our name there: whoever may make folders beside ours can make it first.
    """
    usual = Path(f"/var/tmp/gpumem-{os.geteuid()}")
    try:
        about = os.lstat(usual)
    except OSError:
        return usual
    ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return usual if ours else Path(cache_path())
