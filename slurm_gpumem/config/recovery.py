"""The `[recovery]` table of gpumem.toml: whether and how far a failed job is run again."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.kinds import Step
from slurm_gpumem.config.paths import slurm_env
from slurm_gpumem.config.read import read_file
from slurm_gpumem.config.schema import DEVCLUSTER, NODE, RECOVERY, SHARING

_READ = (RECOVERY, NODE, SHARING, DEVCLUSTER)
_default = RECOVERY.default


class RecoveryConfig(NamedTuple):
    """How the site recovers jobs; config/schema.py describes the keys."""

    enabled: bool = _default("enabled")
    ladder: Tuple[Step, ...] = _default("ladder")
    shard_mib: int = SHARING.default("shard_mib")
    """From [sharing]; the following from [node]."""
    spool: Path = NODE.default("spool")
    least_slot_s: int = DEVCLUSTER.default("least_slot_s")
    """What is in a job's comment, its owner may have written."""
    slurm_bin: Optional[Path] = NODE.default("slurm_bin")
    slurm_env: Mapping[str, str] = MappingProxyType({})
    notes: Tuple[str, ...] = ()
    """What was wrong in the file: logged, and the default used."""


def load_recovery_config(path: str) -> RecoveryConfig:
    """The file's `[recovery]` table; what is wrong means the default and a note, never an error."""
    reading = read_file(path, _READ)
    others = {**reading.table(SHARING), **reading.table(NODE)}
    wanted = {key: others[key] for key in ("shard_mib", "spool", "slurm_bin") if key in others}
    least = reading.table(DEVCLUSTER).get("least_slot_s", DEVCLUSTER.default("least_slot_s"))
    return RecoveryConfig(
        **reading.table(RECOVERY),
        **wanted,
        least_slot_s=least,
        slurm_env=slurm_env(path),
        notes=reading.notes,
    )
