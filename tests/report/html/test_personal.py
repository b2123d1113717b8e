"""A researcher's own page, and everybody's page without names."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

from slurm_gpumem.accounting.types import WHOLE
from slurm_gpumem.report.html.numbered import numbered
from slurm_gpumem.report.html.page import page
from tests.accounting.made_jobs import job, made_jobs, source, summary


def words(text: str) -> str:
    """What a reader sees, without markup, the script and its data."""
    body = re.sub(r"<(script|style).*?</\1>", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def own_page(rows: Any) -> str:
    return words(page(replace(source(rows), personal=True)))


def test_it_says_what_to_do_next_of_each_kind_of_job() -> None:
    rows = [job(number, peak_mib=7_000) for number in (1, 2)]
    shown = own_page(rows)
    assert "What the next runs could do better" in shown
    assert re.search(r"resnet50, batch 128, adam, fp32.* 7 shards would have done.*2 jobs, last 2", shown)


def test_a_sweep_is_one_block_with_its_spread() -> None:
    rows = [
        job(10 + task, array_job=10, array_task=task, peak_mib=8_192 + 1_024 * task, run_s=600.0 * (task + 1))
        for task in range(3)
    ]
    shown = own_page([*rows[:2], rows[2]._replace(state="FAILED")])
    assert re.search(r"10 \(3 tasks\) resnet50 2 COMPLETED, 1 FAILED", shown)
    assert "peak 8.0G to 10.0G, median 9.0G" in shown
    assert "ran 00:10:00 to 00:30:00, median 00:20:00" in shown


def test_what_sharing_cost_is_measured_between_runs_of_the_same_kind() -> None:
    alone = [job(n, companions=(), run_s=1_000.0) for n in (1, 2)]
    beside = [job(n, companions=(99,), run_s=1_100.0) for n in (3, 4)]
    assert "beside others it took 1.10 times as long as alone (medians of 2 and 2 runs;" in own_page(
        [*alone, *beside]
    )


def test_what_was_not_measured_is_not_claimed() -> None:
    assert "how much longer they took is not known" in own_page([job(1, companions=(99,))])
    assert "nothing that was measured: no job met another" in own_page([job(1, companions=())])


def test_what_sharing_gained_is_gpu_hours_and_shorter_waits() -> None:
    rows = [job(n, wait_s=60.0) for n in (1, 2)] + [
        job(n, wait_s=600.0, sharing=WHOLE, shards=None) for n in (3, 4)
    ]
    shown = own_page(rows)
    assert "jobs that share waited 00:01:00 in the queue, jobs with a whole GPU 00:10:00" in shown
    assert re.search(r"GPU-hours left for others and for your next jobs", shown)


def test_on_ones_own_page_there_is_no_list_of_users_and_on_everybodys_no_advice() -> None:
    rows = made_jobs(60)
    assert "Where granted memory stays unused" not in own_page(rows)
    everybody = words(page(source(rows)))
    assert "Where granted memory stays unused" in everybody
    assert "What sharing gained and cost" not in everybody


def test_without_names_no_user_is_named_anywhere_in_the_file() -> None:
    rows = [
        row._replace(
            user=f"secret-{row.user}", model="" if row.job_id % 3 else row.model, job_name="secret-run"
        )
        for row in made_jobs(60)
    ]
    text = page(numbered(source(rows)))
    assert "secret" not in text
    assert "user 1" in text
    assert "most by job" not in text
    assert "Users are numbered" in words(text)
    assert "secret-usr1" in page(source(rows))
    assert "secret-run" in page(source(rows))


def test_the_page_of_a_hundred_thousand_own_jobs_is_bounded() -> None:
    rows = [
        job(n, model=f"model{n % 1000}", array_job=n // 10, array_task=n % 10, run_s=float(n % 7 + 1))
        for n in range(20_000)
    ]
    assert len(page(replace(source(rows), personal=True))) < 1_500_000
    assert summary(rows).jobs == 20_000
