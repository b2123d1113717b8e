"""Man pages say what --help says, and the man programs read them without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS
from slurm_gpumem.cli.gpusbatch import OUR_OPTIONS
from slurm_gpumem.cli.manual.__main__ import main, manual_files
from slurm_gpumem.cli.manual.commands import Command, all_programs
from slurm_gpumem.cli.manual.config_page import example_file
from slurm_gpumem.config.load import load_config
from slurm_gpumem.config.schema import SECTIONS

MADE = 1_800_000_000.0


@pytest.fixture(scope="module")
def pages() -> Dict[str, str]:
    files = manual_files(MADE)
    return {Path(name).name: text for name, text in files.items() if name.startswith("man/")}


def _plain(page: str) -> str:
    return re.sub(r"\\f[BIR]", "", page).replace("\\-", "-").replace("\\(aq", "'")


def _with_those_below(command: Command) -> Iterator[Command]:
    yield command
    for below in command.commands:
        yield from _with_those_below(below)


def test_every_command_has_a_page(pages: Dict[str, str]) -> None:
    programs = {"gpusbatch.1", "gpusrun.1", "gpusalloc.1", "gpumem.1", "gpumem.toml.5"}
    assert set(pages) == programs | {f"gpumem-{name}.1" for name in COMMANDS}


def test_the_page_of_gpumem_lists_every_command(pages: Dict[str, str]) -> None:
    page = _plain(pages["gpumem.1"])
    for name, (_, what, *_rest) in COMMANDS.items():
        assert f"gpumem-{name}(1)\n{what}" in page


def test_every_option_is_explained_in_its_page(pages: Dict[str, str]) -> None:
    for program in all_programs():
        for page in (program, *program.commands):
            text = _plain(pages[f"{page.name}.1"])
            for command in [page] if page.words == ("gpumem",) else _with_those_below(page):
                for option in command.options:
                    assert option.help, f"{' '.join(command.words)}: {option.flags} has no help"
                    assert all(re.search(rf"^{flag}|, {flag}", text, re.M) for flag in option.flags)


@pytest.mark.parametrize("program", ["gpusbatch", "gpusrun", "gpusalloc"])
def test_the_pages_for_submission_explain_exactly_our_options(program: str) -> None:
    (command,) = [each for each in all_programs() if each.name == program]
    assert {option.flags[-1] for option in command.options} == {f"--{spec.name}" for spec in OUR_OPTIONS}
    assert {"--partition", "--mem"} <= {option.flags[-1] for option in command.passed_on}


def test_the_page_of_the_configuration_has_every_key(pages: Dict[str, str]) -> None:
    page = _plain(pages["gpumem.toml.5"])
    for section in (*SECTIONS, *(below for above in SECTIONS for below in above.named)):
        assert f".SH [{section.name}" in page
        for key in section.keys:
            assert f"\n{key.name}\n" in page
            assert key.doc[1:] in page


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
