"""The screen of `gpumem top`: fits the terminal, clear without colours, safe whatever names jobs have."""

from __future__ import annotations

import re
from typing import Any, List, Tuple

import pytest

from slurm_gpumem.report.top.arrays import TopArray
from slurm_gpumem.report.top.own import TopGpu, TopJob, View
from slurm_gpumem.report.top.screen import Look, as_json, lines
from slurm_gpumem.terminal.colour import Palette
from slurm_gpumem.units import sizes_in

JOB = TopJob(
    4711, "4711", "resnet50", "usr1", "n1", (0,), 12, 12288.0, False, 11000, 8000.0, 9000.0, 0.41, 2, 14000.0,
    None, 1.15, 3492.0, 99.0,
)  # fmt: skip
UNSEEN = TopJob(4712, "4712_3", "eval", "usr1", "n2", shards=4, share_mib=4096.0)


def look(**changes: Any) -> Look:
    return Look(100, None, True, Palette())._replace(**changes)


def test_a_job_is_one_line_with_share_memory_activity_neighbours_slowdown_and_time() -> None:
    shown = "\n".join(lines(View(100.0, False, (JOB, UNSEEN)), look()))
    assert re.search(
        r"4711 .*resnet50 .*n1 +0 +12\.0G +7\.8G +8\.8G +41% +2 \(13\.7G\) +≤1\.15 +00:58:12  █", shown
    )
    assert re.search(r"4712_3 .*eval .*n2 +4\.0G", shown)
    assert "2 jobs of yours · measured 1 s ago" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_of_the_table_is_wider_than_the_terminal(width: int) -> None:
    long = JOB._replace(name="x" * 300, user="y" * 300)
    view = View(100.0, True, (long, UNSEEN), (TopGpu("n1", 0, 40, (("4711", "x" * 300, 12),)),), ("z" * 500,))
    shown = lines(view, look(width=max(width, 60)))
    assert max(map(len, shown[1:])) <= max(width, 60)


def test_a_terminal_that_is_low_shows_what_fits_and_says_how_many_more() -> None:
    many = tuple(JOB._replace(job_id=n, shown=str(n)) for n in range(100))
    gpus = tuple(TopGpu(f"n{n}", 0, 40, ((str(n), "x", 12),) if n < 50 else ()) for n in range(100))
    shown = lines(View(100.0, True, many, gpus), look(height=30))
    assert len(shown) <= 60
    assert any(re.fullmatch(r"and \d+ more jobs", line) for line in shown)
    assert any(re.match(r"\d+ more GPUs, 50 idle in all", line) for line in shown)


def test_a_job_close_to_its_share_is_marked_in_words_and_in_colour() -> None:
    view = View(100.0, False, (JOB._replace(peak_mib=12000.0), JOB._replace(now_mib=13000.0)))
    plain, coloured = lines(view, look(width=120)), lines(view, look(width=120, colours=Palette(True)))
    assert "close to its share" in plain[3]
    assert "over its share" in plain[4]
    assert "\x1b" not in "".join(plain)
    assert "\x1b[33m" in coloured[3]
    assert "\x1b[31m" in coloured[4]
    assert lines(view, look(width=80))[3].endswith("!")


def test_a_name_cannot_paint_the_screen_and_ascii_stays_ascii() -> None:
    shown = lines(View(1.0, False, (JOB._replace(name="\x1b[2Jevil\u202e"),)), look(unicode=False))
    assert "\x1b" not in "".join(shown)
    assert all(line.isascii() for line in shown)
    long = lines(View(1.0, False, (JOB._replace(name="名" * 30),), notes=("x" * 300,)), look(unicode=False))
    assert all(line.isascii() for line in long)


def test_sizes_come_in_the_unit_that_was_asked_for() -> None:
    def first(unit: str) -> str:
        with sizes_in(unit):
            return lines(View(1.0, False, (JOB,)), look())[3]

    assert " 8000M " in first("MiB")
    assert " 7.8G " in first("GiB")
    assert " 8.4GB " in first("GB")


def test_programs_get_numbers() -> None:
    table = as_json(View(100.0, True, (JOB,), (TopGpu("n1", 0, 40, (("4711", "a", 12),)),)))
    assert table["jobs"][0]["max_slowdown"] == 1.15
    assert table["gpus"][0]["held"] == [{"job": "4711", "name": "a", "shares": 12}]


