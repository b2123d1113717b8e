"""Wheel and source archive as PyPI takes them."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?!https?://)[^)]*\)")


def _pypi_readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pypi_readme", ROOT / "packaging" / "pypi_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_has_no_link_that_leads_nowhere() -> None:
    assert RELATIVE.search(README)
    plain = _pypi_readme().standalone(README)
    assert not RELATIVE.search(plain)
    assert "Quick start for researchers ·" in plain
    assert "<!--" not in plain


def test_links_lead_to_the_repository_where_its_address_is_given() -> None:
    linked = _pypi_readme().standalone(README, "https://forge.invalid/gpumem/")
    assert not RELATIVE.search(linked)
    assert "(https://forge.invalid/gpumem/docs/user/quickstart.md)" in linked


def test_pictures_lead_to_the_repository_or_are_left_out() -> None:
    page = "![a chart](docs/sharing.svg)"
    assert _pypi_readme().standalone(page) == ""
    assert _pypi_readme().standalone(page, "https://a.b") == "![a chart](https://a.b/docs/sharing.svg)"


def test_the_metadata_names_licence_and_supported_pythons() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    about = config["metadata"]
    assert (about["license"], about["license_files"]) == ("Apache-2.0", "LICENSE")
    oldest = re.search(r">=3\.(\d+)", config["options"]["python_requires"])
    named = [int(minor) for minor in re.findall(r":: Python :: 3\.(\d+)$", about["classifiers"], re.M)]
    assert oldest is not None
    assert named == list(range(int(oldest[1]), max(named) + 1))


@pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages")
def test_the_archive_has_what_the_wheel_is_built_from_and_twine_accepts_both() -> None:
    done = subprocess.run(["make", "dist"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("PASSED") == 2
    (wheel,) = (ROOT / "dist").glob("*.whl")
    (archive,) = (ROOT / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as content:
        code = {name for name in content.namelist() if not name.split("/")[0].endswith(".dist-info")}
        about = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        assert not RELATIVE.search(content.read(about).decode())
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert code <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "setup.cfg", "pyproject.toml"} <= names
    assert not [name for name in names if "lab" in Path(name).parts]
