"""A whole site on a real cluster, and some ways to break it that the doctor must name.

test_doctor.py has every finding, test_probe.py everything that is found on a host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Dict, Iterator, NamedTuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from tests.node.conftest import needs_root
from tests.support.whole_site import WholeSite, close_whole_site, make_whole_site

pytestmark = [pytest.mark.slurm, needs_root]
USER = 65534


class Broken(NamedTuple):
    """What the doctor must say."""

    severity: str
    check: str
    words: str
    """In what it says."""
    how: Callable[[WholeSite], object]
    """Breaks a whole site."""


def append(path: Callable[[WholeSite], Path], text: str) -> Callable[[WholeSite], object]:
    """Add a line to a file of the site."""
    return lambda site: path(site).write_text(path(site).read_text() + text.format(root=site.root) + "\n")


def conf(key: str, value: str = "") -> Callable[[WholeSite], None]:
    """Another value of slurm.conf, or none, read by `scontrol reconfigure`."""

    def change(site: WholeSite) -> None:
        lines = site.cluster.layout.slurm_conf.read_text().splitlines()
        old = next(line for line in lines if line.startswith(f"{key}="))
        site.reconfigure(old, f"{key}={value}" if value else "")

    return change


def hooks_conf(text: str) -> Callable[[WholeSite], object]:
    return append(lambda site: site.hooks_conf, text)


def owned(path: Callable[[WholeSite], Path]) -> Callable[[WholeSite], object]:
    return lambda site: os.chown(path(site), USER, USER)


CASES: Dict[str, Broken] = {
    "hook path that does not exist": Broken(
        "critical",
        "hook-missing",
        "Prolog=/nowhere/prolog.sh does not exist",
        conf("Prolog", "/nowhere/prolog.sh"),
    ),
    "world-writable hook": Broken(
        "critical",
        "not-only-root",
        "everybody can change {root}/hooks/prolog.sh (mode 0777)",
        lambda site: (site.hooks / "prolog.sh").chmod(0o777),
    ),
    "broken TOML": Broken(
        "critical", "site-file", "is not valid TOML", lambda site: site.toml.write_text("[sharing\n")
    ),
    "one node drained by its Prolog": Broken(
        "warning",
        "nodes-down",
        "n1: Prolog error",
        lambda site: site.cluster.run(
            ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=Prolog error"], check=True
        ),
    ),
    "no job_submit.lua": Broken(
        "critical",
        "lua-missing",
        "job_submit.lua is not there",
        lambda site: (site.conf / "job_submit.lua").unlink(),
    ),
    "job_submit.lua of a user": Broken(
        "critical",
        "not-only-root",
        "job_submit.lua belongs to",
        owned(lambda site: site.conf / "job_submit.lua"),
    ),
}


@pytest.fixture(scope="module")
def whole(make_module_cluster: Callable[..., Cluster]) -> Iterator[WholeSite]:
    site = make_whole_site(make_module_cluster)
    yield site
    close_whole_site(site)


@pytest.fixture
def site(whole: WholeSite) -> Iterator[WholeSite]:
    """The whole site, whole again afterwards."""
    yield whole
    whole.reset()


def test_a_whole_site_is_ok_on_every_line(site: WholeSite) -> None:
    answer = site.doctor()
    assert (answer["findings"], answer["status"]) == ([], "ok")


@pytest.mark.parametrize("case", CASES)
def test_a_broken_site_is_found(case: str, site: WholeSite) -> None:
    broken = CASES[case]
    broken.how(site)
    answer = site.doctor()
    found = {(f["severity"], f["check"]): f["what"] for f in answer["findings"]}
    said = [
        f["what"]
        for f in answer["findings"]
        if (f["severity"], f["check"]) == (broken.severity, broken.check)
    ]
    assert any(broken.words.format(root=site.root) in what for what in said), found
    assert answer["exit_code"] == {"critical": 2, "warning": 1}[answer["status"]]
