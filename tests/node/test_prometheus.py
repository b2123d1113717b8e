from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import JobRecord, Measurement
from slurm_gpumem.formats.live import live_from, read_live
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.sampler.prometheus import METRICS, Tally, load_tally, render
from tests.node.conftest import REPOSITORY
from tests.node.desk import GPUS, Desk
from tests.node.exposition import parse
from tests.support.timing import best_cpu_s, slowness
from tests.support.waiting import until

DASHBOARD = REPOSITORY / "docs" / "admin" / "grafana-dashboard.json"
PAGE = REPOSITORY / "docs" / "admin" / "monitoring.md"
UUID = GPUS[0].uuid
GIB = 1 << 30


def _live(user: str = "usr1", name: str = "card") -> Dict[str, Any]:
    return {
        "node": "n1",
        "at": 1_789_000_000.5,
        "source": "gpm",
        "gpus": {
            UUID: {
                "number": 0,
                "name": name,
                "other_mib": 66.0,
                "mps_clients": 1,
                "idle_s": 0.0,
                "memory_total_mib": 81_920.0,
                "memory_used_mib": 9_282.5,
                "sm_active": 0.5,
                "dram_active": 0.25,
                "utilization": 0.9,
                "power_w": 310.5,
            }
        },
        "jobs": {
            "4711": {
                "user": user,
                "mode": "mps",
                "gpus": [UUID],
                "estimate_mib": 9_000,
                "request_mib": 10_240,
                "restarts": 1,
                "shards": 10,
                "limit_mib": 10_240,
                "processes": 1,
                "energy_j": 12.5,
                "now_mib": {UUID: 9_216.0},
                "gpu": {UUID: {"peak_mib": 9_216.0, "sm_active_share": 0.25, "idle_s": 7.5}},
            }
        },
    }


def _full_tally() -> Tally:
    tally = Tally()
    tally.add(_ended("COMPLETED", 9_000, peak_mib=10_000, energy_j=5.0))
    tally.add(_ended("FAILED", 4, peak_mib=1)._replace(verdict="oom", restarts=1, exit_code=1))
    return tally


def _ended(state: str = "", estimate: int = 0, **measured: Any) -> JobRecord:
    claim = CommentRecord(estimate_mib=estimate)
    return JobRecord(1, 0, 0, "n1", 1.0, end=2.0, state=state, claim=claim, measured=Measurement(**measured))


def _render(live: Dict[str, Any], tally: Tally, **options: Any) -> str:
    return render(live_from(live), tally, running=True, **options)


def test_the_text_says_what_was_seen_in_bytes_and_parts_of_one() -> None:
    families = parse(_render(_live(), _full_tally()))
    assert set(families) == set(METRICS)
    job = {"node": "n1", "jobid": "4711", "gpu": "0", "uuid": UUID}
    assert families["gpumem_job_memory_bytes"].value(**job) == 9 * GIB
    assert families["gpumem_job_memory_limit_bytes"].value(jobid="4711") == 10 * GIB
    assert families["gpumem_job_sm_active_ratio"].value(**job) == 0.25
    assert families["gpumem_job_info"].value(user="usr1", mode="mps") == 1
    assert families["gpumem_gpu_memory_total_bytes"].value(gpu="0") == 80 * GIB
    assert families["gpumem_gpu_jobs"].value(uuid=UUID) == 1
    assert families["gpumem_gpu_mps_clients"].value(gpu="0") == 1
    assert families["gpumem_runs_ended_total"].value(state="completed") == 1
    assert families["gpumem_runs_out_of_memory_total"].value() == 1
    assert families["gpumem_runs_restarted_total"].value() == 1
    ratio = families["gpumem_estimate_to_peak_ratio"]
    assert [ratio.value("_bucket", le=le) for le in ("0.8", "0.9", "1.0", "3.0", "+Inf")] == [0, 1, 1, 1, 2]
    assert ratio.value("_sum") == pytest.approx(4.9)


