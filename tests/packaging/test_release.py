"""What `make release` builds, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_gpumem
from tests.support import root_code

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build" / "release"
TIME = {"SOURCE_DATE_EPOCH": "1790000000"}


def test_a_release_is_built_from_what_is_committed_only(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for name in ("packaging/release.sh", "packaging/who.sh", "slurm_gpumem/__init__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
        path.chmod((ROOT / name).stat().st_mode)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "more").write_text("")
    environ = {"PATH": "/usr/bin:/bin", "MAINTAINER": "a <a@b>"}
    command = [str(tmp_path / "packaging/release.sh"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "?? more" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_archive_has_the_same_bytes_whoever_makes_it_and_when(tmp_path: Path) -> None:
    made = []
    for number, mask in enumerate((0o022, 0o077)):
        folder = tmp_path / str(number)
        names = ["b", "a/c"] if number else ["a/c", "b"]
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            path.chmod(0o666 & ~mask)
            os.utime(path, (number, number))
        archive = tmp_path / f"{number}.tar.gz"
        command = [str(ROOT / "packaging/tar.sh"), str(folder), str(archive)]
        subprocess.run(command, env={**os.environ, **TIME}, check=True)
        made.append(archive.read_bytes())
    assert made[0] == made[1]


def test_the_bill_of_materials_has_every_file_and_every_requirement(tmp_path: Path) -> None:
    (tmp_path / "one.whl").write_bytes(b"one")
    command = [sys.executable, str(ROOT / "packaging/sbom.py"), str(tmp_path)]
    environ = {**os.environ, **TIME, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == slurm_gpumem.__version__
    found = {one["name"]: one for one in bill["components"]}
    assert found["tomli"]["scope"] == "required"
    assert found["torch"]["scope"] == "optional"
    assert found["one.whl"]["hashes"][0]["content"].startswith("7692c3ad")
    references = {one["bom-ref"] for one in bill["components"]}
    assert set(bill["dependencies"][0]["dependsOn"]) <= references
    assert len(references) == len(bill["components"])


def test_the_count_of_root_code_holds_what_the_hooks_load() -> None:
    code = (
        "import sys, slurm_gpumem.node.hook, slurm_gpumem.node.sampler.sampler;"
        "print(*[m.__file__ for n, m in sys.modules.items() if n.startswith('slurm_gpumem') and m.__file__])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    counted = root_code.files_of(root_code.PARTS["Prolog, Epilog, sampler"])
    assert {Path(name) for name in done.stdout.split()} <= set(counted)


@pytest.mark.skipif(not RELEASE.exists(), reason="needs make release")
def test_the_checksums_of_a_release_are_those_of_its_files() -> None:
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=RELEASE, check=False)
    assert done.returncode == 0
    listed = {line.split()[1] for line in (RELEASE / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in RELEASE.iterdir()} - {"SHA256SUMS", "SHA256SUMS.asc"}
