"""`gpumem report` as people and programs call it."""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, List, Mapping, Sequence, Tuple

import pytest

from slurm_gpumem.accounting import sacct
from slurm_gpumem.accounting.collect import allow
from slurm_gpumem.accounting.store import open_store
from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.errors import UsageError
from slurm_gpumem.report import arrays
from slurm_gpumem.report import columns as known
from slurm_gpumem.report.listing import TableStyle, table_lines
from slurm_gpumem.report.times import parse_time
from slurm_gpumem.slurm.state.arrays import queued_tasks
from slurm_gpumem.slurm.state.sacct import parse_runs
from tests.accounting.job_records import UUID, record, write
from tests.accounting.made_jobs import job
from tests.support.fake_slurm import FakeSlurm
from tests.support.no_slurm import without_slurm

Report = Callable[..., Tuple[int, str, str]]
CODE = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main())"
HELD = "gpumem/1:shards=0,fp=s0123,hold=0,host=cpus"
HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "=cmd|' /C calc'!A0",
    '"quoted", with, commas',
    "<script>alert(1)</script>",
    "a|b\tc\nd\re",
    "@SUM(1+1)",
    "+1",
    "-2",
    "\u202egnp.exe",
    "'; DROP TABLE job; --",
    "x" * 500,
    "名前",
    "",
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site without Slurm: `tmp_path`/spool holds its records."""
    configure(tmp_path, monkeypatch)
    return tmp_path


def configure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "gpumem.toml").write_text(
        f'[node]\nspool = "{root}/spool"\n[devcluster]\nindex = "{root}/index"\n'
    )
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(root / "gpumem.toml"))
    monkeypatch.setenv("GPUMEM_INDEX", str(root / "index"))
    monkeypatch.setenv("GPUMEM_REMEMBERED", str(root / "remembered.json"))
    without_slurm(root, monkeypatch)
    (root / "spool").mkdir()


@pytest.fixture
def report(site: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    def call(*argv: str) -> Tuple[int, str, str]:
        capsys.readouterr()
        code = main(["report", *argv])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def hour_ago(job_id: int, **changes: Any) -> Any:
    start = time.time() - 7200
    return record(job_id, **{"start": start, "end": start + 3600, **changes})


@pytest.fixture
def three_jobs(site: Path) -> Path:
    """The three of the first screen that a user sees."""
    spool = site / "spool"
    write(spool, hour_ago(4711, met=[4712, 4714]))
    other = {"user": "usr2", "uid": 71002, "met": [4711], "peak_mib": 8500.0}
    bert = {"model": "bert", "est": "8294"}
    write(spool, hour_ago(4712, **other, claim=bert))
    oom = {"peak_mib": 10_200.0, "exit_code": 1, "state": None, "verdict": "oom", "limit_mib": 10_240}
    unet = {"model": "unet", "est": "9216", "req": "10000"}
    write(spool, hour_ago(4715, **oom, claim=unet, shards=10))
    whole = {"peak_mib": 14_540.0, "shards": None, "limit_mib": None, "start": time.time() - 3500}
    write(spool, hour_ago(4715, restarts=1, end=time.time() - 60, **whole, claim=unet))
    return site


def test_the_list_says_it_at_a_glance(three_jobs: Path, report: Report) -> None:
    code, out, err = report()
    lines = out.splitlines()
    assert code == 0
    assert " ".join(lines[0].split()) == "JobID User Model GPU Est Need Share Peak Err SM% With State Note"
    first = "4711 usr1 resnet50 a100 11.6G 12.7G 13.0G 11.3G +3% 40 4712,4714 COMPLETED"
    assert " ".join(lines[1].split()) == first
    assert "-2%" in lines[2]
    assert lines[3].endswith("COMPLETED OOM at 10.0G → whole GPU, finished")
    assert lines[4] == "--"
    assert lines[5].startswith("3 jobs: median error 3%, 1 took more than their need; ")
    assert "1 OOM recovered, 0 lost" in lines[5]
    assert max(map(len, lines[:4])) <= 115
    assert err == ""


def test_columns_are_chosen_as_with_sacct(three_jobs: Path, report: Report) -> None:
    _, out, _ = report("-o", "jobid,model%4,SM%,peak", "-n")
    assert out.splitlines()[0].split() == ["4711", "res+", "40", "11.3G"]
    _, out, _ = report("-P", "-o", "JobID,Waste,Energy,Elapsed", "-j", "4711")
    assert out == "JobID|Waste|Energy|Elapsed\n4711|1.7G|200 Wh|01:00:00\n"
    assert main(["report", "-o", "jobid,pek"]) == 2
    code, out, _ = report("--helpformat")
    assert (code, "Peak" in out.split()) == (0, True)


def test_json_and_csv_are_for_programs(three_jobs: Path, report: Report) -> None:
    table = json.loads(report("--json")[1])
    assert table["schema"] == "gpumem-report/1"
    assert [job["job_id"] for job in table["jobs"]] == [4711, 4712, 4715]
    assert table["jobs"][2]["recovered"] is True
    assert table["jobs"][0]["parts"]["activations"] == 9948
    rows = list(csv.DictReader(io.StringIO(report("--csv", "-l")[1])))
    assert (rows[0]["peak_mib"], rows[0]["error"], rows[0]["run_s"]) == ("11600", "0.0259", "3600.0")


def test_filters_narrow_the_list(three_jobs: Path, report: Report) -> None:
    assert report("-u", "usr2", "-n", "-o", "jobid")[1].split() == ["4712"]
    assert report("-s", "CD", "-m", "unet", "-n", "-o", "jobid")[1].split() == ["4715"]
    assert report("-S", "now-10minutes", "-n", "-o", "jobid")[1].split() == ["4715"]
    assert report("-S", "now+1hours", "-n", "-o", "jobid")[1].split() == []


def test_one_job_in_depth_has_curves_parts_and_advice(three_jobs: Path, report: Report) -> None:
    code, out, _ = report("-j", "4711")
    assert code == 0
    assert out.startswith("Job 4711 · usr1 · resnet50 (batch 128, adam, fp32)\n")
    for part in ("shared with 4712, 4714", "memory: peak 11.3G of 13.0G", "SM activity", "activations", "█"):
        assert part in out
    assert "advice: 12 shards would have done" in out
    assert max(map(len, out.splitlines())) <= 110
    table = json.loads(report("-j", "4711", "--json")[1])
    assert table["jobs"][0]["runs"][0]["gpus"][0]["curve"]["memory_mib"] == [500, 9000, None, 11_600]
    _, out, _ = report("-j", "4715")
    assert "run 1 on n1, 10 shards (10.0G): out of GPU memory" in out
    assert "run 2 on n1, whole GPU: COMPLETED" in out


def test_a_job_that_is_not_there_is_an_answer_no(three_jobs: Path, report: Report) -> None:
    code, out, err = report("-j", "99")
    assert (code, out) == (1, "")
    assert "no record of job 99" in err


def test_the_summary_answers_the_admin(three_jobs: Path, report: Report) -> None:
    code, out, _ = report("--summary")
    assert code == 0
    assert out.startswith("3 jobs of all time\n")
    for part in (
        "median error 3%",
        "GPU-hours instead of",
        "1 met, 1 job recovered, 0 lost",
        "a job,",
        "usr1",
    ):
        assert part in out
    by_user = report("--summary", "--by", "user")[1].splitlines()
    assert [line.split()[0] for line in by_user] == ["User", "usr1", "usr2", "--", "3"]
    table = json.loads(report("--summary", "--by", "model", "--json")[1])
    assert {one["group"] for one in table["groups"]} == {"resnet50", "bert", "unet"}
    assert table["total"]["jobs"] == 3


def test_an_observing_site_learns_what_sharing_would_save(site: Path, report: Report) -> None:
    for number in range(1, 4):
        claim = {"shards": "0", "mode": "observe"}
        write(site / "spool", hour_ago(number, shards=None, limit_mib=None, claim=claim))
    _, out, _ = report("--summary")
    assert "by their requests 3 observed jobs need 0.97 GPU-hours instead of 3.0 (68% less)" in out


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_in_every_format(site: Path, report: Report, name: str) -> None:
    hostile = {"user": name, "partition": name, "node": "n1", "notes": [name], "cluster": name}
    write(site / "spool", hour_ago(1, **hostile, claim={"model": name, "opt": name, "by": name}))
    columns = "JobID,User,Model,Partition,Cluster,Optimizer,Estimator,State"
    for argv in (
        [],
        ["-l"],
        ["-P", "-o", columns],
        ["-j", "1"],
        ["--summary"],
        ["--summary", "--by", "user"],
    ):
        code, out, err = report(*argv)
        assert code == 0, err
        assert all(line.isprintable() for line in out.split("\n"))
    _, out, _ = report("-P", "-o", columns)
    assert [line.count("|") for line in out.splitlines()] == [7, 7]
    for argv in (["--csv", "-o", columns], ["--summary", "--by", "user", "--csv"]):
        rows = list(csv.reader(io.StringIO(report(*argv)[1])))
        assert len({len(row) for row in rows}) == 1
        assert not any(
            text.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows[1:] for text in row
        )
    text = report("--json")[1]
    assert text.isascii()
    assert json.loads(text)["jobs"][0]["job_id"] == 1


def test_ascii_terminals_get_ascii(site: Path) -> None:
    for number in (4711, 4715):
        write(site / "spool", hour_ago(number, uid=os.geteuid(), claim={"model": "größer"}))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for argv in ([], ["-j", "4715"], ["--summary"]):
        done = subprocess.run(
            [sys.executable, "-c", CODE, "report", *argv],
            capture_output=True,
            env=env,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()


def test_bad_records_are_said_and_shown_on_request(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(1))
    torn = write(site / "spool", hour_ago(2), '{"schema":')
    err = report()[2]
    assert "1 record left out: 1 torn or no JSON" in err
    assert str(torn) in report("-v")[2]
    assert report("-n")[2] == ""


def test_no_records_at_all_says_where_they_should_be(site: Path, report: Report) -> None:
    code, _, err = report()
    assert code == 0
    assert f"no job records in {site}/spool" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["-S", "someday"],
        ["-S", "today", "-E", "yesterday"],
        ["-j", "x"],
        ["--by", "user"],
        ["--json", "--csv"],
    ],
)
def test_wrong_usage_is_one_message(site: Path, report: Report, argv: List[str]) -> None:
    code, out, err = report(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("gpumem: ")
    assert "Traceback" not in err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_a_user_sees_their_own_jobs_and_a_reader_of_the_sites_index_all(
    state_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, user = state_folder, pwd.getpwnam("nobody")
    configure(root, monkeypatch)
    monkeypatch.delenv("GPUMEM_INDEX")
    mine = write(root / "spool", hour_ago(1, user="nobody", uid=user.pw_uid))
    theirs = write(root / "spool", hour_ago(2))
    # As on a file system without access lists, where a whole group may read: still not one's own.
    for path in (mine, theirs):
        path.chmod(0o644)

    def seen() -> List[str]:
        capsys.readouterr()
        assert main(["report", "-n", "-o", "jobid"]) == 0
        return capsys.readouterr().out.split()

    assert seen() == ["1", "2"]
    own = root / "own"
    own.mkdir()
    os.chown(own, user.pw_uid, user.pw_gid)
    monkeypatch.setenv("GPUMEM_INDEX", str(own))
    monkeypatch.setenv("GPUMEM_REMEMBERED", str(own / "remembered.json"))
    os.seteuid(user.pw_uid)
    try:
        assert seen() == ["1"]
    finally:
        os.seteuid(0)
    assert allow(root / "index" / "index.sqlite", ["nobody", "nosuchuser"], []) == ("nosuchuser",)
    os.seteuid(user.pw_uid)
    try:
        assert seen() == ["1", "2"]
    finally:
        os.seteuid(0)


NOW = time.mktime((2026, 11, 15, 10, 30, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-14", (2026, 11, 14, 0, 0, 0)),
        ("2026-11-14T08:05", (2026, 11, 14, 8, 5, 0)),
        ("2026-11-14T08:05:06", (2026, 11, 14, 8, 5, 6)),
        ("1114", (2026, 11, 14, 0, 0, 0)),
        ("111425", (2025, 11, 14, 0, 0, 0)),
        ("11/14", (2026, 11, 14, 0, 0, 0)),
        ("11/14/25-08:05", (2025, 11, 14, 8, 5, 0)),
        ("08:05", (2026, 11, 15, 8, 5, 0)),
        ("8:05pm", (2026, 11, 15, 20, 5, 0)),
        ("today", (2026, 11, 15, 0, 0, 0)),
        ("yesterday", (2026, 11, 14, 0, 0, 0)),
        ("noon", (2026, 11, 15, 12, 0, 0)),
        ("now", (2026, 11, 15, 10, 30, 0)),
        ("now-2days", (2026, 11, 13, 10, 30, 0)),
        ("now-90minutes", (2026, 11, 15, 9, 0, 0)),
        ("2d", (2026, 11, 13, 10, 30, 0)),
        ("now-2hours", (2026, 11, 15, 8, 30, 0)),
        ("midnight", (2026, 11, 15, 0, 0, 0)),
        ("-7days", (2026, 11, 8, 10, 30, 0)),
        ("1week", (2026, 11, 8, 10, 30, 0)),
    ],
)
def test_times_are_read_as_sacct_reads_them(text: str, expected: Tuple[int, ...]) -> None:
    assert time.localtime(parse_time(text, NOW))[:6] == expected


@pytest.mark.parametrize(
    "text",
    ["", "2026-13-01", "2026-11-40", "now-3parsecs", "now-2months", "3monkeys", "99:99", "tuesday", "９"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_time(text, NOW)


def test_what_was_said_of_slowdowns_stands_beside_what_was_measured(site: Path, report: Report) -> None:
    claim = {"est": "11000", "req": "12000", "shards": "12", "said": "1.43+1.50"}
    for number, other in ((7, 8), (8, 7)):
        write(site / "spool", hour_ago(number, met=[other], claim=claim))
    _, out, _ = report("-P", "-n", "-o", "JobID,Said,AtMost")
    assert out == "7|1.43|1.50\n8|1.43|1.50\n"
    _, out, _ = report("-j", "7")
    assert "expected slowdown 1.4x, worst case 1.5x" in out
    write(site / "spool", hour_ago(9, claim={**claim, "said": "fast"}))
    _, out, _ = report("-P", "-n", "-o", "JobID,Said,AtMost", "-j", "9")
    assert out == "9||\n"


def test_a_running_job_that_nobody_has_measured_yet_is_not_called_alone(site: Path, report: Report) -> None:
    fresh = {"end": None, "state": None, "exit_code": None, "shards": None, "limit_mib": None}
    write(site / "spool", hour_ago(7, **fresh, peak_mib=None, gpu={}, met=[], claim={"req": "23000"}))
    _, out, _ = report("-j", "7")
    assert "its share is not measured yet, 22.5G needed" in out
    assert "whole GPU" not in out
    assert "alone" not in out
    write(site / "spool", hour_ago(8, **{**fresh, "shards": 23, "limit_mib": 23_552}, met=[]))
    _, out, _ = report("-j", "8")
    assert "23 shards (23.0G)" in out
    assert "alone on its GPU so far" in out


@pytest.mark.parametrize(("peak", "estimate"), [(1000, 1145), (100_000, 85_460), (100_000, 114_550)])
def test_a_row_and_the_line_below_it_round_to_the_same_percentage(
    site: Path, report: Report, peak: int, estimate: int
) -> None:
    write(site / "spool", hour_ago(1, peak_mib=float(peak), claim={"est": str(estimate)}))
    _, out, _ = report("-o", "Err")
    _, row, _, total = out.splitlines()
    assert f"median error {row.strip().lstrip('+-')}," in total


def test_a_state_that_does_not_exist_is_an_error_with_a_suggestion(three_jobs: Path, report: Report) -> None:
    code, _, err = report("-s", "RUNING")
    assert code == 2
    assert "unknown state 'RUNING'; did you mean 'RUNNING'?" in err
    code, _, err = report("-s", "PENDING")
    assert code == 2
    assert "squeue shows them" in err
    assert report("-s", "cd,failed", "-n", "-o", "jobid")[0] == 0


def test_the_gpu_is_the_one_it_ran_on_also_for_a_size_by_hand(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(1, claim={"gpu": "h100"}, gpu_name="NVIDIA A100-SXM4-40GB"))
    write(site / "spool", hour_ago(2, claim={"gpu": "", "by": "mem"}, gpu_name="stand-in A100"))
    assert report("-n", "-o", "gpu")[1].split() == ["a100", "a100"]


@pytest.fixture
def sweep(site: Path) -> Path:
    """An array of four tasks, whose last has the array's own number, between two other jobs."""
    write(site / "spool", hour_ago(20))
    for number, (job_id, peak) in enumerate([(12, 9000.0), (13, 11_600.0), (14, 10_000.0), (11, 12_800.0)]):
        end = {"exit_code": 1, "state": "FAILED"} if number == 3 else {}
        # In another order than their numbers, as they start on a busy cluster.
        start = time.time() - 7000 - (13 * number) % 7
        write(site / "spool", record(job_id, start=start, end=start + 60, peak_mib=peak, **end))
    write(site / "spool", hour_ago(21))
    with open_store() as store:
        rows = [
            {
                "job_id": job_id,
                "user": "usr1",
                "cluster": "site",
                "state": {"current": "FAILED" if job_id == 11 else "COMPLETED"},
                "array": {"job_id": 11, "task_id": number},
            }
            for number, job_id in enumerate([12, 13, 14, 11])
        ]
        sacct.apply(store.connection, [11, 12, 13, 14], parse_runs(json.dumps({"jobs": rows})))
    return site