@pytest.mark.timing
def test_the_file_of_a_full_node_costs_little_to_make() -> None:
    live = _live()
    gpu, job = live["gpus"].pop(UUID), live["jobs"].pop("4711")
    live["gpus"] = {card.uuid: {**gpu, "number": card.number} for card in GPUS}
    for number in range(40):
        uuid = GPUS[number % 8].uuid
        places = {"gpus": [uuid], "now_mib": {uuid: 1.5}, "gpu": {uuid: {"peak_mib": 2.5}}}
        live["jobs"][str(number)] = {**job, **places}
    seen = live_from(live)
    best = best_cpu_s(lambda: render(seen, _full_tally(), running=True), 10)
    assert best < 0.015 * slowness()  # once in 15 s


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    live = _live()
    live["gpus"][UUID] = {"number": None, "name": "", "sm_active": None}
    live["jobs"]["4711"].update(limit_mib=None, now_mib={UUID: None}, gpu={}, energy_j=float("nan"))
    families = parse(_render(live, Tally()))
    assert families["gpumem_gpu_info"].value(gpu="") == 1
    for name in ("gpu_sm_active_ratio", "job_memory_limit_bytes", "job_memory_bytes", "job_energy_joules"):
        assert f"gpumem_{name}" not in families


@given(user=st.text(), name=st.text(), node=st.text(max_size=20))
def test_no_name_breaks_the_format(user: str, name: str, node: str) -> None:
    live = live_from(_live())
    job = live.jobs[4711]._replace(user=user)
    gpu = live.gpus[UUID]._replace(name=name)
    hostile = live._replace(node=node, jobs={4711: job}, gpus={UUID: gpu})
    families = parse(render(hostile, _full_tally(), running=True))
    shown = "".join(letter if letter.isprintable() else "?" for letter in user[:64])
    assert families["gpumem_job_info"].value(user=shown) == 1


def test_a_site_can_leave_the_users_out() -> None:
    assert "usr1" not in _render(_live(), Tally(), users=False)


def test_the_sampler_writes_the_file_whole_and_seldom(make_desk: Callable[..., Desk], tmp_path: Path) -> None:
    file = tmp_path / "gpumem.prom"
    desk = make_desk(prometheus_file=file)
    desk.job(1, claim=CommentRecord(estimate_mib=900, request_mib=1024))
    desk.hold({desk.process(1): 1000.0}, mps=True)
    desk.live()
    families = parse(file.read_text())
    assert families["gpumem_job_memory_bytes"].value(jobid="1", gpu="0") == 1000 * 1024 * 1024
    assert families["gpumem_job_estimate_bytes"].value(jobid="1") == 900 * 1024 * 1024
    assert families["gpumem_gpu_mps_clients"].value(gpu="0") == 1
    assert file.stat().st_mode & 0o777 == 0o644
    stamp = file.stat().st_mtime_ns
    for _ in range(5):
        desk.live()
    assert file.stat().st_mtime_ns == stamp
    assert [path.name for path in tmp_path.iterdir() if "prom" in path.name] == ["gpumem.prom"]


