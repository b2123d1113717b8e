"""A site in mode "known" on which arrays start with one task, and a user who submits some there."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

import pytest

from slurm_gpumem.data import HOOKS_CONF
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.formats.comment import CommentRecord, parse_record
from tests.node.conftest import kill, samplers_of
from tests.recovery.conftest import OOM, Site, hurried, make_site
from tests.support.site_toml import site_toml
from tests.support.slurm_daemons import restart_slurmctld
from tests.support.waiting import until

SCRIPT = """\
#!/bin/bash
{head}
# {name}
d={folder}; t=$SLURM_ARRAY_TASK_ID
echo $t >> $d/began
of() {{ cat $d/$1.$t 2>/dev/null || cat $d/$1; }}
until [ -e $d/mem ] || [ -e $d/mem.$t ] || [ -e $d/end.$t ]; do sleep 0.1; done
gpumem-standin --peak $(of peak) --steps 3000 --seconds 900 & p=$!
until [ -e $d/end ] || [ -e $d/end.$t ]; do
  if [ -e $d/late.$t -a -z "$q" ]; then gpumem-standin --peak $(of late) --steps 3000 --seconds 900 & q=$!; fi
  sleep 0.1
done
kill $p $q 2>/dev/null; wait
[ -e $d/oom.$t ] && rm $d/oom.$t && {{ {oom}; }}
exit $(of code)
"""


@dataclass(frozen=True)
class Sweep:
    """An array, and what its tasks are to do."""

    desk: SweepSite
    folder: Path
    job: str
    said: str

    def write(self, name: str, text: object = "") -> None:
        """`mem` lets all take memory, `end.3` ends task 3; `peak.3` is its MiB, `code.3` its exit."""
        (self.folder / name).write_text(f"{text}\n")

    def began(self) -> List[int]:
        """The tasks that have begun, in order, again where they began again."""
        path = self.folder / "began"
        return list(map(int, path.read_text().split())) if path.exists() else []

    def states(self) -> Dict[int, str]:
        """Of the tasks that Slurm has and that are not over."""
        rows = self.desk.cluster.run(["squeue", "-h", "-a", "-r", "-j", self.job, "-o", "%K %T"]).stdout
        return {int(row.split()[0]): row.split()[1] for row in rows.splitlines()}

    def released(self) -> None:
        """Let tasks go whose launch the killed controller did not hear of: Slurm holds any job for that."""
        rows = self.desk.cluster.run(["squeue", "-h", "-r", "-j", self.job, "-o", "%i %r"]).stdout
        for row in rows.splitlines():
            name, _, reason = row.partition(" ")
            if "requeued held" in reason:
                self.desk.cluster.run(["scontrol", "release", name])

    def running(self) -> Set[int]:
        return {task for task, state in self.states().items() if state == "RUNNING"}

    def shown(self, task: Optional[int] = None) -> Dict[str, str]:
        """What Slurm has of a task, or of those that have not begun."""
        name = self.job if task is None else f"{self.job}_{task}"
        text = self.desk.cluster.run(["scontrol", "-o", "show", "job", name]).stdout
        rows = [dict(word.split("=", 1) for word in row.split() if "=" in word) for row in text.splitlines()]
        waiting = [row for row in rows if row.get("JobState") == "PENDING"]
        return (waiting or rows or [{}])[0]

    def gres(self, task: Optional[int] = None) -> str:
        return self.shown(task).get("TresPerNode", "").replace("gres/", "").replace("gres:", "")

    def record(self, task: int) -> CommentRecord:
        name = f"{self.job}_{task}"
        comment = self.desk.cluster.run(["squeue", "-h", "-a", "-j", name, "-t", "all", "-o", "%k"]).stdout
        found = parse_record(comment)
        assert found is not None, comment
        return found

    def first_alone(self) -> None:
        """Only one task runs, and Slurm says of the others that they wait for it."""
        until(lambda: len(self.running()) == 1 and self.began(), but=self.how_it_is)
        until(lambda: self.shown().get("Reason") in ("JobArrayTaskLimit", "Dependency"), but=self.how_it_is)
        assert self.shown()["ArrayTaskThrottle"] == "1"

    def share(self, shards: int, at_least: int = 2) -> None:
        """Several run at once with so many shards, or wait for room with them."""
        until(
            lambda: (
                len(self.running()) >= at_least
                and any(self.gres(task).endswith(f":{shards}") for task in self.states())
            ),
            but=self.how_it_is,
        )

    def over(self) -> None:
        """All have ended; nobody waits forever."""
        for name in ("mem", "end"):
            self.write(name)
        until(lambda: not self.states(), 300, but=self.how_it_is)

    def how_it_is(self) -> str:
        queue = self.desk.cluster.run(
            [
                "squeue",
                "-a",
                "-j",
                self.job,
                "-O",
                "JobArrayID:20,State,Reason:30,tres-per-node:30,Comment:200",
            ]
        )
        return f"{queue.stdout}\n{self.shown()}\nbegan {self.began()}\n{self.desk.log()}"


class SweepSite:
    """The site, and a user's folder there."""

    def __init__(self, site: Site) -> None:
        self.site, self.cluster = site, site.cluster
        self.sweeps: List[str] = []
        python = site.root / "python" / "bin" / "python3"
        self.gpusbatch = [str(python), "-I", "-c", "from slurm_gpumem.cli.gpusbatch import main; main()"]
        (self.cluster.layout.conf / HOOKS_CONF).write_text(f"python={python}\n")
        # Who submits cannot write there, and the filter has three seconds.
        enter = self.cluster.layout.library / "enter-slurm-root"
        command = [*([str(enter)] if enter.exists() else []), str(python)]
        packages = str(site.root / "python" / "packages")
        subprocess.run([*command, "-m", "compileall", "-q", packages], env=self.cluster.env, check=True)
        path = self.cluster.layout.site_config
        path.unlink()
        path.symlink_to(site.root / "gpumem.toml")
        self.configure()

    def configure(self, **sharing: object) -> None:
        """Write gpumem.toml."""
        node = {
            "ledger": str(self.cluster.layout.ledger),
            "spool": str(self.site.root / "records"),
            "mps": "timeslice",
            "interval_s": 0.2,
            "slurm_every_s": 1,
            "record_every_s": 1,
            "pilot_steady_s": 1,
            "idle_exit_s": 2,
        }
        table = {"mode": "known", "shard_mib": 1024, **sharing}
        text = site_toml(node, recovery={"ladder": ["+100%", "whole-gpu"]}, sharing=table)
        (self.site.root / "gpumem.toml").write_text(text)

    def folder(self, name: str) -> Path:
        path = self.site.root / "out" / name
        path.mkdir()
        path.chmod(0o777)
        for file, text in (("peak", 5000), ("code", 0)):
            (path / file).write_text(f"{text}\n")
        return path

    def call(self, *words: str, user: str = "nobody", **how: Any) -> str:
        """What a user's command says; it must succeed."""
        done = self.cluster.run(words, user=user, cwd=Path("/"), **how)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def submit(
        self,
        name: str,
        *options: str,
        head: str = "#SBATCH --gres=gpu:1",
        program: str = "sbatch",
        user: str = "nobody",
        array: str = "--array=0-7",
        folder: Optional[Path] = None,
        env: Optional[Dict[str, str]] = None,
        script: Optional[Path] = None,
    ) -> Sweep:
        """An array of a script that is new by its name."""
        folder = folder or self.folder(name)
        if script is None:
            script = folder / "job.sh"
            script.write_text(SCRIPT.format(head=head, name=name, folder=folder, oom=OOM))
        words = [program] if program == "sbatch" else self.gpusbatch
        out = f"--output={folder}/out.%a"
        given = [array] if array else []
        argv = [*words, "--parsable", "--open-mode=append", out, *given, *options, str(script)]
        variables = {"GPUMEM_REMEMBERED": str(folder / "remembered.json"), **(env or {})}
        for _ in range(5):
            done = self.cluster.run(argv, user=user, cwd=Path("/"), env=variables)
            assert done.returncode == 0, done.stderr
            job = done.stdout.strip()
            if "took more than 3 seconds" not in done.stderr:
                break
            self.cluster.run(["scancel", job])  # a slow machine
        self.sweeps.append(job)
        return Sweep(self, folder, job, done.stderr)

    def log(self) -> str:
        """What samplers and recovery say."""
        logs = sorted((self.site.root / "run").glob("*/log"))
        return "\n".join([*(path.read_text() for path in logs), self.site.log()])

    def kill_samplers(self) -> int:
        return sum(map(kill, samplers_of(self.site.root / "run")))

    def saved(self) -> None:
        """Wait until the controller has written down what was submitted: Slurm does that once in a while."""
        now, state = time.time(), self.cluster.layout.controller / "job_state"
        until(lambda: state.exists() and state.stat().st_mtime > now)

    def restart_slurmctld(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Kill the controller and start another."""
        restart_slurmctld(self.cluster, signal.SIGKILL, meanwhile)

    def clear(self) -> None:
        if self.sweeps:
            self.cluster.run(["scancel", *self.sweeps])
        until(lambda: not self.cluster.run(["squeue", "-h", "-a"]).stdout.strip())
        self.sweeps.clear()


@pytest.fixture(scope="module")
def _module_sweep_site(make_module_cluster: Callable[..., Cluster]) -> Iterator[SweepSite]:
    with hurried(make_site(make_module_cluster, cli_filter=True, nodes=(NodeSpec("n1"),))) as site:
        yield SweepSite(site)


@pytest.fixture
def sweeps(_module_sweep_site: SweepSite) -> Iterator[SweepSite]:
    """One site for a module; every test has its scripts and cancels its jobs."""
    yield _module_sweep_site
    _module_sweep_site.clear()
    _module_sweep_site.configure()
    _module_sweep_site.kill_samplers()
