"""What the packages hold: every file in exactly one of them, and the same version everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

import slurm_gpumem
from slurm_gpumem.config.node import run_dir
from slurm_gpumem.config.schema import NODE

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
DEBIAN = PACKAGING / "debian"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stage.sh puts in place, by a Python that has no other copy of the code."""
    folder = tmp_path_factory.mktemp("staged")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3").symlink_to(sys.executable)
    environ = {"PATH": f"{bin_folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    dest = folder / "dest"
    subprocess.run([str(PACKAGING / "stage.sh"), str(dest)], cwd=ROOT, env=environ, check=True)
    return dest


def _files(folder: Path) -> Set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or path.is_file()
    }


def _debian_lists() -> Dict[str, List[str]]:
    return {
        path.stem: [line.split()[0] for line in path.read_text().splitlines() if line]
        for path in sorted(DEBIAN.glob("*.install"))
    }


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or name.startswith(f"{pattern.rstrip('/')}/")


def test_every_file_is_in_exactly_one_debian_package(staged: Path) -> None:
    lists = _debian_lists()
    for name in _files(staged):
        found = [package for package, entries in lists.items() if any(_covers(e, name) for e in entries)]
        assert len(found) == 1, f"{name}: {found}"


def test_every_line_of_a_debian_list_names_something(staged: Path) -> None:
    python = {"usr/bin", "usr/lib/python3*"}
    for package, entries in _debian_lists().items():
        for entry in set(entries) - python:
            if package != "slurm-gpumem-doc":
                assert any(_covers(entry, name) for name in _files(staged)), f"{package}: {entry}"


def test_the_hooks_are_where_slurm_conf_names_them(staged: Path) -> None:
    folder = staged / "etc" / "slurm" / "gpumem"
    hooks = {path.name for path in (ROOT / "prolog").glob("*.sh")}
    assert {path.name for path in folder.iterdir()} == {*hooks, "hooks.conf"}
    for name in hooks:
        target = (folder / name).readlink()
        assert str(target) == f"/usr/libexec/slurm-gpumem/{name}"
        assert (staged / str(target).lstrip("/")).stat().st_mode & 0o777 == 0o755


def test_the_sampler_runs_on_the_python_of_the_distribution(staged: Path) -> None:
    unit = (staged / "usr/lib/systemd/system/gpumem-sampler.service").read_text()
    assert "ExecStart=/usr/bin/python3 -I -m slurm_gpumem.node.sampler --stay" in unit
    assert "/opt/" not in unit


def test_tmpfiles_has_the_folders_of_the_configuration(staged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUMEM_RUN_DIR", raising=False)
    text = (staged / "usr/lib/tmpfiles.d/slurm-gpumem-node.conf").read_text()
    for folder in (run_dir(), NODE.default("spool")):
        assert f"\nd {folder} 0755 root root -" in text


def test_the_version_is_in_one_place() -> None:
    version = slurm_gpumem.__version__
    named = [path for path in PACKAGING.rglob("*") if path.is_file() and version in path.read_text()]
    assert named == []
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text().splitlines()[2]


@pytest.mark.parametrize("script", ["deb.sh", "rpm.sh"])
def test_packages_name_who_answers_for_them_or_are_not_built(script: str, tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "MAINTAINER": "somebody"}
    command = [str(PACKAGING / script), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "MAINTAINER='Name <name@site>'" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert ".invalid" not in "".join(p.read_text() for p in PACKAGING.rglob("*") if p.is_file())


def _scripts() -> Iterator[Path]:
    yield from (path for path in DEBIAN.iterdir() if path.suffix in (".postinst", ".prerm", ".postrm"))


@pytest.mark.parametrize("script", sorted(_scripts()), ids=lambda path: path.name)
def test_a_maintainer_script_passes_shellcheck(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "#DEBHELPER#" in script.read_text()


def test_nothing_of_this_machine_is_in_the_packaging() -> None:
    for path in PACKAGING.rglob("*"):
        if path.is_file() and path.suffix not in (".pyc",):
            assert not re.search(r"/work/|/root/|/home/|https?://(?!www\.debian|unpkg)", path.read_text()), (
                path
            )


@pytest.mark.parametrize(
    ("status", "installs"), [("install ok installed", False), ("deinstall ok config-files", True), ("", True)]
)
def test_make_installs_what_is_not_there_also_what_was_removed_and_not_purged(
    tmp_path: Path, status: str, installs: bool
) -> None:
    asked = f"echo 'Status: {status}'" if status else "exit 1"
    for name, text in (("dpkg", asked), ("apt-get", f'echo "$@" >>{tmp_path}/calls'), ("sudo", 'exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["make", "-s", "apt", "APT_PACKAGES=munge"], cwd=ROOT, env=env, check=True)
    calls = (tmp_path / "calls").read_text() if installs else ""
    assert ("install" in calls and calls.endswith(" munge\n")) is installs
    assert (tmp_path / "calls").exists() is installs