def test_a_mig_instance_is_shown_by_its_profile_in_the_table_and_in_the_picture() -> None:
    job = JOB._replace(whole_gpu=True, shards=None, share_mib=16384.0, neighbours=0, profile="1g.18gb")
    gpus = (TopGpu("n1", 0, 139), TopGpu("n1", 1, 1, (("4711", "resnet50", 1),), "1g.18gb"))
    shown = "\n".join(lines(View(100.0, True, (job._replace(gpus=(1,)),), gpus), look()))
    assert re.search(r"4711 .*n1 +1:1g\.18gb +all 16\.0G", shown)
    assert re.search(r"\n +gpu1:1g\.18gb ▕█+ 4711 resnet50 ", shown)
    assert re.search(r"n1  gpu0 +▕", shown)


def task(number: int, **changes: Any) -> TopJob:
    return JOB._replace(**{"job_id": 20 + number, "shown": f"7_{number}", "name": "sweep", **changes})


FIRST = task(0, shards=40, share_mib=40960.0, peak_mib=9100.0, neighbours=0)
OTHERS = (
    task(1, gpus=(1,), peak_mib=9000.0),
    task(2, gpus=(1,), peak_mib=11900.0, now_mib=11800.0, left_s=60.0),
    task(3, gpus=(2,), node="n2", peak_mib=None, now_mib=None, sm_active=None),
)
WHOLE, SAVED = {"first": "7_0"}, {"used_s": 3600.0, "alone_s": 11160.0}


@pytest.mark.parametrize(
    ("jobs", "array", "row", "below"),
    [
        # Who stands for all: the task that is nearest to its share, and none that has a whole GPU.
        (
            (FIRST, *OTHERS),
            TopArray(7, 87, first_peak_mib=9100.0, **WHOLE),
            r"7 +sweep +n\[1-2\] +0,1,2 +12\.0G +11\.5G +8\.8G\.\.11\.6G +41% +≤1\.15 +00:58:12",
            ["  4 RUNNING, 87 PENDING; 7_0 first: 8.9G"],
        ),
        (
            (FIRST,),
            TopArray(7, 99, held=True, **WHOLE),
            r"7 +sweep +n1 +0 +40\.0G +7\.8G +8\.9G +41% +alone +≤1\.15 +00:58:12",
            ["  7_0 runs first; 99 tasks wait until its peak stands still or it ends"],
        ),
        (
            OTHERS[:1],
            TopArray(
                7,
                first_peak_mib=9100.0,
                ended=("COMPLETED", "FAILED"),
                peaks_mib=(13000.0,),
                **WHOLE,
                **SAVED,
            ),
            r"7 +sweep +n1 +1 +12\.0G +7\.8G +8\.8G\.\.12\.7G",
            ["  1 RUNNING, 1 COMPLETED, 1 FAILED; 7_0 first: 8.9G; 2.1 GPU-hours saved"],
        ),
        # What sharing lost is not called saved; an array that was known has no first task.
        (
            OTHERS[:2],
            TopArray(7, used_s=3600.0, alone_s=3000.0, ended=("COMPLETED",)),
            r"7 +sweep +n1 +1 +12\.0G +11\.5G +8\.8G\.\.11\.6G",
            ["  2 RUNNING, 1 COMPLETED"],
        ),
        # Of one task nothing is to be folded.
        (OTHERS[:1], TopArray(7), r"7_1 +sweep +n1 +1", []),
    ],
)
def test_an_array_is_one_row_with_what_waits_and_who_was_first(
    jobs: Tuple[TopJob, ...], array: TopArray, row: str, below: List[str]
) -> None:
    shown = lines(View(100.0, False, (UNSEEN, *jobs, JOB), arrays=(array,)), look(width=120))
    assert re.match(row, shown[4]), shown[4]
    assert [line for line in shown if line.startswith("  ")] == below
    assert len(shown) == 6 + len(below)
    each = lines(View(100.0, False, jobs, arrays=(array,)), look(width=120, each_task=True))
    assert [line.split()[0] for line in each[3 : 3 + len(jobs)]] == [job.shown for job in jobs]
    assert each[3 + len(jobs) :] == below
    for width in (60, 80):
        narrow = lines(View(100.0, False, jobs, arrays=(array,)), look(width=width, unicode=False))
        assert max(map(len, narrow)) <= width


def test_what_does_not_fit_is_counted_in_jobs_not_in_rows() -> None:
    arrays = tuple(TopArray(array, waiting=1) for array in range(1, 40))
    jobs = tuple(
        JOB._replace(job_id=array * 10 + n, shown=f"{array}_{n}") for array in range(1, 40) for n in (1, 2)
    )
    shown = lines(View(100.0, False, jobs, arrays=arrays), look(height=24))
    rows = sum(bool(re.match(r"\d+ +resnet50", line)) for line in shown)
    assert len(shown) <= 24
    assert shown[-1] == f"and {78 - 2 * rows} more jobs"
