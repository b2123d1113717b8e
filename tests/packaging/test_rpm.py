"""The rpm packages: the same files as Debian's, settings that stay, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Dict, List

import pytest

import slurm_gpumem
from tests.packaging.test_clean_roots import ROOTS, Tree
from tests.packaging.test_metadata import PACKAGING, ROOT, _debian_lists, _files, staged

__all__ = ["staged"]

SPEC = (PACKAGING / "slurm-gpumem.spec").read_text()
RPMS = ROOT / "build" / "rpm"


def _spec_lists() -> Dict[str, List[str]]:
    """Patterns of the files of each package, relative to the root."""
    lists: Dict[str, List[str]] = {}
    for part in SPEC.split("\n%files ")[1:]:
        name, *lines = part.split("\n%changelog")[0].splitlines()
        words = [line.split()[-1].replace("%{hooks}", "/usr/libexec/slurm-gpumem") for line in lines if line]
        dirs = [line.split()[-1] for line in lines if line.startswith("%dir")]
        lists[f"slurm-gpumem-{name}"] = [w.lstrip("/") for w in words if w.startswith("/") and w not in dirs]
    return lists


def test_every_file_is_in_the_package_that_has_it_in_debian(staged: Path) -> None:
    rpm, debian = _spec_lists(), _debian_lists()
    for name in _files(staged):
        found = [package for package, patterns in rpm.items() if any(fnmatch(name, p) for p in patterns)]
        assert len(found) == 1, f"{name}: {found}"
        assert any(name == entry or name.startswith(f"{entry}/") for entry in debian[found[0]])


def test_settings_are_marked_as_such() -> None:
    for line in SPEC.partition("\n%files")[2].splitlines():
        if line.endswith((".conf", ".lua", "logrotate.d/slurm-gpumem-controller")) and " /etc" in f" {line}":
            assert line.startswith("%config(noreplace) "), line


def test_the_copied_package_is_the_wheel(tmp_path: Path) -> None:
    script = str(PACKAGING / "copy_package.py")
    command = [sys.executable, script, str(tmp_path / "site"), str(tmp_path / "bin")]
    subprocess.run(command, cwd=ROOT, check=True)
    package = tmp_path / "site" / "slurm_gpumem"
    names = _files(package)
    modules = {str(path.relative_to(ROOT / "slurm_gpumem")) for path in (ROOT / "slurm_gpumem").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == {
        n for n in modules if not n.startswith("adapters/hydra/")
    }
    assert {"models/gpus.toml", "lua/gpumem.lua", "prolog/prolog.sh", "report/html/assets/page.html"} <= names
    assert not [name for name in names if "lab" in Path(name).parts]
    assert {Path(name).parts[0] for name in names if name.endswith(".md")} == {"docs"}
    environ = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    gpumem = [sys.executable, str(tmp_path / "bin" / "gpumem"), "--help"]
    done = subprocess.run(gpumem, cwd="/", env=environ, capture_output=True, text=True, check=True)
    assert "gpumem COMMAND" in done.stdout


long = pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages")
needs_rpm = pytest.mark.skipif(
    shutil.which("rpm") is None or os.geteuid() != 0, reason="needs rpm, and root to enter another tree"
)
_OTHER_TOML = "import sys, pip._vendor.tomli as t; sys.modules['tomli'] = t\n"


def _rpm(root: Path, *words: str, fails: bool = False) -> str:
    command = ["rpm", "--root", str(root), "--nodeps", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (done.returncode != 0) is fails, done.stdout
    return done.stdout


@long
@needs_rpm
def test_the_code_runs_from_an_empty_tree_on_the_python_that_it_is_for(tmp_path: Path) -> None:
    _rpm(tmp_path, "--install", "--noscripts", *map(str, RPMS.glob("*.rpm")))
    python = shutil.which("python3.9")
    if python is None or subprocess.run([python, "-V"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs python3.9")
    code = (
        f"{_OTHER_TOML}sys.path.insert(0, {str(tmp_path / 'usr/lib/python3.9/site-packages')!r})\n"
        "from slurm_gpumem.cli.gpumem import main\n"
        "sys.exit(main(['estimate', sys.argv[1], '--gpu', 'a100', '--batch-size', '8']))"
    )
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    example = str(ROOT / "docs/examples/resnet50.txt")
    done = subprocess.run(
        [python, "-c", code, example], cwd="/", capture_output=True, text=True, check=False, env=environ
    )
    assert "shards" in done.stdout, done.stderr
    assert (tmp_path / "etc/slurm/gpumem/prolog.sh").is_symlink()


@long
@needs_rpm
def test_upgrades_keep_edited_settings_and_removal_leaves_nothing(tmp_path: Path) -> None:
    archive = ROOTS / "bookworm.tar"
    if not archive.exists():
        pytest.skip("needs a tree of test_clean_roots.py")
    root = tmp_path / "tree"
    root.mkdir(mode=0o755)
    subprocess.run(["tar", "-xpf", str(archive), "-C", str(root)], check=True)
    tree = Tree(root)
    files = tree.files()
    _rpm(root, "--install", *map(str, RPMS.glob("*.rpm")))
    conf = root / "etc/slurm/gpumem/hooks.conf"
    conf.write_text(conf.read_text() + "next_prolog=/bin/true\n")

    again = tmp_path / "again"
    subprocess.run([str(PACKAGING / "export.sh"), str(again)], cwd=ROOT, check=True)
    module = again / "slurm_gpumem" / "__init__.py"
    module.write_text(module.read_text().replace(f'"{slurm_gpumem.__version__}"', '"999"'))
    with (again / "prolog" / "hooks.conf.example").open("a") as file:
        file.write("# a new line\n")
    subprocess.run(["git", "init", "-q"], cwd=again, check=True)
    subprocess.run([str(again / "packaging" / "rpm.sh"), str(tmp_path / "next")], cwd=again, check=True)
    _rpm(root, "--upgrade", *map(str, (tmp_path / "next").glob("*.rpm")))
    assert conf.read_text().endswith("next_prolog=/bin/true\n")
    (root / "etc/slurm/gpumem/hooks.conf.rpmnew").unlink()

    slurm_conf = root / "etc/slurm/slurm.conf"
    slurm_conf.write_text("Prolog=/etc/slurm/gpumem/prolog.sh\n")
    assert "still names the hooks" in _rpm(root, "--erase", "slurm-gpumem-node", fails=True)
    slurm_conf.unlink()
    _rpm(root, "--erase", *(f"slurm-gpumem-{name}" for name in ("node", "controller", "client")))
    (root / "etc/slurm/gpumem/hooks.conf.rpmsave").unlink()
    # Folders such as bash-completion/completions belong to packages that an EL has and this tree has not.
    left = {name for name in tree.files() - files if not (root / name).is_dir()}
    assert {name for name in left if not name.startswith("var/lib/rpm")} == set()
    assert not (root / "usr/lib/python3.9/site-packages/slurm_gpumem").exists()
