"""From one version to the other and back, part by part, while jobs run: make test-upgrade."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Set, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.node.conftest import REPOSITORY, samplers_of
from tests.recovery.conftest import hurried, make_site, needs_root
from tests.support.waiting import until
from tests.upgrade.mixed import KINDS, NEW, OLD, PARTS, TASKS, MixedSite

pytestmark = [pytest.mark.slurm, needs_root]
FIRST, _, LAST = os.environ.get("GPUMEM_TEST_ORDERS", "1-1").partition("-")
ORDERS = range(int(FIRST), int(LAST or FIRST) + 1)
SEED = int(os.environ.get("GPUMEM_TEST_SEED", "1"))
OLD_TREE = os.environ.get("GPUMEM_TEST_OLD_TREE", "")
USUAL = re.compile(
    r"sampler: |requeued|asks for|array \d+: |prolog gave up|is \w+ \(|is RUNNING|runs again|no longer"
)
"""What hooks and samplers say on an ordinary day."""


INSTALL = (REPOSITORY / "docs" / "admin" / "install.md").read_text(encoding="utf-8")
LET_GO = re.search(r"^squeue .*hold=.*$", INSTALL, re.MULTILINE)[0]


@pytest.fixture(scope="module")
def mixed(make_module_cluster: Callable[..., Cluster]) -> Iterator[MixedSite]:
    nodes = (NodeSpec("n1"), NodeSpec("n2"))
    lua = str(REPOSITORY / "lua" / "job_submit.lua")
    made = make_site(make_module_cluster, nodes=nodes, cli_filter=True, accounting=True, job_submit_lua=lua)
    with hurried(made) as site:
        yield MixedSite(site, {OLD: Path(OLD_TREE), NEW: REPOSITORY})


@dataclass
class Way:
    """What was submitted on the way from one version to the other, and what came of it."""

    site: MixedSite
    version: str
    steps: Sequence[str]
    draw: random.Random
    at_start: Set[Tuple[int, int]] = field(default_factory=set)
    jobs: Dict[str, str] = field(default_factory=dict)
    """Number of each job and kind of it."""
    said: List[str] = field(default_factory=list)
    remembered: int = 0
    """Submissions whose share came from earlier runs."""
    waited: int = 0
    """Arrays that nobody would have let go."""

    def outcome(self) -> List[str]:
        """What was lost on it."""
        try:
            self.take()
            return [*self.lost_jobs(), *self.lost_records()]
        except AssertionError as error:
            # The next way begins with a site on which nothing runs and all parts are of one version.
            self.site.cluster.run(["scancel", *self.jobs])
            until(lambda: not self.waiting(), but=self.site.queue)
            for part in PARTS:
                self.site.change(part, self.version)
            return [" ".join(str(error).split())]

    def take(self) -> None:
        """Change one part after the other, with jobs of every age."""
        site, logged = self.site, len(self.site.logs())
        phases = []
        for number, step in enumerate(["", *self.steps]):
            part, _, killed = step.partition("!")
            phase = f"{self.version}{time.monotonic_ns()}"
            self.submit_all(phase, only=self.draw.sample(sorted(KINDS), 1) if part else tuple(KINDS))
            until(self.looked_at, 300, but=site.queue)
            if part:
                site.change(part, self.version)
                if part.startswith("n"):
                    self.end_sampler(part, killed=bool(killed))
                self.submit_all(phase, only=["sweep"])
            phases.append(phase)
            if number > 1:
                site.go(phases[number - 2])
        self.arrays()
        for phase in phases:
            site.go(phase)
        until(lambda: not self.waiting(), 600, but=lambda: f"{site.queue()}\n" + "\n".join(site.logs()[-30:]))
        self.said += [line for line in site.logs()[logged:] if not USUAL.search(line)]

    def submit_all(self, phase: str, only: Sequence[str]) -> None:
        for kind in only:
            job, said = self.site.submit(kind, f"{kind}.{phase}.{len(self.jobs)}", phase)
            self.jobs[job] = kind
            self.remembered += "remembered" in said
            self.said += [line for line in said.splitlines() if re.search("warning|fail|more than 3", line)]

    def looked_at(self) -> bool:
        """Whether each job runs, or Slurm says why not."""
        return " PENDING None" not in self.site.cluster.run(["squeue", "-h", "-a", "-o", "%F %T %r"]).stdout

    def waiting(self) -> str:
        return self.site.cluster.run(["squeue", "-h", "-a"], check=True).stdout.strip()

    def end_sampler(self, node: str, *, killed: bool) -> None:
        """What the new version's package does with a sampler of before: systemd restarts it; or a crash.

        One of 1.0 looks for another version by itself. After a crash on the way back a hook starts one.
        """
        for pid in samplers_of(self.site.root / "run" / node):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if killed or self.version == NEW:
                os.kill(pid, signal.SIGKILL if killed else signal.SIGTERM)
                until(lambda pid=pid: not Path(f"/proc/{pid}/cmdline").exists())
            if self.version == NEW:
                env = dict(word.split(b"=", 1) for word in environ if word)
                subprocess.Popen(words, env=env, cwd="/", start_new_session=True)

    def arrays(self) -> None:
        """No array waits for ever: nodes of 1.0 let them go; from 0.1's the page's command does."""
        if self.version == NEW:
            until(
                lambda: not self.site.arrays_that_wait(running=True),
                300,
                but=lambda: self.site.queue() + "\n".join(self.site.logs()[-20:]),
            )
            return
        self.waited = len(self.site.arrays_that_wait())
        self.site.cluster.run(["sh", "-c", LET_GO], check=False)
        until(lambda: not self.site.arrays_that_wait(), but=self.site.queue)

    # -- what came of it

    def slurms(self) -> Dict[str, str]:
        """The final state of each job and task, by Slurm's accounting."""
        rows = self.site.cluster.run(
            ["sacct", "-a", "-X", "-n", "-P", "-o", "JobID,State", "-j", ",".join(self.jobs)], check=True
        ).stdout
        return dict(row.split("|") for row in rows.splitlines())

    def lost_jobs(self) -> List[str]:
        expected = {
            name
            for job, kind in self.jobs.items()
            for name in ([f"{job}_{task}" for task in range(TASKS)] if kind == "sweep" else [job])
        }
        # slurmdbd hears of an end a little later.
        with suppress(AssertionError):
            until(
                lambda: expected <= {name for name, state in self.slurms().items() if state == "COMPLETED"},
                60,
            )
        found = self.slurms()
        ended = {name: found.get(name, "unknown to Slurm") for name in expected}
        return [f"job {name} is {state}" for name, state in ended.items() if state != "COMPLETED"]

    def lost_records(self) -> List[str]:
        """Runs without a record, or without an end in it; jobs that the current version does not report."""
        began = set(self.site.began())
        new = began - self.at_start
        until(lambda: new <= set(self.site.recorded()), 60, but=lambda: str(new - set(self.site.recorded())))
        until(lambda: not self.open_records(), 120, but=lambda: "\n".join(self.open_records()))
        collected = self.site.gpumem("controller", "collect", "--older", "1s")
        self.said += _unusual(collected)
        everybody, own = (
            self.site.gpumem("client", "report", "--all-time", "--json", user=user)
            for user in (None, "nobody")
        )
        self.said += [*_unusual(everybody), *_unusual(own)]
        jobs, users = (
            {job["job_id"]: job for job in json.loads(one.stdout)["jobs"]} for one in (everybody, own)
        )
        states = {job: jobs[job]["state"] for job, _ in new if job in jobs}
        self.said += [
            f"{job} is reported as {state}" for job, state in states.items() if state != "COMPLETED"
        ]
        missing = began - set(self.site.recorded())
        unseen = {job for job, _ in began} - (set(jobs) & set(users))
        return [f"{job}.{run}: no record" for job, run in sorted(missing)] + [
            f"{job}: not reported" for job in sorted(unseen)
        ]

    def open_records(self) -> List[str]:
        spool = self.site.root / "records"
        return [path.name for path in spool.glob("*.json") if not json.loads(path.read_text()).get("end")]


