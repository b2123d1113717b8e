"""Completion for bash, from what the commands understand."""

from __future__ import annotations

import shlex
from typing import Dict, Iterable, Iterator, List, Tuple

from slurm_gpumem.cli.manual.commands import Command, Option, choices_of, takes_a_file

Values = Dict[str, Tuple[str, ...]]


def _tree(command: Command) -> Iterator[Command]:
    """The command and all below it."""
    yield command
    for below in command.commands:
        yield from _tree(below)


def _all_options(command: Command) -> Tuple[Option, ...]:
    return (*command.options, *command.passed_on)


def bash(command: Command, values: Values) -> str:
    """A bash function that finds the subcommand on the line, then offers its options and their values."""
    program = command.words[0]
    where = [" ".join(each.words) for each in _tree(command)]
    lines = [
        f"# bash completion for {program}, written from its own --help",
        f"_{program}() {{",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at=" + program + " i",
        "    # --option=value comes as three words.",
        '    [[ $word == "=" ]] && word=""',
        '    [[ $before == "=" ]] && before=${COMP_WORDS[COMP_CWORD-2]}',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "$at ${COMP_WORDS[i]}" in',
        f'            {_alternatives(where[1:])}) at+=" ${{COMP_WORDS[i]}}" ;;' if where[1:] else "",
        "        esac",
        "    done",
        "    COMPREPLY=()",
        '    case "$at:$before" in',
    ]
    for each in _tree(command):
        for option in _all_options(each):
            if not option.value or option.value_is_optional:
                continue
            choices = choices_of(option, values)
            action = _bash_words(choices) if choices else _BASH_FILES if takes_a_file(option) else ":"
            patterns = [f"{' '.join(each.words)}:{flag}" for flag in option.flags]
            lines.append(f"        {_alternatives(patterns)}) {action}; return ;;")
    lines += ["    esac", '    case "$at" in']
    for each in _tree(command):
        flags = [flag for option in _all_options(each) for flag in option.flags if flag.startswith("--")]
        below = [child.words[-1] for child in each.commands]
        otherwise = _bash_words(below) if below else _BASH_FILES
        lines.append(
            f"        {_alternatives([' '.join(each.words)])}) "
            f"if [[ $word == -* ]]; then {_bash_words(flags)}; else {otherwise}; fi ;;"
        )
    lines += ["    esac", "} &&", f"complete -o filenames -F _{program} {program}"]
    return "\n".join(line for line in lines if line) + "\n"


_BASH_FILES = 'mapfile -t COMPREPLY < <(compgen -f -- "$word")'


def _bash_words(words: Iterable[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$word")'


def _alternatives(patterns: List[str]) -> str:
    return "|".join(f'"{pattern}"' for pattern in patterns)