def test_a_folder_that_is_not_there_stops_no_measuring(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk(prometheus_file=Path("/nonexistent/gpumem.prom"))
    desk.job(1)
    desk.hold({desk.process(1): 1000.0})
    assert desk.live()["1"]["peak_mib"] == 1000.0
    assert "/nonexistent" in (desk.folder.root / "log").read_text()


def _end(desk: Desk, job_id: int, status: str, verdict: str = "") -> None:
    job = jobs.get(desk.folder, job_id)
    assert job is not None
    live = read_live(desk.folder.live)
    assert live is not None
    seen = live.jobs[job_id]
    opened = records.open_record(job, "n1")._replace(verdict=verdict)
    record = records.with_measurement(opened, seen.measured, seen.notes)
    store = desk.sampler.roster.store
    store.close(records.closed_record(record, end=time.time(), status=status), 1.0)
    store.flush(1.0)
    jobs.drop(desk.folder, job_id)


def test_jobs_that_ended_are_counted_once_also_by_the_next_sampler(
    make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    file = tmp_path / "gpumem.prom"
    desk = make_desk(
        squeue=f"echo 1 {os.getuid()} FAILED 0 0 1 gres:shard:1; "
        f"echo 2 {os.getuid()} RUNNING 0 0 1 gres:shard:1",
        prometheus_file=file,
    )
    for job_id in (1, 2):
        desk.job(job_id, claim=CommentRecord(estimate_mib=1200, request_mib=1024, shards=1))
    desk.hold({desk.process(1): 1000.0})
    desk.live()
    _end(desk, 1, "1:0", "oom")
    until(lambda: desk.live() and load_tally(desk.folder.counters).ended == {"failed": 1})
    _end(desk, 2, "0:0")
    desk.sampler.tick()
    desk.sampler.close()
    assert load_tally(desk.folder.counters).ended == {"failed": 1}
    desk.sampler = desk.new_sampler()
    until(lambda: desk.live() or load_tally(desk.folder.counters).ended == {"failed": 1, "completed": 1})
    desk.sampler.close()
    families = parse(file.read_text())
    assert families["gpumem_sampler_running"].value() == 0
    assert "gpumem_job_info" not in families
    assert families["gpumem_runs_ended_total"].value(state="completed") == 1
    assert families["gpumem_runs_out_of_memory_total"].value() == 1
    assert families["gpumem_estimate_to_peak_ratio"].value("_bucket", le="1.25") == 1
    desk.sampler = desk.new_sampler()
    desk.sampler.tick()
    assert sum(load_tally(desk.folder.counters).ended.values()) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema":"gpumem-counters/1","ratios":[1]}', '{"x":1}'])
def test_counts_that_cannot_be_read_start_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "counters.json").write_text(text)
    assert load_tally(tmp_path / "counters.json") == Tally()


@pytest.mark.parametrize(
    ("verdict", "hints", "said"),
    [
        ("oom", (), True),
        ("host", ("near-limit",), False),
        ("", ("near-limit",), False),
        ("", (), False),
    ],
)
def test_only_a_verdict_makes_a_run_one_that_ran_out_of_memory(
    verdict: str, hints: Tuple[str, ...], said: bool
) -> None:
    tally = Tally()
    tally.add(_ended()._replace(exit_code=1, verdict=verdict, hints=hints))
    assert tally.out_of_memory == said


def test_the_page_documents_every_name() -> None:
    assert set(re.findall(r"^\| `(gpumem_\w+)`", PAGE.read_text(), re.M)) == set(METRICS)


def _expressions(value: Any) -> List[str]:
    if isinstance(value, dict):
        keys = () if value.get("type") == "datasource" else ("expr", "definition", "query")
        own = [value[key] for key in keys if isinstance(value.get(key), str)]
        return own + [found for inner in value.values() for found in _expressions(inner)]
    return [found for inner in value for found in _expressions(inner)] if isinstance(value, list) else []


def test_the_dashboard_asks_only_for_metrics_and_labels_that_the_exporter_writes() -> None:
    text = _render(_live(), _full_tally())
    families = parse(text)
    samples = {name for family in families.values() for name, _ in family.samples}
    labels = {key for family in families.values() for _, have in family.samples for key, _ in have}
    expressions = _expressions(json.loads(DASHBOARD.read_text()))
    assert len(expressions) > 15
    for expression in expressions:
        asked = set(re.findall(r"gpumem_\w+", expression))
        assert asked <= samples, expression
        assert set(re.findall(r"(\w+)=~?\"", expression)) <= labels, expression
    shown = {name for expression in expressions for name in re.findall(r"gpumem_\w+", expression)}
    needed = ("job_memory_bytes", "gpu_mps_clients", "gpu_sm_active_ratio", "runs_out_of_memory_total")
    assert {f"gpumem_{name}" for name in (*needed, "runs_restarted_total")} <= shown


def test_the_sites_story_fits_the_first_screen_and_no_panel_covers_another() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = {panel["title"]: panel["gridPos"] for panel in panels}
    taken = [
        (x, y)
        for at in places.values()
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert len({panel["id"] for panel in panels}) == len(panels)
    story = ("GPU-hours saved", "GPUs: asked for, held, used", "Out of memory and what followed, per hour")
    assert all(places[title]["y"] + places[title]["h"] <= 13 for title in story)
