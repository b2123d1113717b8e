"""The configuration of a submission: the site's file, the user's file and GPUMEM_* variables; later wins.

A wrong value is an error that names the file and the key, an unknown key a warning. The commands themselves
lay #GPUMEM lines and options on top. Values are NamedTuples, cheap to define: this is the submit path.
"""

# Annotations are evaluated here: of those that are strings, each NamedTuple compiles every one.

import os
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.kinds import Kind
from slurm_gpumem.config.paths import site_config_path, user_config_path
from slurm_gpumem.config.read import Reading, read_file
from slurm_gpumem.config.schema import DEVCLUSTER, JOB, JOB_KEYS, MODES, NODE, OLD_KEYS, SHARING, SLOTS, TRACE
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.text import near_names

_READ = (SHARING, JOB, TRACE, SLOTS)
ANY_SLOWDOWN = 100.0
"""The largest max_slowdown: none is too much, and activity stays out of the shares."""


class SharingPolicy(NamedTuple):
    """The `[sharing]` table: how far the site goes."""

    mode: str = SHARING.default("mode")
    gres: str = SHARING.default("gres")
    shard_mib: int = SHARING.default("shard_mib")
    min_host_mib: int = SHARING.default("min_host_mib")
    first_run_mib: Optional[int] = SHARING.default("first_run_mib")
    pilot_wait: int = SHARING.default("pilot_wait")
    unknown_activity: Optional[float] = SHARING.default("unknown_activity")
    coverage: Optional[float] = SHARING.default("coverage")
    max_slowdown: Optional[float] = SHARING.default("max_slowdown")
    partitions: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """The tables [sharing.partition.NAME]: other values of mode, coverage and max_slowdown."""
    node_mps: str = NODE.default("mps")
    """How jobs run on one GPU ([node] mps): users that take turns slow each other down more."""

    def mode_in(self, partitions: Iterable[str]) -> str:
        """The mode for a job that may run in these; the most careful of several."""
        found = [self.partitions.get(name, {}).get("mode", self.mode) for name in partitions]
        return min(found, key=MODES.index, default=self.mode)

    def coverage_in(self, partitions: Iterable[str]) -> Optional[float]:
        """The coverage that the site asks for in these; the highest of several, None where it sets none."""
        found = [self.partitions.get(name, {}).get("coverage", self.coverage) for name in partitions]
        return max((coverage for coverage in found if coverage is not None), default=None)

    def slowdown_in(self, partitions: Iterable[str]) -> Optional[float]:
        """The slowdown that the site accepts for a job that may run in these; the least of several."""
        found = [self.partitions.get(name, {}).get("max_slowdown", self.max_slowdown) for name in partitions]
        return min((float(limit) for limit in found if limit and limit < ANY_SLOWDOWN), default=None)


class TraceSettings(NamedTuple):
    """The `[trace]` table: where scripts are traced, and what a traced script may take."""

    default: bool = TRACE.default("default")
    where: str = TRACE.default("where")
    time_limit_s: float = TRACE.default("time_limit_s")
    memory_mib: int = TRACE.default("memory_mib")
    at_once: Optional[int] = TRACE.default("at_once")
    partition: Optional[str] = TRACE.default("partition")


class SlotPolicy(NamedTuple):
    """The `[slots]` table: time slots of jobs."""

    partitions: Mapping[str, int] = MappingProxyType({})
    """Seconds by partition, for jobs that do not say."""
    least_s: int = DEVCLUSTER.default("least_slot_s")


class JobDefault(NamedTuple):
    """One value of a [job] table and where it stood."""

    value: str
    origin: str


class Config(NamedTuple):
    """What a submission reads of the configuration."""

    sharing: SharingPolicy = SharingPolicy()
    trace: TraceSettings = TraceSettings()
    slots: SlotPolicy = SlotPolicy()
    job: Mapping[str, JobDefault] = MappingProxyType({})
    warnings: Tuple[str, ...] = ()


def load_config(environ: Optional[Mapping[str, str]] = None) -> Config:
    """The site's file, then the user's, then GPUMEM_SHARING_* variables."""
    env = os.environ if environ is None else environ
    config = Config()
    own = user_config_path()
    for path in (site_config_path(env), own):
        # What [node] says is the nodes' own to check; only its mode is of interest here.
        reading = read_file(path, (*_READ, NODE, DEVCLUSTER)).usable(*_READ)
        config = _merged(config, reading)
        if path == own or os.access(path, os.W_OK):  # a site's slips are told to those who can mend them
            config = config._replace(warnings=(*config.warnings, *reading.unknown(*_READ)))
    return _with_environment(config, env)


def job_variables(environ: Mapping[str, str]) -> Dict[str, Tuple[str, str]]:
    """What GPUMEM_BATCH_SIZE and its like say: key → (value, variable)."""
    names = {key: _variable(key) for key in JOB_KEYS}
    return {key: (environ[name], name) for key, name in names.items() if environ.get(name)}


def _merged(config: Config, reading: Reading) -> Config:
    sharing = dict(reading.table(SHARING))
    partitions = {**config.sharing.partitions, **sharing.pop("partition", {})}
    mps = reading.table(NODE).get("mps", "off")
    if mps != "off":
        sharing["node_mps"] = mps
    constants = reading.table(DEVCLUSTER)
    least = {"least_s": constants["least_slot_s"]} if "least_slot_s" in constants else {}
    job = {
        name: JobDefault(value, f"{reading.file}: job.{name}") for name, value in reading.table(JOB).items()
    }
    return config._replace(
        sharing=config.sharing._replace(**sharing, partitions=partitions),
        trace=config.trace._replace(**reading.table(TRACE)),
        slots=config.slots._replace(**reading.table(SLOTS), **least),
        job={**config.job, **job},
    )


def _with_environment(config: Config, env: Mapping[str, str]) -> Config:
    warnings: List[str] = list(config.warnings)
    sharing = config.sharing
    variables = {_variable(f"{SHARING.name}_{key.name}"): key for key in SHARING.keys}
    known = [*variables, *map(_variable, JOB_KEYS)]
    old = {_variable(f"{table}_{key}") for table in ("sharing", "slurm", "text") for key in OLD_KEYS[table]}
    gone = sorted(old.intersection(env))
    if gone:
        warnings.append(f"environment: no longer settings, and without effect: {', '.join(gone)}")
    for name, text in env.items():
        if not name.startswith("GPUMEM_") or name in old:
            continue
        if name in variables and text:
            key = variables[name]
            value: Any = int(text) if text.isascii() and text.isdigit() else text
            sharing = sharing._replace(**{key.name: _checked(name, key.kind, value)})
        elif name not in known:
            # Other parts have variables of their own; only what looks like a slip is worth a line.
            near = next(iter(near_names(name, known)), "")
            if near:
                warnings.append(f"environment: {name} is not known; did you mean {near}?")
    return config._replace(sharing=sharing, warnings=tuple(warnings))


def _variable(key: str) -> str:
    return "GPUMEM_" + key.upper().replace("-", "_")


def _checked(where: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.checked(value)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None
