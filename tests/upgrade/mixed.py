"""A cluster whose client, controller and nodes each run one of two versions, changed one at a time.

A part is changed as a package manager does it: each file replaced by a rename, under programs that run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from tests.recovery.conftest import OOM, Site
from tests.support.site_toml import site_toml

HOSTS = ("client", "controller", "n1", "n2")
SETTINGS = "settings"
"""gpumem.toml, which a site has once."""
PARTS = (*HOSTS, SETTINGS)
OLD, NEW = "old", "new"
_WAITING = re.compile(r"(\d+) PENDING .*gpumem/1:(?:\S*,)?hold=(\d+)")
_HASTE = (
    ("lua/gpumem_filter.lua", "timeout -k 1 3 ", "timeout -k 1 120 "),
    ("slurm_gpumem/cli/cli_filter.py", "LIMIT_S = 3.0", "LIMIT_S = 120.0"),
)
_SYSTEM_PYTHON = "/usr/bin/python3"
_NEW_SHARING: Mapping[str, object] = {"pilot_wait": "30m"}
_NEW_NODE: Mapping[str, object] = {
    "on_idle": "warn",
    "idle_after": {"start": "3h", "later": "6h", "interactive": "8h"},
    "idle_except": {"partition": ["debug"], "user": [], "qos": []},
}
"""Settings that the old version does not know."""
TASKS = 3
"""Of a sweep."""


class Kind(NamedTuple):
    """A kind of job: how it is submitted, and what it does between its first line and its last."""

    options: Tuple[str, ...]
    mark: str = ""
    """A #GPUMEM line."""
    first: str = ""
    """NAME: its name, by which its script is one that never ran."""
    env: Mapping[str, str] = {}


_OOM_ONCE = f'[ -n "$SLURM_RESTART_COUNT" ] || {{ gpumem-standin --peak 4000 --steps 4 --seconds 1; {OOM}; }}'
KINDS: Mapping[str, Kind] = {
    # As the filter of plain sbatch lets it share, with a record.
    "share": Kind(("--gres=gpu:1",), "#GPUMEM mem=6G"),
    # Without a record, and without our filter having a word in it.
    "shards": Kind(("--gres=shard:4",)),
    # An array of which nothing is known: 1.0 starts one task and notes hold=.
    "sweep": Kind(("--gres=gpu:1", f"--array=0-{TASKS - 1}"), first=": NAME"),
    # The same script each time: remembered from its earlier runs.
    "known": Kind(("--gres=gpu:1",)),
    # It runs again with a larger share.
    "oom": Kind(("--gres=gpu:1", "--open-mode=append"), "#GPUMEM mem=5G", _OOM_ONCE),
    # It waits for the others to end, through whatever is changed meanwhile.
    "whole": Kind(("--gres=gpu:1",), env={"GPUMEM": "off"}),
}
_SCRIPT = """\
#!/bin/bash
{mark}
cd {root}
echo "$SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}}" >> out/began
{first}
gpumem-standin --peak 3000 --steps 3000 --seconds 900 & p=$!
until [ -e go/${{SLURM_JOB_NAME#*.}} ]; do sleep 0.2; done
kill $p; wait $p
echo "$SLURM_JOB_ID" >> out/done
"""