def test_a_sweep_is_one_line_with_its_spread_unless_it_is_expanded(sweep: Path, report: Report) -> None:
    _, out, _ = report("-o", "JobID,Model,Est,Peak,Err,State,Note")
    lines = [line.split() for line in out.splitlines()[1:-2]]
    assert [line[0] for line in lines] == ["20", "21", "11_[0-3]"]
    folded = ["11_[0-3]", "resnet50", "11.6G", "8.8G..12.5G", "+3%..+32%", "mixed"]
    said = ["4", "tasks:", "3", "COMPLETED,", "1", "FAILED;", "2.5", "GPU-minutes", "saved"]
    assert lines[2] == [*folded, *said]
    _, out, _ = report("-n", "--array", "-o", "JobID,JobIDRaw")
    tasks = ["11_0 12", "11_1 13", "11_2 14", "11_3 11"]
    assert [" ".join(line.split()) for line in out.splitlines()] == ["20 20", "21 21", *tasks]
    assert "6 jobs" in report()[1]


ON = {"number": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40_960}
TASK = {"array_job": 11, "start": 1_000.0, "end": 4_600.0, "met": [99], "gpu": {UUID: ON}}
KNOWN = {"est": "8800", "req": "10560", "by": "remembered", "shards": "11", "hold": "0", "parts": ""}
UNKNOWN = {**KNOWN, "est": "", "req": "", "by": "", "shards": "0"}
FIRST = {**TASK, "array_task": 0, "claim": UNKNOWN, "shards": None, "limit_mib": None, "peak_mib": 8800.0}
SHARED = {**TASK, "claim": KNOWN, "shards": 11, "limit_mib": 11_264}
LATER = {**SHARED, "start": 4_600.0, "end": 8_200.0}


