"""Play a submission through lua/gpumem.lua with a Lua interpreter and read what came of it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

import pytest

LUA_FOLDER = Path(__file__).resolve().parents[2] / "lua"
PLAYER = Path(__file__).with_name("play_job.lua")
INTERPRETERS = ("lua5.1", "lua5.3", "lua5.4")

UNSET = {
    "min_nodes": 4294967294,
    "max_nodes": 4294967294,
    "num_tasks": 4294967294,
    "het_job_offset": 4294967294,
    "shared": 65534,
    "cpus_per_task": 65534,
    "ntasks_per_tres": 65534,
    "min_cpus": 1,
    "argc": 0,
}
"""What slurmctld shows to Lua for numbers that the user did not give."""

A100 = {"type": "a100", "shares": 40, "memory_mib": 40960}
A100_80 = {"type": "a100-80", "shares": 80, "memory_mib": 81920}
SITE: Dict[str, Any] = {
    "schema": 1,
    "mode": "opt-in",
    "gres": "shard",
    "shard_mib": 1024,
    "separator": ":",
    "default_partition": "gpu",
    "partitions": {"gpu": [A100], "cpu": [], "both": [A100, A100_80]},
}


@dataclass
class Played:
    """What the job looks like afterwards and what was said about it."""

    job: Dict[str, str] = field(default_factory=dict)
    env: Dict[str, str] = field(default_factory=dict)
    user: List[str] = field(default_factory=list)
    log: List[str] = field(default_factory=list)
    raised: List[str] = field(default_factory=list)
    ms: float = 0.0
    opened: int = 0


class Player:
    """Plays jobs with one version of Lua."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        if shutil.which(interpreter) is None:
            pytest.skip(f"{interpreter} is not installed")
        self.interpreter, self.folder = interpreter, folder

    def __call__(self, job: Dict[str, Any], lua_folder: Path = LUA_FOLDER, **case: Any) -> Played:
        case = {"site": SITE, "job": {**UNSET, **job}, **case}
        path = self.folder / "case.lua"
        path.write_text("return " + to_lua(case))
        done = subprocess.run(
            [self.interpreter, str(PLAYER), str(lua_folder), str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return _read(done.stdout)

    def untouched(self, job: Dict[str, Any], **case: Any) -> Played:
        """Play a job that must come out exactly as it went in."""
        played = self(job, **case)
        given = {**UNSET, **job}
        given.pop("script", None)
        environment = given.pop("environment", {})
        assert played.job == {key: str(value) for key, value in given.items()}
        assert played.env == environment
        return played


def _read(text: str) -> Played:
    played = Played()
    for line in text.splitlines():
        what, _, value = line.partition("\t")
        if what.startswith("job."):
            played.job[what[4:]] = value
        elif what.startswith("env."):
            played.env[what[4:]] = value
        elif what in ("ms", "opened"):
            setattr(played, what, float(value))
        elif what in ("user", "raised"):
            getattr(played, what).append(value)
        else:
            played.log.append(f"{what}: {value}")
    assert played.raised == []
    assert played.opened == 0
    return played


_ESCAPES = {byte: f"\\{byte:03d}" for byte in range(256) if not 32 <= byte < 127 or chr(byte) in '"\\'}


def to_lua(value: Any) -> str:
    """A Lua literal of plain Python data; of strings every byte survives."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.encode().decode("latin-1").translate(_ESCAPES) + '"'
    if isinstance(value, dict):
        return "{" + ",".join(f"[{to_lua(k)}]={to_lua(v)}" for k, v in value.items()) + "}"
    return "{" + ",".join(to_lua(item) for item in value) + "}"
