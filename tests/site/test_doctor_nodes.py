"""The doctor on a whole site with real daemons: broken in several ways, host by host, and as a user.

test_doctor.py has every finding, test_probe.py everything that is found on a host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.slurm.client import parse_version
from tests.node.conftest import needs_root
from tests.support.slurm_daemons import restart_slurmctld
from tests.support.waiting import until
from tests.support.whole_site import GPUMEM, WholeSite, close_whole_site, make_whole_site

pytestmark = [pytest.mark.slurm, needs_root]
USER = 65534


@pytest.fixture(scope="module")
def whole(make_module_cluster: Callable[..., Cluster]) -> Iterator[WholeSite]:
    site = make_whole_site(make_module_cluster)
    yield site
    close_whole_site(site)


@pytest.fixture
def site(whole: WholeSite) -> Iterator[WholeSite]:
    yield whole
    whole.reset()


def said(answer: Dict[str, Any], check: str) -> List[str]:
    return [finding["what"] for finding in answer["findings"] if finding["check"] == check]


def test_a_broken_site_is_found(site: WholeSite) -> None:
    answer = site.doctor()
    assert (answer["findings"], answer["status"]) == ([], "ok")
    (site.hooks / "epilog.sh").chmod(0o777)
    os.chown(site.conf / "gpumem.lua", USER, USER)
    site.reconfigure(f"Prolog={site.hooks}/prolog.sh", "Prolog=/nowhere/prolog.sh")
    drain = ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=Prolog error"]
    site.cluster.run(drain, check=True)
    (
        site.conf / "job_submit.lua"
    ).unlink()  # last: slurmctld 24.11 does not read its configuration again without it
    answer = site.doctor()
    found = {(finding["severity"], finding["check"], finding["what"]) for finding in answer["findings"]}
    for severity, check, words in (
        ("critical", "hook-missing", "Prolog=/nowhere/prolog.sh does not exist"),
        ("critical", "not-only-root", f"everybody can change {site.hooks}/epilog.sh (mode 0777)"),
        ("critical", "not-only-root", "gpumem.lua belongs to user"),
        ("critical", "lua-missing", "job_submit.lua is not there"),
        ("warning", "nodes-down", "n1: Prolog error"),
    ):
        assert any(one[:2] == (severity, check) and words in one[2] for one in found), (words, found)
    assert (answer["status"], answer["exit_code"]) == ("critical", 2)
    site.toml.write_text("[sharing\n")
    assert any("is not valid TOML" in what for what in said(site.doctor(), "site-file"))


def node_with_other_files(site: WholeSite, name: str) -> List[str]:
    """A command that runs what follows in that node's own view: its hooks and package are an older copy."""
    old = site.root / "bin" / f"{name}-hooks"
    shutil.copytree(site.hooks, old)
    (old / "prolog.sh").chmod(0o777)
    (old / "task_epilog.sh").unlink()
    package = site.root / "bin" / f"{name}-package"
    shutil.copytree(site.package, package)
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.0.9"', text))
    mounts = f"mount --bind {old} {site.hooks} && mount --bind {package} {site.package}"
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]


def test_each_node_speaks_of_itself_and_those_that_are_alike_say_the_same(site: WholeSite) -> None:
    """`clush -b gpumem doctor --here` folds what is equal: the broken node stands out."""
    doctor = [GPUMEM, "doctor", "--here"]
    alike = {site.cluster.run(doctor).stdout for _ in range(2)}
    assert len(alike) == 1
    assert alike.pop().endswith(": this host is as it should be\n")
    broken = site.cluster.run([*node_with_other_files(site, "n2"), *doctor, "--json"])
    answer = json.loads(broken.stdout)
    assert said(answer, "hook-missing") == [f"TaskEpilog={site.hooks}/task_epilog.sh does not exist"]
    assert said(answer, "not-only-root") == [f"everybody can change {site.hooks}/prolog.sh (mode 0777)"]
    assert said(answer, "versions-differ")[0].startswith("the hooks run slurm_gpumem 0.0.9")
    assert "slurm_gpumem 0.0.9, files " in answer["summary"]
    assert (broken.returncode, answer["exit_code"]) == (2, 2)


