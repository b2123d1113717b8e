"""Configuration: the site's file, the user's file and GPUMEM_* variables, typed; later wins.

Unknown keys are warnings that name the nearest known one; wrong types and values are errors
that name the file. #GPUMEM lines and options are laid on top by the commands themselves.

Values on the submit path are NamedTuples: a frozen dataclass takes ten times as long to define,
and a dozen of them would be a fifth of gpusbatch's start-up.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import ConfigError

SITE_CONFIG = "/etc/slurm/gpumem.toml"
USER_CONFIG = "~/.config/gpumem.toml"
_TABLES = ("sharing", "slurm", "job", "node", "recovery", "accounting")
_NODE_MODES = ("mps", "timeslice")
_NOT_KEYS = ("partitions", "node_mode")
MODES = ("observe", "opt-in", "on")
SHARED_GRES = ("shard", "mps")
UTILIZATIONS = ("budget", "ignore")
MIN_SLOWDOWN, MAX_SLOWDOWN = 1.0, 100.0

JOB_KEYS = (
    "model",
    "batch-size",
    "optimizer",
    "precision",
    "gpu",
    "estimator",
    "mem",
    "on-oom",
    "max-slowdown",
    "exclusive-gpu",
    "grad-accumulation",
    "checkpointing",
    "channels-last",
    "loss",
    "input-dtype",
    "end-line",
)
"""What a job says of itself: keys of #GPUMEM lines, GPUMEM_* variables and (mem as --gpu-mem) options."""

JOB_DEFAULT_KEYS = tuple(key for key in JOB_KEYS if key not in ("model", "mem", "exclusive-gpu"))
"""Keys a configuration file may preset in [job]; what makes a job ask for sharing is the job's own."""


class SharingPolicy(NamedTuple):
    """The `[sharing]` table: how far the site goes."""

    mode: str = "opt-in"
    """"observe" (estimate and record, change nothing), "opt-in" or "on"."""
    gres: str = "shard"
    """"shard" or "mps": one of the two per cluster."""
    shard_mib: int = 1024
    """GPU memory that one shard stands for."""
    min_host_mib: int = 4096
    """Host memory asked for at least, up to a quarter of what belongs to one GPU:
    a training process needs some however small its part of the GPU is."""
    max_slowdown: Optional[float] = None
    """How much longer a step may take beside others than alone (1.15); None: only memory decides shares."""
    utilization: str = "budget"
    """"budget" (a job's share is the larger of memory and activity, where a slowdown is set) or "ignore"."""
    partitions: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The tables [sharing.partition.NAME]: other values of the two above."""
    node_mode: str = "mps"
    """How nodes share their GPUs ([node] mode): jobs in time slices slow each other down more."""

    def slowdown_in(self, partitions: Iterable[str]) -> Optional[float]:
        """The slowdown that the site accepts for a job that may run in these; the least of several."""
        found = []
        for name in partitions:
            own = self.partitions.get(name, {})
            limit = own.get("max_slowdown", self.max_slowdown)
            if limit is not None and own.get("utilization", self.utilization) == "budget":
                found.append(float(limit))
        return min(found, default=None)

    def ignores_utilization(self, partitions: Iterable[str]) -> bool:
        """Whether the site keeps activity out of the shares in all of these partitions."""
        return all(
            self.partitions.get(name, {}).get("utilization", self.utilization) == "ignore"
            for name in partitions
        )


class SlurmSettings(NamedTuple):
    """The `[slurm]` table: how long we wait for Slurm and how long its answer holds."""

    timeout_s: int = 3
    cache_s: int = 600


class JobDefault(NamedTuple):
    """One value of a [job] table and where it stood."""

    value: str
    origin: str


class Config(NamedTuple):
    """All of it."""

    sharing: SharingPolicy = SharingPolicy()
    slurm: SlurmSettings = SlurmSettings()
    job: Mapping[str, JobDefault] = MappingProxyType({})
    warnings: Tuple[str, ...] = ()


def load_config(environ: Optional[Mapping[str, str]] = None) -> Config:
    """The site's file, then the user's, then GPUMEM_SHARING_* and GPUMEM_SLURM_* variables."""
    env = os.environ if environ is None else environ
    config = Config()
    site = env.get("GPUMEM_SITE_CONFIG") or SITE_CONFIG
    for path in (site, os.path.expanduser(USER_CONFIG)):
        if os.path.exists(path):
            from pathlib import Path

            from slurm_gpumem.toml_file import load_toml

            config = _merged(config, load_toml(Path(path)), path)
    return _with_environment(config, env)


def job_variables(environ: Mapping[str, str]) -> Dict[str, Tuple[str, str]]:
    """What GPUMEM_BATCH_SIZE and its like say: key → (value, variable)."""
    names = {key: "GPUMEM_" + key.upper().replace("-", "_") for key in JOB_KEYS}
    return {key: (environ[name], name) for key, name in names.items() if environ.get(name)}


def _merged(config: Config, tables: Mapping[str, Any], origin: str) -> Config:
    warnings = list(config.warnings)
    for name, table in tables.items():
        if name not in _TABLES:
            warnings.append(_unknown(origin, name, _TABLES))
        elif not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} must be a table: write [{name}] and its keys under it")
    sharing = dict(tables.get("sharing", {}))
    own = _partitions(sharing.pop("partition", {}), f"{origin}: sharing.partition", warnings)
    if tables.get("node", {}).get("mode") in _NODE_MODES:
        own_mode: Dict[str, Any] = {"node_mode": tables["node"]["mode"]}
    else:
        own_mode = {}
    policy = _section(config.sharing, sharing, f"{origin}: sharing", warnings)
    return config._replace(
        sharing=policy._replace(partitions={**policy.partitions, **own}, **own_mode),
        slurm=_section(config.slurm, tables.get("slurm", {}), f"{origin}: slurm", warnings),
        job={**config.job, **_job_defaults(tables.get("job", {}), origin, warnings)},
        warnings=tuple(warnings),
    )


def _partitions(table: Any, origin: str, warnings: List[str]) -> Dict[str, Mapping[str, Any]]:
    """The tables of single partitions."""
    if not isinstance(table, dict) or not all(isinstance(part, dict) for part in table.values()):
        raise ConfigError(f"{origin} must be tables: write [sharing.partition.NAME] and keys under it")
    found: Dict[str, Mapping[str, Any]] = {}
    for name, part in table.items():
        known = ("max_slowdown", "utilization")
        warnings += [_unknown(f"{origin}.{name}", key, known) for key in part if key not in known]
        found[name] = {
            key: _checked(f"{origin}.{name}.{key}", key, value) for key, value in part.items() if key in known
        }
    return found


def _section(current: Any, table: Mapping[str, Any], origin: str, warnings: List[str]) -> Any:
    """The section's dataclass with a table's values laid over it."""
    known = tuple(name for name in current._fields if name not in _NOT_KEYS)
    changes: Dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            warnings.append(_unknown(origin, key, known))
        else:
            changes[key] = _checked(f"{origin}.{key}", key, value)
    return current._replace(**changes)


def _checked(where: str, key: str, value: Any) -> Any:
    choices = {"mode": MODES, "gres": SHARED_GRES, "utilization": UTILIZATIONS}.get(key)
    if choices and value not in choices:
        raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {value!r}")
    if key == "max_slowdown":
        return checked_slowdown(where, value)
    if not choices and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ConfigError(f"{where} must be a whole number of at least 1, not {value!r}")
    return value


def checked_slowdown(where: str, value: Any) -> float:
    """A slowdown as a number; ConfigError says what is wrong with it."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except ValueError:
        number = 0.0
    if not MIN_SLOWDOWN <= number <= MAX_SLOWDOWN:
        raise ConfigError(
            f"{where} must be a factor of at least 1 (1.15: a step may take 15 % longer), not {value!r}"
        )
    return number


