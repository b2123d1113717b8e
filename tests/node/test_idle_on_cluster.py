"""Idle jobs in a real Slurm: who rests is warned and cancelled, who loads, saves and waits is not."""

from __future__ import annotations

import re
from typing import Callable

import pytest

from tests.node.conftest import needs_root
from tests.node.real_site import Site
from tests.node.real_site import make_site as make_site
from tests.node.real_site import site as site
from tests.support.slurm_jobs import live_jobs
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

GPU = 40
"""Shards of a whole GPU: each job has its own."""
TIMES = {"start": "20s", "later": "20s", "interactive": "1h"}
PHASES = """
until [ -e {go} ]; do
    sleep 2
    gpumem-standin --peak 3000 --steps 8 --seconds 2 --sm 0
    gpumem-standin --peak 3000 --steps 8 --seconds 2 --sm 0.4
    date
done
"""


def _idle(site: Site, **options: object) -> int:
    return site.submit("gpumem-standin --peak 900 --steps 2 --seconds 900 --sm 0", shards=GPU, **options)  # type: ignore[arg-type]


def _log(site: Site) -> str:
    log = site.root / "run" / "log"
    return log.read_text() if log.exists() else ""


def _cancelled(site: Site, job: int) -> bool:
    return str(job) not in [line.split()[0] for line in site.queue()]


def _earlier(site: Site, uid: int) -> None:
    """The user has had an idle job before."""
    folder = site.root / "records" / ".idle"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / str(uid)).write_text("1.0.1\n")


def test_an_idle_job_is_warned_by_mail_and_on_its_stderr_and_then_cancelled_alone(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(on_idle="cancel", idle_after=TIMES, activity_every_s=0.5, idle_exit_s=200)
    _earlier(site, 65534)
    go = site.root / "go-phases"
    idle, unused = _idle(site), site.submit("sleep 900", shards=GPU)
    works = site.submit(PHASES.format(go=go), shards=GPU)
    until(
        lambda: _cancelled(site, idle) and _cancelled(site, unused),
        timeout_s=120,
        but=lambda: f"{site.queue()}\n{_log(site)}",
    )
    # The other had as many chances to be taken for idle.
    until(lambda: site.out(works).count("20") >= 6, timeout_s=120)
    assert not _cancelled(site, works)
    go.touch()
    until(lambda: not site.queue())
    for job in (idle, unused):
        warned = rf"job {job} has not used its GPU for \d+ s and is cancelled in \d+ s unless it does"
        assert re.search(warned, site.out(job)), site.out(job)
        kinds = [event["kind"] for event in site.record(job)["events"]]
        assert kinds == ["idle", "idle-ended"]
        until(lambda: site.record(job)["state"] == "CANCELLED")  # noqa: B023
    assert site.record(works)["events"] == []
    # One mail, as the user: two jobs of one hour are one mail.
    (mail,) = until(lambda: site.mails("has not used its GPU"))
    assert mail[:2] + mail[3:4] == ["nobody", "3", "nobody"]
    assert "gpumem report" in mail[6]


def test_the_first_idle_job_of_a_user_is_only_warned(make_site: Callable[..., Site]) -> None:
    site = make_site(on_idle="cancel", idle_after={"start": "4s"}, activity_every_s=0.5, idle_exit_s=200)
    (site.root / "records" / ".idle" / "1").unlink(missing_ok=True)
    job = _idle(site, user="daemon")
    out = site.root / "out" / str(job)
    said = "jobs of yours that do so again will be cancelled"
    until(lambda: out.exists() and said in out.read_text(), timeout_s=60, but=lambda: _log(site))
    seen = live_jobs(site.folder.live)[str(job)]
    assert [event["kind"] for event in seen["events"]] == ["idle"]
    assert not _cancelled(site, job)


def test_of_an_array_only_the_idle_task_is_cancelled(make_site: Callable[..., Site]) -> None:
    """The last task has the number of the whole array."""
    site = make_site(on_idle="cancel", idle_after={"start": "8s"}, activity_every_s=0.5, idle_exit_s=200)
    _earlier(site, 65534)
    busy, rest = (f"gpumem-standin --peak 900 --steps 2 --seconds 900 --sm {sm}" for sm in (0.5, 0))
    command = f"if [ $SLURM_ARRAY_TASK_ID = 0 ]; then {busy}; else {rest}; fi"
    options = ("--array=0-1", f"--output={site.root}/out/%A_%a")
    array = site.submit(command, shards=GPU, options=options)
    names = lambda: site.cluster.run(["squeue", "-h", "-r", "-o", "%i"], check=True).stdout.split()  # noqa: E731
    until(lambda: names() == [f"{array}_0"], timeout_s=60)
