"""The `[accounting]` table of gpumem.toml: where records are gathered and where their index is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple

from slurm_gpumem.config.load import SITE_CONFIG
from slurm_gpumem.errors import ConfigError

_SPOOL = "/var/spool/gpumem"
_SITE_INDEX = "/var/lib/gpumem"
_KEYS = ("dir", "index", "readers")
_KEYS_OF_NODE = ("spool", "end_line")
"""What people look for here; it is in the table of the node."""


@dataclass(frozen=True)
class AccountingConfig:
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
    shard_mib: int = 1024

    @property
    def folders(self) -> Tuple[str, ...]:
        """Where records may lie."""
        return tuple(dict.fromkeys((str(self.dir), str(self.spool))))


def load_accounting_config(environ: Optional[Mapping[str, str]] = None) -> AccountingConfig:
    """The site's file; without one, the defaults."""
    env = os.environ if environ is None else environ
    path = Path(env.get("GPUMEM_SITE_CONFIG") or SITE_CONFIG)
    tables: Mapping[str, Any] = {}
    if path.exists():
        from slurm_gpumem.toml_file import load_toml

        tables = load_toml(path)
    table, node, sharing = (_table(tables, name, str(path)) for name in ("accounting", "node", "sharing"))
    for key in table:
        if key not in _KEYS:
            known = "it belongs to [node]" if key in _KEYS_OF_NODE else f"known: {', '.join(_KEYS)}"
            raise ConfigError(f"{path}: accounting: unknown key {key!r}; {known}")
    spool = _folder(node, "spool", _SPOOL, f"{path}: node")
    readers = table.get("readers", [])
    if isinstance(readers, str):
        readers = [readers]
    if not isinstance(readers, list) or not all(isinstance(name, str) for name in readers):
        raise ConfigError(f'{path}: accounting.readers must be a list of groups, like ["gpuadmins"]')
    shard_mib = sharing.get("shard_mib", 1024)
    site_index = _folder(table, "index", _SITE_INDEX, f"{path}: accounting")
    # Not in the home: that is on the network at most sites, where a database is slow and may break.
    own_index = site_index if os.geteuid() == 0 else Path(f"/var/tmp/gpumem-{os.geteuid()}")
    return AccountingConfig(
        dir=_folder(table, "dir", str(spool), f"{path}: accounting"),
        spool=spool,
        site_index=site_index,
        own_index=Path(env["GPUMEM_INDEX"]) if env.get("GPUMEM_INDEX") else own_index,
        readers=tuple(readers),
        shard_mib=shard_mib if isinstance(shard_mib, int) and shard_mib > 0 else 1024,
    )


def _table(tables: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {name} must be a table: write [{name}] and its keys under it")
    return table


def _folder(table: Mapping[str, Any], key: str, default: str, where: str) -> Path:
    value = table.get(key, default)
    if not isinstance(value, str) or not os.path.isabs(value):
        raise ConfigError(f"{where}.{key} must be an absolute path, not {value!r}")
    return Path(value)
