"""EpilogSlurmctld killed before and after each of its steps.

Slurm's commands are wrapped: the wrapper kills whoever called it, when a file asks for it.
"""

from __future__ import annotations

import os
from typing import Callable, Iterator, List, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from tests.recovery.conftest import LONG, OOM, Site, hurried, let_go, make_site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

STEPS = ("requeuehold", "change", "release")
ALL_POINTS = tuple((step, moment) for step in STEPS for moment in ("before", "after"))
POINTS = ALL_POINTS if LONG else (("requeuehold", "after"), ("change", "after"))
SCRIPT = 'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] && exit; cat GO; ' + OOM
WRAPPER = """#!/bin/sh
name=${{0##*/}} job=$2 step=$1
if [ "$step" = update ]; then
    job=${{2#JobId=}}
    case "$*" in *Gres=*) step=change ;; esac
fi
parent() {{ sed 's/.*) . //' "/proc/$1/stat" | cut -d' ' -f1; }}
strike() {{
    rm -f "{folder}/$job"
    touch "{folder}/struck.$job"
    python=$PPID timeout=$(parent $PPID) shell=$(parent "$(parent $PPID)")
    [ "$how" = python ] || kill -9 "$shell" "$timeout"
    kill -9 "$python"
    exit 1
}}
moment='' how=''
if [ "$name" = scontrol ] && [ -r "{folder}/$job" ]; then
    read -r at moment how <"{folder}/$job"
    [ "$at" = "$step" ] || moment=''
fi
[ "$moment" = before ] && strike
"/usr/bin/$name" "$@"
code=$?
[ "$moment" = after ] && strike
exit $code
"""


@pytest.fixture(scope="module")
def trapped(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    site = make_site(make_module_cluster)
    folder, commands = site.root / "traps", site.root / "slurm-bin"
    for path in (folder, commands):
        path.mkdir()
    folder.chmod(0o1777)
    for name in ("scontrol", "squeue", "sinfo", "scancel"):
        (commands / name).write_text(WRAPPER.format(folder=folder))
        (commands / name).chmod(0o755)
    text = (site.root / "gpumem.toml").read_text()
    (site.root / "gpumem.toml").write_text(text.replace("[node]\n", f'[node]\nslurm_bin = "{commands}"\n', 1))
    with hurried(site):
        yield site


def submit_trapped(site: Site, points: Tuple[Tuple[str, str], ...], how: str) -> List[str]:
    """One job for each point, all of which fail at once when the traps are laid."""
    go = site.root / f"go-{how}"
    os.mkfifo(go)
    go.chmod(0o644)
    jobs = [site.submit(SCRIPT.replace("GO", str(go)), shards=8) for _ in points]
    for job, (step, moment) in zip(jobs, points):
        (site.root / "traps" / job).write_text(f"{step} {moment} {how}\n")
    # A job that reads it waits until somebody writes; all that wait go on together.
    until(lambda: all(site.runs(job) for job in jobs))
    until(lambda: let_go(go) and all("out of memory" in site.out(job) for job in jobs))
    return jobs


def finished_once(site: Site, job: str) -> None:
    shown = site.ended(job, "COMPLETED")
    assert (site.root / "traps" / f"struck.{job}").exists()
    assert (site.runs(job), shown["RestartCnt"]) == (2, "1")
    assert "retry=1,was=8,why=oom" in shown["Comment"]
    assert not shown["tres-per-node"].endswith("shard:8")


def test_killed_at_any_step_it_is_finished_by_the_same_hook(trapped: Site) -> None:
    jobs = submit_trapped(trapped, POINTS, "python")
    for job in jobs:
        finished_once(trapped, job)


def test_killed_with_its_shell_it_is_finished_by_the_next_hook_which_lifts_no_hold_of_users(
    trapped: Site,
) -> None:
    jobs = submit_trapped(trapped, POINTS, "all")
    until(lambda: all((trapped.root / "traps" / f"struck.{job}").exists() for job in jobs))
    until(lambda: not any(trapped.show(job)["State"] == "COMPLETING" for job in jobs))
    # Two whose hold is their user's own: one from the start, one after it failed.
    held = trapped.submit(f"echo begins; {OOM}", "--hold", shards=8)
    again = trapped.submit(f"echo begins; {OOM}", shards=8, oom="fail")
    trapped.ended(again, "FAILED")
    trapped.cluster.run(["scontrol", "requeuehold", again], user="nobody", check=True)
    following = trapped.submit(f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] || {{ {OOM}; }}', shards=8)
    for job in [*jobs, following]:
        trapped.ended(job, "COMPLETED")
    for job in jobs:
        finished_once(trapped, job)
    for job in (held, again):
        assert (trapped.show(job)["State"], trapped.show(job)["PriorityLong"]) == ("PENDING", "0")
    trapped.cluster.run(["scancel", held, again])