def _job_defaults(table: Mapping[str, Any], origin: str, warnings: List[str]) -> Dict[str, JobDefault]:
    found = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in JOB_DEFAULT_KEYS:
            warnings.append(_unknown(f"{origin}: job", key, JOB_DEFAULT_KEYS))
        elif isinstance(value, (str, int, float)):
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            found[name] = JobDefault(text, f"{origin}: job.{key}")
        else:
            raise ConfigError(f"{origin}: job.{key} must be a word or a number, not {value!r}")
    return found


def _with_environment(config: Config, env: Mapping[str, str]) -> Config:
    warnings = list(config.warnings)
    sections: Dict[str, Any] = {"sharing": config.sharing, "slurm": config.slurm}
    variables = {
        f"GPUMEM_{name.upper()}_{key.upper()}": (name, key)
        for name in sections
        for key in sections[name]._fields
        if key not in _NOT_KEYS
    }
    known = [*variables, *("GPUMEM_" + key.upper().replace("-", "_") for key in JOB_KEYS)]
    for name, text in env.items():
        if not name.startswith("GPUMEM_"):
            continue
        if name in variables and text:
            section, key = variables[name]
            value: Any = int(text) if text.isascii() and text.isdigit() else text
            sections[section] = sections[section]._replace(**{key: _checked(name, key, value)})
        elif name not in known:
            # Other parts have variables of their own; only what looks like a slip is worth a line.
            near = _nearest(name, known, cutoff=0.85)
            if near:
                warnings.append(f"environment: {name} is not known; did you mean {near}?")
    return config._replace(**sections, warnings=tuple(warnings))


def _unknown(origin: str, key: str, known: Tuple[str, ...]) -> str:
    near = _nearest(key, list(known), cutoff=0.5)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return f"{origin}: unknown key {key!r}; {hint}"


def _nearest(name: str, known: List[str], cutoff: float) -> Optional[str]:
    import difflib

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)
