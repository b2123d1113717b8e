"""The `[recovery]` table of gpumem.toml: whether, how far and how soon a failed job comes back."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any, List, Mapping, NamedTuple, Tuple

from slurm_gpumem.config.node import NodeConfig, node_config_from
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.submission.ladder import DEFAULT_LADDER, Step, parse_ladder

ANSWERS = ("requeue", "fail")
_NICE_LIMIT = 2_147_483_645


class RecoveryConfig(NamedTuple):
    """How the site recovers jobs."""

    enabled: bool = True
    """False: what happened is still recorded, but nothing is requeued."""
    ladder: Tuple[Step, ...] = parse_ladder(DEFAULT_LADDER)
    on_oom: str = "fail"
    """For jobs whose record does not say; gpusbatch always says."""
    nice: int = -1000
    """Given to a recovered job, so that it need not queue all over again; 0 leaves it."""
    priority: int = 0
    """A fixed priority instead; 0 leaves it to Slurm."""
    shard_mib: int = 1024
    spool: Path = Path("/var/spool/gpumem")
    """Where the nodes' job records are."""
    slurm_env: Mapping[str, str] = MappingProxyType({})
    """What Slurm's commands need in their environment: `[node] slurm_bin` and `slurm_env`."""
    notes: Tuple[str, ...] = ()
    """What was wrong in the file: logged, and the default used."""


def load_recovery_config(path: Path) -> RecoveryConfig:
    """The file's `[recovery]` table; without a file, or with a broken one, the defaults."""
    if not path.exists():
        return RecoveryConfig()
    from slurm_gpumem.toml_file import load_toml

    try:
        return recovery_config_from(load_toml(path), str(path))
    except ConfigError as error:
        return RecoveryConfig(notes=(str(error),))


def recovery_config_from(tables: Mapping[str, Any], where: str) -> RecoveryConfig:
    """The table, value by value: what is wrong stays at its default and is noted."""
    config, notes = RecoveryConfig(), []
    node = node_config_from(tables, where)
    config = config._replace(shard_mib=node.shard_mib, spool=node.spool, slurm_env=_slurm_env(node))
    table = tables.get("recovery", {})
    if not isinstance(table, dict):
        return config._replace(notes=(f"{where}: [recovery] is not a table",))
    for key, value in table.items():
        name = key.replace("-", "_")
        try:
            config = config._replace(**{name: _checked(name, value)})
        except ConfigError as error:
            notes.append(f"{where}: [recovery] {key}: {error}; the default is used")
    return config._replace(notes=tuple(notes))


def _checked(name: str, value: Any) -> Any:
    if name == "enabled":
        return _need(isinstance(value, bool), value, "true or false")
    if name == "ladder":
        if not isinstance(value, list):
            raise ConfigError(f'{value!r} is not a list like ["+25%", "whole-gpu"]')
        return parse_ladder(value)
    if name == "on_oom":
        return _need(value in ANSWERS, value, " or ".join(ANSWERS))
    if name == "nice":
        return _need(_whole(value) and abs(value) <= _NICE_LIMIT, value, "a whole number")
    if name == "priority":
        return _need(_whole(value) and 0 <= value < 2**32 - 2, value, "a priority of at least 0")
    raise ConfigError(f"unknown key; known: {', '.join(_keys())}")


def _slurm_env(node: NodeConfig) -> Mapping[str, str]:
    path = {"PATH": f"{node.slurm_bin}:{os.environ.get('PATH', '')}"} if node.slurm_bin else {}
    return {**node.slurm_env, **path}


def _need(fine: bool, value: Any, what: str) -> Any:
    if not fine:
        raise ConfigError(f"{value!r} is not {what}")
    return value


def _keys() -> List[str]:
    return ["enabled", "ladder", "on_oom", "nice", "priority"]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
