"""Man pages say what --help says, and the man programs read them without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS
from slurm_gpumem.cli.gpumem import main as gpumem
from slurm_gpumem.cli.gpusbatch import OUR_OPTIONS
from slurm_gpumem.cli.manual import example_file, main, manual_files
from slurm_gpumem.config.load import load_config
from slurm_gpumem.config.schema import SECTIONS

MADE = 1_800_000_000.0


@pytest.fixture(scope="module")
def pages() -> Dict[str, str]:
    files = manual_files(MADE)
    return {Path(name).name: text for name, text in files.items() if name.startswith("man/")}


def _plain(page: str) -> str:
    return page.replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`")


def test_every_command_has_a_page(pages: Dict[str, str]) -> None:
    programs = {"gpusbatch.1", "gpusrun.1", "gpusalloc.1", "gpumem.1", "gpumem.toml.5"}
    assert set(pages) == programs | {f"gpumem-{name}.1" for name in COMMANDS}


def test_a_page_is_the_commands_own_help(pages: Dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            gpumem([name, "--help"])
        page = _plain(pages[f"gpumem-{name}.1"])
        assert capsys.readouterr().out.strip().replace(str(Path.home()), "~") in page
    for option in OUR_OPTIONS:
        assert f"--{option.name}" in _plain(pages["gpusbatch.1"])
    for name, (_, what) in COMMANDS.items():
        assert re.search(rf"{name} +{re.escape(what)}", _plain(pages["gpumem.1"]))


def test_the_page_of_the_configuration_has_every_key(pages: Dict[str, str]) -> None:
    page = _plain(pages["gpumem.toml.5"])
    for section in (*SECTIONS, *(below for above in SECTIONS for below in above.named)):
        assert f"# [{section.name}" in page
        for key in section.keys:
            assert f"\n#{key.name} =" in page
            assert key.doc in page


def test_the_example_file_is_valid_with_every_default_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    text = example_file()
    written = re.sub(
        r"^#(\w[\w-]* = .+)$", r"\1", re.sub(r"^# (\[.*\])$", r"\1", text, flags=re.M), flags=re.M
    )
    assert "shard_mib = 1024" in written.splitlines()
    path = tmp_path / "gpumem.toml"
    for content in (text, written):
        path.write_text(content)
        config = load_config({"GPUMEM_SITE_CONFIG": str(path)})
        assert config.warnings == ()
        assert config.sharing.shard_mib == 1024


def test_no_page_names_the_home_of_whoever_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert not [name for name, text in manual_files(MADE).items() if "somebody" in text]


def _written(folder: Path) -> List[Path]:
    assert main([str(folder)]) == 0
    return sorted(folder.glob("man/man*/*"))


def test_man_renders_every_page_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("needs man and groff")
    for page in _written(tmp_path):
        command = ["man", "--warnings", "-E", "UTF-8", "-l", str(page)]
        environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
        assert done.stderr == "", page.name
        assert "SEE ALSO" in done.stdout
        assert "\\" not in done.stdout.replace("\\e", ""), page.name


def test_mandoc_finds_nothing_to_warn_of(tmp_path: Path) -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("needs mandoc")
    command = ["mandoc", "-Tlint", "-Wwarning", *map(str, _written(tmp_path))]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


def test_pages_of_the_same_sources_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    texts = [[path.read_text() for path in _written(tmp_path / name)] for name in ("a", "b")]
    assert texts[0] == texts[1]
    assert "2027-01-15" in texts[0][0]