def sweep_of(site: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    for number, run in enumerate(runs):
        write(site / "spool", record(12 + number, **run))


@pytest.mark.parametrize(
    ("runs", "waits", "note", "mail"),
    [
        # What the first one took is what the others asked for; together on one GPU, one hour for three.
        (
            [
                FIRST,
                *({**LATER, "array_task": n, "peak_mib": 8000.0 + n} for n in (1, 2)),
            ],
            "",
            "3 tasks: 3 COMPLETED; 11_0 first: 8.6G",
            [
                "Array 11 of usr1, resnet50: 3 tasks",
                "  3 COMPLETED",
                "  first: 11_0 on a whole GPU (a100, 40.0G), peak 8.6G",
                "  the others: 11.0G each, up to 2 on one GPU, peaks 7.8G",
                "  2.0 used in 3.0 GPU-hours of run time; on whole GPUs: not known",
            ],
        ),
        # One passed its place on, one ran out of memory and again, one failed.
        (
            [
                {**FIRST, "state": "FAILED", "exit_code": 1, "end": 1_010.0, "peak_mib": 300.0},
                {**FIRST, "array_task": 1, "start": 1_010.0},
                {**SHARED, "array_task": 2, "state": None, "exit_code": 1, "verdict": "oom"},
                {**SHARED, "array_task": 3, "state": "FAILED", "exit_code": 1, "peak_mib": 100.0},
            ],
            "",
            "4 tasks: 1 COMPLETED, 3 FAILED; 11_1 first: 8.6G",
            [
                "Array 11 of usr1, resnet50: 4 tasks",
                "  1 COMPLETED, 3 FAILED (11_0, 11_2, 11_3)",
                "  first: 11_1 on a whole GPU (a100, 40.0G), peak 8.6G",
                "  the others: 11.0G each, up to 3 on one GPU, peaks 100M..11.3G",
                "  out of memory: 1 task, 0 run again, 0 of them completed",
                "  1.0 used in 3.0 GPU-hours of run time; on whole GPUs: not known",
            ],
        ),
        # The first one runs.
        (
            [{**FIRST, "end": None, "state": None, "exit_code": None}],
            f"11_0|RUNNING|{HELD}\n11_[1-9%1]|PENDING|{HELD}\n",
            "10 tasks: 1 RUNNING, 9 PENDING; measured first, the others wait for it",
            [
                "Array 11 of usr1, resnet50: 10 tasks",
                "  1 RUNNING, 9 PENDING",
                "  11_0 runs first on a whole GPU; 9 tasks wait until its peak stands still or it ends",
            ],
        ),
        # All were known: none was first.
        (
            [{**SHARED, "array_task": n, "peak_mib": 9000.0} for n in (0, 1)],
            "",
            "2 tasks: 2 COMPLETED",
            [
                "Array 11 of usr1, resnet50: 2 tasks",
                "  2 COMPLETED",
                "  all: 11.0G each, up to 2 on one GPU, peaks 8.8G",
            ],
        ),
    ],
)
def test_an_array_ends_with_a_summary_of_who_was_first_and_what_the_others_got(
    site: Path,
    report: Report,
    monkeypatch: pytest.MonkeyPatch,
    runs: List[Mapping[str, Any]],
    waits: str,
    note: str,
    mail: List[str],
) -> None:
    slurm = FakeSlurm({"squeue": waits})
    monkeypatch.setattr(arrays, "queued_tasks", lambda client, uid: queued_tasks(slurm, uid))
    sweep_of(site, runs)
    _, out, _ = report("-a", "-n", "-o", "Note")
    assert out.splitlines() == [note]
    _, out, _ = report("11")
    begin = out.index("Array 11 ")
    assert out[begin:].splitlines()[: len(mail)] == mail
    assert bool(slurm.asked) == bool(waits)


def test_what_an_array_saved_is_said_where_the_time_alone_is_known(site: Path, report: Report) -> None:
    together = {"gpu": {UUID: {**ON, "gpu_sm_active": 0.4, "slowed_s": 360.0}}}
    sweep_of(site, [{**SHARED, **together, "array_task": n, "peak_mib": 8000.0} for n in (0, 1)])
    assert report("-a", "-n", "-o", "Note")[1] == "2 tasks: 2 COMPLETED; 48.0 GPU-minutes saved\n"
    assert report("11")[1].endswith("\n  1.0 used instead of 1.8 GPU-hours on whole GPUs (44% less)\n")


def test_an_arrays_number_is_all_its_tasks_in_order_and_a_task_has_its_own(
    sweep: Path, report: Report
) -> None:
    assert report("-j", "11", "-n", "-o", "jobid")[1].split() == ["11_0", "11_1", "11_2", "11_3"]
    code, out, _ = report("-j", "11")
    assert (code, out.count("Job 11_")) == (0, 4)
    assert report("-j", "11_1,20", "-n", "-o", "jobid")[1].split() == ["11_1", "20"]
    code, out, _ = report("-j", "11_3")
    assert code == 0
    assert out.startswith("Job 11_3 ")
    assert [job["array_task_id"] for job in json.loads(report("-j", "11_2", "--json")[1])["jobs"]] == [2]
    code, out, err = report("-j", "11_9")
    assert (code, out.strip()) == (1, "")
    assert "no record of job 11_9" in err
    assert main(["report", "-j", "11_x"]) == 2


def test_a_node_knows_tasks_too_and_neighbours_have_the_names_that_slurm_gives_them(
    site: Path, report: Report
) -> None:
    for task, job_id in enumerate([12, 13, 11]):
        others = [other for other in (11, 12, 13) if other != job_id]
        made = hour_ago(job_id, array_job=11, array_task=task, met=[*others, 99])
        write(site / "spool", made)
    assert report("-j", "11", "-n", "-o", "JobID,With")[1].split() == [
        *("11_0", "11_1,11_2,99"),
        *("11_1", "11_0,11_2,99"),
        *("11_2", "11_0,11_1,99"),
    ]
    assert report("-j", "11_2")[1].startswith("Job 11_2 ")
    assert "most in job 11_" in report("--summary")[1]
    assert "shared with 11_0, 11_1, 99" in report("-j", "11_2")[1]
    # Slurm's accounting, without a word on arrays, takes nothing away; nor does a record that is read again.
    with open_store() as store:
        rows = [{"job_id": 11, "user": "usr1", "cluster": "site", "state": {"current": "COMPLETED"}}]
        sacct.apply(store.connection, [11], parse_runs(json.dumps({"jobs": rows})))
    assert report("-n", "-o", "JobID")[1].split() == ["11_[0-2]"]


@pytest.mark.parametrize("words", [["-j", ""], ["-u", ""], ["-s", " "], ["-S", ""], ["-m", ","]])
def test_an_empty_choice_is_refused_and_not_taken_for_everything(
    site: Path, report: Report, words: List[str]
) -> None:
    code, out, err = report(*words)
    assert (code, out) == (2, "")
    assert "is empty; without it, all are shown" in err


def test_a_user_that_the_system_does_not_know_is_said(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7))
    assert "no user nobdy on this system" in report("-u", "nobdy")[2]
    assert "on this system" not in report("-u", "nobody")[2]