def _unusual(done: subprocess.CompletedProcess[str]) -> List[str]:
    return [*(done.stderr.splitlines()), *([f"exit {done.returncode}"] if done.returncode else [])]


def _short(line: str) -> str:
    """What is alike in lines of a kind: without times, paths, numbers and what is known besides."""
    line = re.sub(r"^\S+T\S+ (\[\d+\] )?|/tmp/\S+/|; known: [^(]*", "", line)
    return re.sub(r"\d+", "N", re.sub(r"'\w+' ?", "", line) if "unknown key" in line else line)


def _order(draw: random.Random) -> List[str]:
    """The parts in some order; "!": the node's sampler is ended, as a package's script does."""
    parts = draw.sample(PARTS, len(PARTS))
    return [part + "!" * (part.startswith("n") and draw.random() < 0.5) for part in parts]


@pytest.mark.skipif(not OLD_TREE, reason="needs the tree of an earlier version: make test-upgrade")
def test_no_job_and_no_record_is_lost_in_any_order(mixed: MixedSite) -> None:
    lost: List[str] = []
    columns = ("", "order", "jobs", "runs", "lost", "arrays let go", "remembered", "s", "messages")
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for number in ORDERS:
        draw = random.Random(f"{SEED} {number}")
        for version in (NEW, OLD):
            way = Way(mixed, version, _order(draw), draw, at_start=set(mixed.began()))
            began = time.monotonic()
            lost_here = way.outcome()
            lost += lost_here
            messages = Counter(map(_short, way.said))
            cells = (
                f"{number} {version}", " ".join(way.steps), len(way.jobs),
                len(set(mixed.began()) - way.at_start),
                len(lost_here), way.waited, way.remembered, round(time.monotonic() - began),
                "; ".join([*lost_here, *(f"{count}x {line}" for line, count in messages.items())]),
            )  # fmt: skip
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    assert not lost