def test_an_ordinary_user_is_told_what_was_not_seen(site: WholeSite) -> None:
    python = str(site.root / "python" / "bin" / "python3")
    argv = [python, "-I", "-m", "slurm_gpumem", "doctor", "--ignore", "mixed-jobs"]
    answer = site.cluster.run(argv, user="nobody", cwd=Path("/"))
    assert answer.stderr == ""
    assert answer.stdout.startswith("GPUMEM OK")
    assert "note not-asked: EpilogSlurmctld's sign of life: [Errno 13] Permission denied" in answer.stdout
    assert "only root can try to write there" in answer.stdout


def closed_interpreter(site: WholeSite) -> Path:
    python = site.root / "bin" / "closed" / "python3"
    python.parent.mkdir(mode=0o700)
    python.symlink_to(site.root / "python" / "bin" / "python3")
    site.hooks_conf.write_text(site.hooks_conf.read_text() + f"python={python}\n")
    return python


def test_what_an_ordinary_user_may_not_see_is_unknown_and_not_missing(site: WholeSite) -> None:
    python = closed_interpreter(site)
    ask = [str(site.root / "python" / "bin" / "python3"), "-I", "-m", "slurm_gpumem", "doctor"]
    ask += ["--ignore", "mixed-jobs"]

    def as_user() -> Tuple[int, str]:
        done = site.cluster.run(ask, user="nobody", cwd=Path("/"))
        assert done.stderr == ""
        return done.returncode, done.stdout

    code, text = as_user()
    assert f"unknown may-not-look: {python}: unknown (may not look; run as root)" in text
    assert (code, "critical" in text) == (3, False)
    prolog = site.hooks / "prolog.sh"
    prolog.chmod(0o700)
    code, text = as_user()
    assert f"{prolog}: unknown (may not look; run as root)" in text
    assert (code, "critical" in text) == (3, False)
    closed = python.with_name("prolog.sh")
    shutil.copy(prolog, closed)
    site.reconfigure(f"Prolog={prolog}", f"Prolog={closed}")
    code, text = as_user()
    assert f"{closed}: unknown (may not look; run as root)" in text
    assert (code, "critical" in text, "not on this host" in text) == (3, False, False)
    # Users run this one themselves: what they may not see they cannot run.
    site.hooks.chmod(0o700)
    assert f"TaskProlog={site.hooks}/task_prolog.sh: users cannot execute it" in as_user()[1]


def test_a_hook_that_was_only_reconfigured_is_found_and_a_restart_heals_it(
    make_cluster: Callable[..., Cluster],
) -> None:
    site = make_whole_site(make_cluster, without=("EpilogSlurmctld",), nodes=default_nodes(1))
    try:
        line = f"EpilogSlurmctld={site.hooks}/epilog_slurmctld.sh"
        site.reconfigure("PrologFlags=Alloc\n", f"PrologFlags=Alloc\n{line}\n")
        shown = site.cluster.run(["scontrol", "show", "config"]).stdout
        assert f"{site.hooks}/epilog_slurmctld.sh" in shown
        site.run_job()
        answer = site.doctor()
        # Measured: 22.05.8 never runs it. Whatever another version does, the doctor must know.
        runs = (site.cluster.layout.controller / "gpumem-epilog-slurmctld").exists()
        if parse_version(site.cluster.run(["sinfo", "--version"]).stdout) < (23, 2, 0):
            assert not runs
        found = [(f["check"], f["severity"]) for f in answer["findings"]]
        assert found == ([] if runs else [("recovery-not-run", "critical")])
        assert runs or "restart slurmctld" in answer["findings"][0]["fix"]

        restart_slurmctld(site.cluster)
        until(lambda: "idle" in site.cluster.run(["sinfo", "-h", "-o", "%T"]).stdout)
        site.run_job()
        assert site.doctor()["findings"] == []
    finally:
        close_whole_site(site)
