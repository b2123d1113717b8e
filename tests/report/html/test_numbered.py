"""Everybody's page without names."""

from __future__ import annotations

from slurm_gpumem.report.html.page import numbered, page
from tests.accounting.made_jobs import made_jobs, source


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
    assert "Users are numbered" in text
    assert "secret-usr1" in page(source(rows))
    assert "secret-run" in page(source(rows))
