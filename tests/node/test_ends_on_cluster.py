"""Jobs that end in a real Slurm leave their MPS server first: their neighbours must not end with them."""

from __future__ import annotations

from typing import Callable

import pytest

from slurm_gpumem.devcluster.cluster import STATE_VARIABLE
from slurm_gpumem.node.gpus import standin_uuid
from slurm_gpumem.node.sampler.enforcer import LIMIT_VARIABLE
from tests.node.conftest import needs_root
from tests.node.real_site import Site
from tests.support.slurm_jobs import verified_peaks
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]
STANDIN = "gpumem-standin --peak 3000 --steps 2000 --seconds 600"


def _runs(site: Site, job: int) -> bool:
    """Whether the sampler knows the job's process and the task it belongs to."""
    clients = site.folder.clients_file(job)
    return str(job) in verified_peaks(site.folder.live) and clients.exists() and bool(clients.read_text())


def _client(site: Site, job: int) -> int:
    return int(site.folder.clients_file(job).read_text().split()[0])


def _left_server(site: Site, uid: int, pid: int) -> bool:
    """Whether MPS was told to let the process go."""
    log = site.as_seen_on_the_node(site.folder.log(standin_uuid("n1", 0), uid) / "control.log")
    return f" {pid}" in "".join(line for line in log.read_text().splitlines() if "terminate_client" in line)


@pytest.mark.parametrize("mode", ["per-user", "shared"])
def test_a_cancelled_job_leaves_its_mps_server_before_it_ends(
    make_site: Callable[..., Site],
    mode: str,
) -> None:
    site = make_site(mps=mode)
    neighbour, job = site.submit(STANDIN), site.submit(STANDIN)
    until(lambda: _runs(site, job) and _runs(site, neighbour))
    pid, uid = _client(site, job), 0 if mode == "shared" else 65534
    site.cluster.run(["scancel", str(job)], check=True)
    until(lambda: _left_server(site, uid, pid))
    until(lambda: not any(line.startswith(f"{job} ") for line in site.queue()))
    assert not _left_server(site, uid, _client(site, neighbour))
    assert any(line == f"{neighbour} RUNNING" for line in site.queue())


def test_a_handler_has_its_time_and_one_that_needs_longer_than_slurm_waits_is_taken_from_its_server(
    make_site: Callable[..., Site],
) -> None:
    site = make_site()
    neighbour, quick, job = (
        site.submit(f"{STANDIN}{more}") for more in ("", " --save-s 2; true", " --save-s 600; true")
    )
    until(lambda: all(_runs(site, one) for one in (neighbour, quick, job)))
    pid = _client(site, job)
    site.cluster.run(["scancel", str(quick), str(job)], check=True)
    until(lambda: _left_server(site, 65534, pid))
    until(lambda: site.queue() == [f"{neighbour} RUNNING"])
    assert "saved" in site.out(quick)
    # Its own error, and not Slurm's SIGKILL, ended it.
    assert "the MPS client has been terminated" in site.out(job)
    assert "saved" not in site.out(job)


def test_a_limit_that_a_process_lifts_itself_is_caught_by_its_memory(make_site: Callable[..., Site]) -> None:
    site = make_site(idle_exit_s=200)
    program = site.root / "out" / "lifts.py"
    layout = site.cluster.layout
    program.write_text(
        f"import os, sys\nsys.path.insert(0, '{layout.library}')\n"
        f"os.environ.update({{'{LIMIT_VARIABLE}': 'abc', '{STATE_VARIABLE}': '{layout.root}'}})\n"
        "from slurm_gpumem.devcluster.standin import main\n"
        "sys.exit(main(['--peak', '9000', '--steps', '2000', '--seconds', '600']))\n"
    )
    neighbour = site.submit(STANDIN)
    until(lambda: _runs(site, neighbour))
    job = site.submit(f"/usr/bin/python3 {program}", shards=4, comment="gpumem/1:est=3000,req=4096")
    until(lambda: not any(line.startswith(f"{job} ") for line in site.queue()))
    until(lambda: site.record(job)["state"] == "FAILED")
    record = site.record(job)
    assert [(event["kind"], event["with"]) for event in record["events"]] == [("overrun", [neighbour])]
    assert (record["mode"], record["shards"], record["shards_verified"]) == ("mps", 4, True)
    # /proc shows the variables that a process was started with.
    assert not [note for note in record["notes"] if "changed or removed" in note]
    assert any(line == f"{neighbour} RUNNING" for line in site.queue())
    assert not _left_server(site, 65534, _client(site, neighbour))
