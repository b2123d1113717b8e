"""`python -m slurm_gpumem.cli.manual DIR`: write man pages and completion below DIR, like ~/.local/share.

A man page is the command's own --help; gpumem.toml(5) is a file with every key as a comment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem import __version__
from slurm_gpumem.cli import gpumem, gpusbatch
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.kinds import Section
from slurm_gpumem.config.paths import SITE_VARIABLE, site_config_path, user_config_path
from slurm_gpumem.config.schema import SECTIONS
from slurm_gpumem.slurm.submit.sbatch_options import salloc_table, sbatch_table, srun_table

CONFIG_PAGE = "gpumem.toml"
_SUBMISSION = {"gpusbatch": sbatch_table, "gpusrun": srun_table, "gpusalloc": salloc_table}
_SECTIONS = {1: "User Commands", 5: "File Formats"}


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = Parser(prog="python -m slurm_gpumem.cli.manual", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="such as ~/.local/share or /usr/share")
    args = parser.parse_args(argv)
    # Packages that are built twice from the same sources are the same.
    made = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    for name, text in manual_files(made).items():
        path = args.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def manual_files(made: float) -> Dict[str, str]:
    """Every file by its path below the folder of shared data."""
    os.environ["COLUMNS"] = "80"  # argparse wraps by it
    example, what = example_file(), "settings of GPU sharing on Slurm"
    files = {
        f"man/man5/{CONFIG_PAGE}.5": _page(CONFIG_PAGE, 5, what, example, made),
        f"doc/slurm-gpumem/examples/{CONFIG_PAGE}": example,
    }
    for name, (what, text) in _helps().items():
        files[f"man/man1/{name}.1"] = _page(name, 1, what, text, made)
    for program in ("gpumem", *_SUBMISSION):
        files[f"bash-completion/completions/{program}"] = _bash(program, _offered(program))
    return files


def _helps() -> Dict[str, Tuple[str, str]]:
    """By page: what the command is, and its --help."""
    interactive = gpusbatch.USAGE_INTERACTIVE
    texts = {
        "gpusbatch": gpusbatch.USAGE,
        "gpusrun": interactive.format(program="srun"),
        "gpusalloc": interactive.format(program="salloc"),
    }
    asks = "that asks for as much of a GPU as the work needs"
    helps = {name: (f"{name[3:]} {asks}", text) for name, text in texts.items()}
    helps["gpumem"] = ("GPU memory of training jobs on Slurm", gpumem._usage())
    for name, (module, what, *_) in gpumem.COMMANDS.items():
        parsers = _tree(importlib.import_module(module)._parser(), f"gpumem {name}")
        helps[f"gpumem-{name}"] = (what, "\n".join(parser.format_help() for _, parser in parsers))
    return helps


def _tree(parser: argparse.ArgumentParser, words: str) -> Iterator[Tuple[str, argparse.ArgumentParser]]:
    """The command and all below it."""
    yield words, parser
    for name, below in _below(parser).items():
        yield from _tree(below, f"{words} {name}")


def _below(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    groups = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0] if groups else {}


def _page(name: str, section: int, what: str, text: str, made: float) -> str:
    """A man page with a text as it stands."""
    day = time.strftime("%Y-%m-%d", time.gmtime(made))
    made_by = f'"{section}" "{day}" "slurm_gpumem {__version__}" "{_SECTIONS[section]}"'
    files = f"{site_config_path({})} (or what {SITE_VARIABLE} names), {user_config_path()}"
    others = [f"{other}(1)" for other in ("gpusbatch", "gpumem") if other != name]
    lines = [
        f'.TH "{_escaped(name.upper())}" {made_by}',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(what)}",
    ]
    shown = [_escaped(line.rstrip()) for line in text.strip().splitlines()]
    lines += [".SH DESCRIPTION", ".nf", *shown, ".fi"]
    lines += [".SH FILES", _escaped(files), ".SH SEE ALSO", ", ".join([*others, f"{CONFIG_PAGE}(5)"])]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A line that roff prints as it stands; a default below the home of whoever writes it is everybody's."""
    home = os.path.expanduser("~")
    text = text if home == "/" else re.sub(rf"{re.escape(home)}(?=/)", "~", text)
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text)


def example_file() -> str:
    """A gpumem.toml with every key as a comment, at its default."""
    lines = [
        f"# Settings of GPU sharing on Slurm: the site's in {site_config_path({})}, the user's in ~/.config.",
        "# Later ones override earlier ones: the site's file, the user's, #GPUMEM lines in a job script,",
        "# GPUMEM_* variables, options.",
        "",
    ]
    for section in SECTIONS:
        lines += _example(section, section.name)
    return "\n".join(lines).rstrip("\n") + "\n"


def _example(section: Section, title: str) -> List[str]:
    lines = [f"# [{title}]"]
    for key in section.keys:
        value = "" if key.default is None else toml_value(key.default)
        lines += [f"# {key.doc} ({key.kind.words})", f"#{key.name} = {value}"]
    lines.append("")
    for below in section.named:
        lines += _example(below, f"{below.name}.NAME")
    return lines


def toml_value(value: Any) -> str:
    """A default as it would stand in the file."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value)


class _Offer(NamedTuple):
    """What may follow a command."""

    options: Sequence[str]
    commands: Sequence[str] = ()


def _offered(program: str) -> Dict[str, _Offer]:
    """By command."""
    table = _SUBMISSION.get(program)
    if table is not None:
        return {program: _Offer([f"--{spec.name}" for spec in table(gpusbatch.OUR_OPTIONS).specs()])}
    offered = {program: _Offer(["--help", "--version"], list(gpumem.COMMANDS))}
    for name, (module, *_) in gpumem.COMMANDS.items():
        for words, parser in _tree(importlib.import_module(module)._parser(), f"gpumem {name}"):
            options = [flag for flag in parser._option_string_actions if flag.startswith("--")]
            offered[words] = _Offer(options, list(_below(parser)))
    return offered


def _bash(program: str, offered: Mapping[str, _Offer]) -> str:
    """A bash function that finds the command on the line, then offers options, commands or files."""
    lines = [
        f"# bash completion for {program}",
        f"_{program}() {{",
        f"    local word=${{COMP_WORDS[COMP_CWORD]}} at={program} options='' commands='' i",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "$at ${COMP_WORDS[i]}" in',
        *(f'            "{words}") at="{words}" ;;' for words in offered if words != program),
        "        esac",
        "    done",
        '    case "$at" in',
    ]
    for words, offer in offered.items():
        options, commands = shlex.quote(" ".join(offer.options)), shlex.quote(" ".join(offer.commands))
        lines.append(f'        "{words}") options={options} commands={commands} ;;')
    lines += [
        "    esac",
        "    [[ $word == -* ]] && commands=$options",
        "    # Files, where no word is meant.",
        '    if [[ -n $commands ]]; then mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")',
        '    else mapfile -t COMPREPLY < <(compgen -f -- "$word"); fi',
        "} &&",
        f"complete -o filenames -F _{program} {program}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
