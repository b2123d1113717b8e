from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.accounting.types import Filters
from slurm_gpumem.cli.gpumem import main as gpumem
from slurm_gpumem.report.html.page import in_words
from tests.bench.make_records import records
from tests.support.no_slurm import without_slurm


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fifty records of a site without slurmdbd, the latest of today."""
    folder = tmp_path / "spool"
    folder.mkdir()
    for record in records(50, until=time.time()):
        record["uid"] = os.geteuid()  # who is not root sees their own
        name = f"{record['job_id']}.{record['restarts']}.{record['node']}.json"
        (folder / name).write_text(json.dumps(record))
    (tmp_path / "gpumem.toml").write_text(f'[node]\nspool = "{folder}"\n')
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
    monkeypatch.setenv("GPUMEM_INDEX", str(tmp_path / "index"))
    without_slurm(tmp_path, monkeypatch)
    return folder


def _data(text: str) -> Dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert found
    table: Dict[str, Any] = json.loads(found.group(1))
    return table


def test_it_writes_one_page_of_the_jobs_asked_for(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert gpumem(["report", "-a", "--html", str(page)]) == 0
    said = capsys.readouterr()
    assert (said.out, "50 jobs" in said.err) == ("", True)
    data = _data(page.read_text(encoding="utf-8"))
    assert data["timeline"]["jobs"] == 50
    assert all(stay[9] for stay in data["timeline"]["stays"]), "the curves of the records are in it"
    assert gpumem(["report", "-a", "-j", "7", "--html", str(page)]) == 0
    assert "1 job ·" in page.read_text(encoding="utf-8")
    assert "job 7" in page.read_text(encoding="utf-8")


def test_a_page_with_everybodys_jobs_is_its_owners_alone(spool: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert gpumem(["report", "-a", "--html", str(page)]) == 0
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_standard_output_and_devices_are_written_to_and_never_replaced(spool: Path, tmp_path: Path) -> None:
    code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", "-a", "--html"]
    done = subprocess.run([*command, "-"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<!doctype html>")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([*command, str(pipe)], stderr=subprocess.DEVNULL) as writer:
        assert pipe.read_text(encoding="utf-8").endswith("</html>\n")
        assert writer.wait(30) == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "{}"], "is a folder; name a file in it"),
        (["--html", "{}/missing/report.html"], "there is no folder"),
        (["--html", "x.html", "--json"], "choose one"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_work(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: List[str], message: str
) -> None:
    assert gpumem(["report", *(option.format(tmp_path) for option in options)]) == 2
    assert message in capsys.readouterr().err


def test_without_jinja2_it_says_what_to_install_before_the_work(
    spool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = tmp_path / "report.html"
    assert gpumem(["report", "-a", "--html", str(page)]) == 2
    assert "pip install jinja2" in capsys.readouterr().err
    assert not page.exists()
    assert gpumem(["report", "-a"]) == 0


def test_the_page_says_which_jobs_it_is_of() -> None:
    filters = Filters(users=("usr1", "usr2"), jobs=(7,), since=0.0)
    said = f"user usr1 or usr2, job 7, since {time.strftime('%Y-%m-%d %H:%M', time.localtime(0))}"
    assert in_words(filters) == said
    assert in_words(Filters()) == ""