class MixedSite:
    """The site, and which part of it runs which version."""

    def __init__(self, site: Site, trees: Mapping[str, Path]) -> None:
        self.site, self.cluster, self.root = site, site.cluster, site.root
        self.now: Dict[str, str] = {}
        self._trees = {name: _clean_copy(tree, self.root / "trees" / name) for name, tree in trees.items()}
        for name in ("go", "store", "index", "records", "scripts"):
            (self.root / name).mkdir(exist_ok=True)
        for name in ("out", "cache"):
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name).chmod(0o1777)
        # What a user of a site has in their home.
        self._users = {"XDG_CACHE_HOME": f"{self.root}/cache", "GPUMEM_INDEX": f"{self.root}/cache/index"}
        hooks = self.root / "hooks"
        for path in hooks.glob("*.sh"):
            part = f"{self.root}/parts/${{SLURMD_NODENAME:-controller}}/hooks/{path.name}"
            path.write_text(f'#!/bin/sh\nexec "{part}" "$@"\n')
        toml = self.cluster.layout.site_config
        toml.unlink()
        toml.symlink_to(self.root / "gpumem.toml")
        for part in PARTS:
            self.change(part, OLD)

    # -- the parts

    def change(self, part: str, version: str) -> None:
        """Put this version in the place of the one that is there."""
        self.now[part] = version
        if part == SETTINGS:
            self._write_settings()
            return
        tree, folder = self._trees[version], self.root / "parts" / part
        _unpack(tree / "slurm_gpumem", folder / "packages" / "slurm_gpumem")
        _unpack(tree / "prolog", folder / "hooks")
        python = _environment(folder)
        (folder / "hooks" / "hooks.conf").write_text(
            f"python={python}\nsite_config={self.root}/gpumem.toml\nrun_dir={self.root}/run/$SLURMD_NODENAME\n"
            f"recovery_log={self.root}/recovery.log\nstate_dir={self.cluster.layout.controller}\n"
        )
        conf = self.cluster.layout.conf
        if part == "controller":
            for path in (tree / "lua").glob("gpumem*.lua"):
                if path.name != "gpumem_filter.lua":
                    _replace(path, conf / path.name)
            # slurmctld reads all of them again when this one is newer, as the package's script sees to.
            later = (conf / "job_submit.lua").stat().st_mtime + 10
            os.utime(conf / "job_submit.lua", (later, later))
        if part == "client":
            _replace(tree / "lua" / "gpumem_filter.lua", conf / "gpumem_filter.lua")
            (conf / "gpumem_command").write_text(f"{python} -I -m slurm_gpumem.cli.cli_filter\n")

    def _write_settings(self) -> None:
        new = self.now[SETTINGS] == NEW
        node = {
            "ledger": str(self.cluster.layout.ledger),
            "spool": str(self.root / "records"),
            "mps": "timeslice",
            "interval_s": 0.2,
            "slurm_every_s": 1,
            "record_every_s": 1,
            "idle_exit_s": 2,
            "index": str(self.root / "index"),
            "pilot_steady_s": 1,
            **(_NEW_NODE if new else {}),
        }
        text = site_toml(
            node,
            recovery={"ladder": ["+100%", "whole-gpu"]},
            sharing={"mode": "known", "shard_mib": 1024, **(_NEW_SHARING if new else {})},
            accounting={"dir": str(self.root / "store")},
        )
        draft = self.root / "gpumem.toml.new"
        draft.write_text(text)
        draft.replace(self.root / "gpumem.toml")

    def gpumem(self, part: str, *words: str, user: Optional[str] = None) -> subprocess.CompletedProcess[str]:
        """`gpumem` as that part has it."""
        python = str(self.root / "parts" / part / "bin" / "python3")
        argv = [python, "-I", "-c", "from slurm_gpumem.cli.gpumem import main; main()", *words]
        env = self._users if user else {}
        return self.cluster.run(argv, user=user, cwd=Path("/"), env=env, timeout_s=120)

    # -- the jobs

    def submit(self, kind: str, name: str, go: str) -> Tuple[str, str]:
        """A job of that kind, which ends when the file `go` is there; its number and what was said."""
        one = KINDS[kind]
        script = self.root / "scripts" / f"{'known' if kind == 'known' else name}.sh"
        first = one.first.replace("NAME", name)
        script.write_text(_SCRIPT.format(mark=one.mark, root=self.root, first=first))
        log = f"--output={self.root}/out/{name}.%j"
        argv = ["sbatch", "--parsable", "--mem=100", "-J", f"{kind}.{go}", log, *one.options, str(script)]
        done = self.cluster.run(
            argv, user="nobody", cwd=Path("/"), env={**self._users, **one.env}, timeout_s=240
        )
        assert done.returncode == 0, (name, done.stderr)
        return done.stdout.strip(), done.stderr

    def go(self, name: str) -> None:
        (self.root / "go" / name).touch()

    def began(self) -> List[Tuple[int, int]]:
        """Job and restarts of each run of a script."""
        path = self.root / "out" / "began"
        return [(int(a), int(b)) for a, b in (line.split() for line in _lines(path))]

    def recorded(self) -> Dict[Tuple[int, int], Path]:
        """Job and restarts of every run that has a record, in the spool or in a book."""
        found = {}
        for path in (self.root / "records").glob("*.json"):
            job, restarts = path.name.split(".")[:2]
            found[int(job), int(restarts)] = path
        for book in (self.root / "store").glob("*/*.jsonl"):
            for line in _lines(book):
                table = json.loads(line)
                found[table["job_id"], table["restarts"]] = book
        return found

    def queue(self) -> str:
        columns = "JobArrayID:20,Name:16,State:12,Reason:22,tres-per-node:26,NodeList:8,Comment:160"
        return self.cluster.run(["squeue", "-a", "-O", columns]).stdout

    def arrays_that_wait(self, *, running: bool = False) -> Dict[str, str]:
        """Arrays of which one task runs at a time until it is measured, and the limit of their users.

        `running`: only those whose task has begun.
        """
        rows = self.cluster.run(["squeue", "-h", "-a", "-o", "%F %T %k"]).stdout.splitlines()
        began = {row.split()[0] for row in rows if " RUNNING " in row}
        found = dict(match.groups() for row in rows if (match := _WAITING.match(row)))
        found = {job: limit for job, limit in found.items() if not running or job in began}
        limits = {job: self.cluster.run(["scontrol", "-o", "show", "job", job]).stdout for job in found}
        return {job: limit for job, limit in found.items() if "ArrayTaskThrottle=1 " in limits[job]}

    def logs(self) -> List[str]:
        """All that hooks, samplers and recovery wrote."""
        return [
            line
            for path in [*sorted((self.root / "run").glob("*/log")), self.root / "recovery.log"]
            for line in _lines(path)
        ]


