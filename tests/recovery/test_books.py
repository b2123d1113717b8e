"""What records and report say of every run of a job that Slurm ran again, on real daemons."""

from __future__ import annotations

import json
from typing import Callable, Dict, Iterator, List, Tuple

import pytest

from slurm_gpumem.accounting.store import open_store
from slurm_gpumem.accounting.types import Filters, JobDetail
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.report.job import job_lines
from tests.recovery.conftest import OOM, Site, hurried, make_site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

BEGIN = "echo begins; "
WAITS = "sleep 300 & wait $!"
# The later run is over before the sampler looks at it.
FIRST_ONLY = BEGIN + '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; '
SLOW = "trap 'sleep 9; exit 1' TERM; "
"""For longer than it takes a sampler to believe that a run is gone."""
JOBS: Dict[str, Tuple[str, ...]] = {
    "task": (FIRST_ONLY + OOM, "--array=3"),
    "requeued": (SLOW + FIRST_ONLY + WAITS,),
}
STATES = {
    "task": ["FAILED", "COMPLETED"],
    "requeued": ["REQUEUED", "COMPLETED"],
}


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    made = make_site(make_module_cluster, nodes=(NodeSpec("n1", gpus=1),))
    # As seldom as on a site, so that the next run is over by the next question.
    config = made.root / "gpumem.toml"
    config.write_text(config.read_text().replace("slurm_every_s = 1", "slurm_every_s = 10"))
    config.write_text(config.read_text().replace("idle_exit_s = 2", "idle_exit_s = 60"))
    with hurried(made) as running:
        yield running


@pytest.fixture(scope="module")
def details(site: Site) -> Dict[str, JobDetail]:
    """Every job after its last run, once Slurm has been asked about all of them."""
    jobs = {name: site.submit(script, *options, shards=8) for name, (script, *options) in JOBS.items()}
    until(lambda: site.runs(jobs["requeued"]) == 1)
    site.cluster.run(["scontrol", "requeue", jobs["requeued"]], check=True)
    for name, job in jobs.items():
        site.ended(f"{job}_3" if name == "task" else job, "COMPLETED")
    runs = sum(map(len, STATES.values()))
    until(
        lambda: list(states(site).values()).count("") == 0 and len(states(site)) == runs,
        but=lambda: f"{states(site)}",
    )
    root = site.root
    config = AccountingConfig(root / "records", root / "records", root / "index", root / "index")
    with open_store(config=config, join=False) as store:
        rows = {name: next(store.select(Filters(jobs=(int(job),)))) for name, job in jobs.items()}
        return {name: store.detail(row) for name, row in rows.items()}


def states(site: Site) -> Dict[str, str]:
    """Slurm's word in every record of a job of ours."""
    found = {path.name: json.loads(path.read_text()) for path in (site.root / "records").glob("*.json")}
    return {name: table["state"] or "" for name, table in found.items() if table["claim"]}


@pytest.mark.parametrize("name", JOBS)
def test_every_run_has_its_own_end(details: Dict[str, JobDetail], name: str) -> None:
    assert [run.state for run in details[name].runs] == STATES[name]
    assert details[name].row.state == "COMPLETED"
    ooms = STATES[name].count("FAILED")
    text = "\n".join(job_lines(details[name], 1024, unicode=False))
    assert f"{len(STATES[name])} runs, {ooms} out of memory" in text


def test_a_run_that_takes_its_time_to_end_is_not_taken_for_gone(
    site: Site, details: Dict[str, JobDetail]
) -> None:
    logs: List[str] = [path.read_text() for path in (site.root / "run").glob("*/log")]
    assert not [text for text in logs if "was not finished" in text]
    first, second = details["requeued"].runs
    assert (first.exit_code, second.exit_code) == (0, 0)


def test_a_task_that_came_back_is_the_same_task_in_both_runs(
    site: Site, details: Dict[str, JobDetail]
) -> None:
    job = str(details["task"].row.job_id)
    tasks = {site.record(job, run)["array_task"] for run in (0, 1)}
    assert tasks == {3}
