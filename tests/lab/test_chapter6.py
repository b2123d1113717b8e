from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from lab.chapter6 import published
from lab.chapter6.study import Results, main, own_traces, run_all
from lab.simulate.compare import values_of
from tests.docs.desk import ROOT, run_page
from tests.docs.pages import Screen, read_page, trimmed


@pytest.fixture(scope="module")
def results() -> Results:
    return run_all(own_traces(), published.experiments(), 2)


def _mean(results: Results, tasks: int, label: str, figure: str) -> float:
    values = values_of(results[tasks, label], figure)
    return sum(values) / len(values)


def _screens(module: str) -> List[Screen]:
    page = (ROOT / "lab" / "docs" / "reproduction.md").read_text(encoding="utf-8")
    found = [part for part in read_page(page) if isinstance(part, Screen)]
    return [screen for screen in found if module in screen.steps[0].command]


@pytest.mark.parametrize("module", ["lab.chapter6.study", "lab.chapter6.neighbours", "lab.chapter5.unseen"])
def test_the_page_shows_what_the_command_prints(module: str) -> None:
    own, *authors = _screens(module)
    printed = [trimmed(output) for _, output in run_page([own])]
    assert printed == [trimmed(own.steps[0].shown)]
    assert all(screen.not_run for screen in authors)


@pytest.mark.parametrize(("tasks", "light", "on_two_gpus"), [(60, 9, 3), (90, 58, 6)])
def test_the_traces_have_the_published_mix(tasks: int, light: int, on_two_gpus: int) -> None:
    jobs = own_traces()[tasks]
    assert len(jobs) == tasks
    assert sum(job.gpus == 2 for job in jobs) == on_two_gpus
    assert max(job.peak_mib for job in jobs) <= 28_672
    assert sum(job.peak_mib <= 2560 for job in jobs) == light
    assert set(jobs[0].estimates) == {"text", "trace", "horus", "faketensor", "gpumemnet", "gpumemnet-refit"}


def test_what_the_chapter_concludes_holds_in_the_simulation(results: Results) -> None:
    exclusive = _mean(results, 90, "exclusive", "makespan_s")
    mps = _mean(results, 90, "worst fit (OWF), MPS", "makespan_s")
    streams = _mean(results, 90, "worst fit (OWF), streams", "makespan_s")
    assert mps < streams < exclusive
    # Conditions and estimates prevent crashes.
    crashes = [_mean(results, 90, label, "crashes") for label in ("RR", "MAGM", "MAGM, SMACT 75 %, 5 GB")]
    assert crashes == sorted(crashes, reverse=True)
    assert _mean(results, 60, "RR, MPS", "crashes") > _mean(results, 60, "MAGM, GPUMemNet, 80 %", "crashes")
    # Time slices cost energy, MPS saves about what table 6.6 says.
    energy = {one.label: _mean(results, 60, one.label, "energy_mj") for one in published.HEAVY}
    assert energy["MAGM, GPUMemNet, 80 %"] < energy["exclusive"] < energy["RR, streams"]
    for one in published.HEAVY:
        if one.mj is not None:
            assert energy[one.label] / energy["exclusive"] == pytest.approx(one.mj / 33.198, abs=0.04)
    # No layout of MIG does as well as MPS.
    for one in published.SPLIT:
        hours = [_mean(results, one.tasks, label, "makespan_s") for label in (one.label, "slurm-pack, trace")]
        assert hours[0] > hours[1]
        assert all(run.refused == 0 for run in results[one.tasks, one.label].runs)


def test_the_authors_own_scripts_are_played_where_a_user_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workloads").mkdir()
    for name, gpus, mib in (("vgg", 1, 9000), ("BERT_base", 1, 12_000), ("gpt2_large_2", 2, 26_000)):
        lines = [*"abcdefg", str(gpus), str(mib), *(str(mib + more) for more in (500, 0, 1000))]
        (tmp_path / "workloads" / f"{name}.rad").write_text("\n".join(lines) + "\n")
    submit = "python src/submit.py --task workloads/{}.rad\nsleep 60\n"
    script = tmp_path / "replay.sh"
    script.write_text("".join(submit.format(name) for name in ("vgg", "gpt2_large_2", "BERT_base")))
    assert main(["--replay-60", str(script), "--seeds", "1"]) == 0
    text = capsys.readouterr().out
    assert str(script) in text
    assert "Tables 6.5, 6.6" in text
    # Nobody asked this project's estimators about the authors' tasks.
    assert "requests, 90 tasks" in text
    assert "requests, 60 tasks" not in text


def test_this_projects_requests_crash_nothing_on_the_published_traces(results: Results) -> None:
    for one in published.OURS:
        assert _mean(results, one.tasks, one.label, "crashes") == 0