def _lines(path: Path) -> List[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def _clean_copy(tree: Path, to: Path) -> Path:
    """What packages hold of a checkout, compiled: who runs it cannot write there."""
    ignore = shutil.ignore_patterns("__pycache__", "docs")
    for name in ("slurm_gpumem", "prolog", "lua"):
        shutil.copytree(tree / name, to / name, ignore=ignore)
    # Nobody waits for sbatch longer than that; on a slow machine jobs would go as they are.
    for name, limit, longer in _HASTE:
        text = (to / name).read_text()
        assert limit in text
        (to / name).write_text(text.replace(limit, longer))
    subprocess.run([_SYSTEM_PYTHON, "-m", "compileall", "-q", str(to / "slurm_gpumem")], check=True)
    return to


def _unpack(source: Path, target: Path) -> None:
    """The files of `source` in `target`, as by dpkg: all beside the old ones, then renames; the rest goes."""
    files = {path.relative_to(source) for path in source.rglob("*") if not path.is_dir()}
    for name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, _draft(target / name))
    for name in sorted(files):
        _draft(target / name).replace(target / name)
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif not path.is_dir() and path.relative_to(target) not in files and path.name != "hooks.conf":
            path.unlink()


def _replace(source: Path, target: Path) -> None:
    shutil.copy2(source, _draft(target))
    _draft(target).replace(target)


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".dpkg-new")


def _environment(folder: Path) -> Path:
    """A Python that any user may run, with what is unpacked there."""
    python = folder / "bin" / "python3"
    if not python.exists():
        for version in ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14"):
            site = folder / "lib" / f"python{version}" / "site-packages"
            site.parent.mkdir(parents=True)
            site.symlink_to(folder / "packages")
        python.parent.mkdir()
        python.symlink_to(_SYSTEM_PYTHON)
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return python
