"""Plain TOML is read as the library reads it, and everything else by the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.toml_file import load_toml, read_plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
TABLES = sorted(path for folder in ("models", "lab") for path in (ROOT / folder).rglob("*.toml"))
PLAIN = """\
# a site
mode = "on"

[sharing]
shard-mib = 1024
coverage = 0.98\t
nodes = ["n1", "n[2-4]", "# no comment"]
exclusive = false
[empty]
"""
NOT_PLAIN = (
    "a = 1_000",
    "a = 1 # a comment",
    "a = 'literal'",
    'a = "tab\\t"',
    "a = [1,\n2]",
    "a = [1, 2,]",
    "a.b = 1",
    "[a.b]\nc = 1",
    "[[a]]\nb = 1",
    "a = {b = 1}",
    "a = 1979-05-27",
    "a = +1",
    "a = inf",
)
WRONG = (
    "a = NaN",
    "a = -Infinity",
    "a = [null]",
    'a = [{"b": 1}]',
    'a = 1, "b"',
    "a = 1\na = 2",
    "[a]\n[a]",
    "a = 1\n[a]",
    "a = 01",
    "a =",
    "a",
    "= 1",
    "[a",
    'a = "\x01"',
    'a = "\x7f"',
    "a = " + "[" * 100_000,
)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_our_own_tables_are_read_as_the_library_reads_them(path: Path) -> None:
    assert load_toml(path) == tomllib.loads(path.read_text())


def test_the_tables_that_every_submission_reads_are_plain() -> None:
    for path in (ROOT / "models" / "gpus.toml", *(ROOT / "models" / "environments").glob("*.toml")):
        assert read_plain(path.read_text()) is not None, path.name


@pytest.mark.parametrize("text", [PLAIN, PLAIN.replace("\n", "\r\n"), "", "\n"])
def test_plain_text_is_read_without_the_library(text: str) -> None:
    assert read_plain(text) == tomllib.loads(text)


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_other_toml_is_left_to_the_library(tmp_path: Path, text: str) -> None:
    assert read_plain(text) is None
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert repr(load_toml(path)) == repr(tomllib.loads(text))


@pytest.mark.parametrize("text", WRONG, ids=lambda text: repr(text[:12]))
def test_what_is_not_toml_is_refused_by_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"wrong\.toml: is not valid TOML"):
        load_toml(path)


def test_a_file_that_is_not_utf8_or_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'a = "\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml: is not valid TOML"):
        load_toml(path)
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load_toml(tmp_path / "none.toml")


def test_a_plain_file_does_not_load_the_library() -> None:
    code = (
        "import sys; from slurm_gpumem.estimators.gpus import find_gpu; find_gpu('a100'); "
        "print(any(name.startswith('toml') for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )
    assert done.stdout.strip() == "False"
