"""The installed package: a wheel in an environment that has nothing else, without torch, numpy or the lab."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"


def _build(folder: Path) -> Path:
    source = folder / "source"
    # A build writes beside its sources; these must stay as they are.
    for name in ("slurm_gpumem", "docs", "lab", "lua", "models", "prolog"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run([sys.executable, "-m", "pip", *build], cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    return _build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands in an environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    install = ["install", "-q", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    if sys.version_info < (3, 11):
        # The one dependency, where the standard library does not read TOML.
        import tomli

        site = next(folder.glob("lib/python*/site-packages"))
        shutil.copytree(Path(tomli.__file__).parent, site / "tomli")
    return folder / "bin"


def _run(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program, *rest = words
    # Another folder and no variables: nothing of this checkout may help.
    return subprocess.run(
        [str(installed / program), *rest], cwd=installed, env={}, capture_output=True, text=True, check=False
    )


def test_the_wheel_has_no_laboratory_and_none_of_its_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert "slurm_gpumem/models/gpus.toml" in names
    assert "slurm_gpumem/lua/job_submit.lua" in names
    assert "slurm_gpumem/prolog/prolog.sh" in names
    assert "slurm_gpumem/prolog/gpumem_end.c" in names
    assert not [name for name in names if "lab" in Path(name).parts]
    beside = [name for name in names if not name.startswith("slurm_gpumem")]
    assert beside == ["hydra_plugins/gpumem_launcher.py"]


def test_every_package_of_the_product_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        found = {name for name in content.namelist() if name.endswith(".py")}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "slurm_gpumem").rglob("*.py")}
    hydra = "slurm_gpumem/adapters/hydra/"
    assert found == {name[len(hydra) :] if name.startswith(hydra) else name for name in modules}


def _helps() -> List[List[str]]:
    return [["gpusbatch"], ["gpumem"], *(["gpumem", name] for name in COMMANDS)]


@pytest.mark.parametrize("words", _helps(), ids=" ".join)
def test_every_command_explains_itself(installed: Path, words: List[str]) -> None:
    done = _run(installed, *words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert words[-1] in done.stdout


@pytest.mark.parametrize("name", ["resnet50.txt", "small-cnn.txt"])
def test_a_text_is_estimated(installed: Path, name: str) -> None:
    done = _run(installed, "gpumem", "estimate", str(EXAMPLES / name), "--batch-size", "32", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_mib"] > 0


def test_a_hub_name_is_known_and_only_torch_is_missing(installed: Path) -> None:
    code = "from slurm_gpumem.tracing.model.request import known_model; print(known_model('gpt2-medium'))"
    assert "GPT2" in _run(installed, "python", "-c", code).stdout
    done = _run(installed, "gpumem", "summarize", "hf:gpt2-medium", "--batch-size", "4", "-o", "summary.json")
    assert done.returncode == 2
    assert "needs PyTorch" in done.stderr