def test_a_column_of_figures_is_no_wider_where_it_stands_last(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7, peak_mib=11600.0))
    assert report("-o", "JobID,Peak")[1].splitlines()[:2] == ["JobID  Peak", "7     11.3G"]


def test_a_jobs_name_is_never_cut_to_fit() -> None:
    rows = [job(123456789, array_job=123456789, array_task=123, model="m" * 60, user="u" * 60)]
    columns = known.columns("JobID,User,Model,GPU,Est,Req,Peak,Note")
    shown = list(table_lines(rows, columns, header=False, style=TableStyle(width=60)))
    assert shown[0].startswith("123456789_123 ")


def test_a_job_may_be_named_without_an_option(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7))
    assert report("7") == report("-j", "7")


def test_a_time_in_the_past_may_begin_with_a_minus(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7))
    for words in (["-S", "-7days"], ["--starttime", "-7days"], ["-S", "-2hours", "-E", "now"]):
        assert "\n7 " in report(*words)[1]
    assert "\n7 " not in report("-S", "-1minute", "-E", "now")[1]


def test_sizes_come_in_the_unit_that_was_asked_for(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7, peak_mib=11600.0))
    shown = {unit: report("-n", "-o", "Peak", "--units", unit)[1].split() for unit in ("MiB", "GiB", "GB")}
    assert shown == {"MiB": ["11600M"], "GiB": ["11.3G"], "GB": ["12.2GB"]}


def test_colours_come_on_a_terminal_or_when_asked_for(site: Path, report: Report) -> None:
    write(site / "spool", hour_ago(7))
    assert "\x1b" not in report()[1]
    assert report("--color", "always")[1].startswith("\x1b[1mJobID")


@pytest.mark.parametrize("width", [90, 100, 160])
def test_a_table_fits_the_terminal_and_its_figures_stay_whole(width: int) -> None:
    rows = [job(7, model="m" * 60, user="u" * 60, companions=tuple(range(40)), hints=("oom",))]
    columns = known.columns(known.DEFAULT)
    shown = list(table_lines(rows, columns, header=True, style=TableStyle(width=width)))
    assert max(map(len, shown)) <= width
    assert " 11.7G 13.0G " in shown[1]
