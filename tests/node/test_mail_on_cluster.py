"""The mail at a job's end, from the real slurmctld through our wrapper to the site's program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from slurm_gpumem.report.mail import mail_lines
from tests.node.conftest import REPOSITORY, needs_root
from tests.node.real_site import Site
from tests.support.waiting import until

MAIL = ("--mail-type=ALL", "--mail-user=anna@example.org")
CLAIM = "mine gpumem/1:est=1500,req=2048,by=traced,model=resnet50,batch=8"


@needs_root
@pytest.mark.slurm
def test_the_mail_says_what_the_job_needed_and_why_it_failed(make_site: Callable[..., Site]) -> None:
    site = make_site()
    hold = "gpumem-standin --peak 1200 --steps 4 --seconds 2"
    good = site.submit(hold, shards=3, comment=CLAIM, options=MAIL)
    bad = site.submit(f"{hold}; exit 3", shards=3, comment=CLAIM, options=MAIL)
    plain = site.submit("exit 4", shards=3, comment="", options=MAIL)
    ended = {
        job: until(lambda: site.mails(f"={job} Name=wrap {word}"), timeout_s=120)[0]  # noqa: B023
        for job, word in ((good, "Ended"), (bad, "Failed"), (plain, "Failed"))
    }
    (began,) = until(lambda: site.mails(f"={good} Name=wrap Began"), timeout_s=120)
    for mail in (*ended.values(), began):
        assert mail[1] == "3"
        assert mail[3] == "anna@example.org"
    about = f"GPU memory of resnet50, batch 8 (gpumem report {good}):"
    said = ["  estimate   1.5 GiB", "  need       2.0 GiB, 3.0 GiB given", "  peak       1.2 GiB"]
    assert ended[good][4:] == [about, *said, "  next time  the same"]
    assert ended[bad][5:] == [
        *said,
        "  Its program ended with exit code 3, at 1.2 GiB of its 3.0 GiB.",
        "  next: its log says why: nothing that was measured does",
    ]
    assert ended[plain][4:] == began[4:] == []


class Wrapped:
    """mail.sh with a mail program that notes what it gets."""

    def __init__(self, root: Path, python: str) -> None:
        self.root = root
        shutil.copy(REPOSITORY / "prolog" / "mail.sh", root)
        program = root / "program"
        program.write_text(
            f'#!/bin/sh\nfor word; do echo "<$word>"; done >{root}/args; cat >{root}/text; exit 7\n'
        )
        program.chmod(0o755)
        (root / "hooks.conf").write_text(
            f"python={python}\nsite_config={root}/gpumem.toml\nnext_mail={program}\n"
        )
        (root / "gpumem.toml").write_text(f'[node]\nspool = "{root}/spool"\n')

    def send(self, *words: str, text: str = "", **variables: str) -> List[str]:
        """The text that the program got."""
        env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_JOB_UID": "71001", **variables}
        done = subprocess.run(
            ["/bin/sh", self.root / "mail.sh", *words], input=text, env=env, text=True, check=False
        )
        assert done.returncode == 7
        assert (self.root / "args").read_text() == "".join(f"<{word}>\n" for word in words)
        return (self.root / "text").read_text().splitlines()


ENDED = {
    "SLURM_JOB_MAIL_TYPE": "Ended",
    "SLURM_JOB_STATE": "COMPLETED",
    "SLURM_JOB_COMMENT": CLAIM,
    "SLURM_JOB_NODELIST": "n1",
    "SLURM_JOB_RESTART_COUNT": "0",
}
SUBJECT = ("-s", "Slurm Job_id=1 Name=$(touch /tmp/x) 'a b' \"c\"\n~! Ended", "-x", "anna@b.org")


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_COMMENT": ""},
        {"SLURM_JOB_MAIL_TYPE": "Began"},
        {"SLURM_JOB_COMMENT": "gpumem/1"},
        {"SLURM_JOB_COMMENT": "$(touch x) gpumem/1:est=`id`;rm"},
    ],
)
def test_what_is_not_ours_goes_through_as_it_came(tmp_path: Path, changes: Dict[str, str]) -> None:
    wrapped = Wrapped(tmp_path, sys.executable)
    text = wrapped.send(*SUBJECT, text="as it\nwas\n", **{**ENDED, **changes})
    assert text[:2] == ["as it", "was"]
    assert len(text) == 2 or "not known" in text[4]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("python", ["/nonexistent", "/bin/false"])
def test_a_mail_goes_out_when_ours_fails(tmp_path: Path, python: str) -> None:
    assert Wrapped(tmp_path, python).send(*SUBJECT, text="as it was\n", **ENDED) == ["as it was"]


@pytest.mark.parametrize("nodes", ["n1", "n[1-", "", "n9"])
def test_without_a_record_that_may_be_read_the_mail_says_so(
    tmp_path: Path, nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = mail_lines({**ENDED, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": nodes}, [])
    assert lines[1:] == [
        "  estimate   1.5 GiB",
        "  need       2.0 GiB",
        "  peak       not measured, or not readable here",
    ]
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.0.n1.json").mkdir()
    wrapped = Wrapped(tmp_path, sys.executable)
    monkeypatch.setattr("slurm_gpumem.report.mail._CLOSING_S", 0.0)
    if nodes == "n1":
        assert wrapped.send(*SUBJECT, **ENDED)[1:] == lines[1:]
