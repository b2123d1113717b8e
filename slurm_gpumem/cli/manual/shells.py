"""Completion for bash, zsh and fish, from what the commands understand."""

from __future__ import annotations

import re
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


def zsh(command: Command, values: Values) -> str:
    """A zsh function with one specification for _arguments per option."""
    program = command.words[0]
    lines = [f"#compdef {program}", f"# zsh completion for {program}, written from its own --help"]
    for each in reversed(list(_tree(command))):
        lines += _zsh_function(each, values)
    lines += [f'_{program} "$@"']
    return "\n".join(lines) + "\n"


def _zsh_function(command: Command, values: Values) -> List[str]:
    specs = [spec for option in _all_options(command) for spec in _zsh_specs(option, values)]
    function = "_" + "_".join(command.words)
    if not command.commands:
        rest = "'*:file:_files'"
        return [
            f"{function}() {{",
            "    _arguments -s \\",
            *(f"        {s} \\" for s in specs),
            f"        {rest}",
            "}",
        ]
    names = [shlex.quote(f"{child.words[-1]}:{_plain(child.what)}") for child in command.commands]
    calls = [f"        {child.words[-1]}) _{'_'.join(child.words)} ;;" for child in command.commands]
    return [
        f"{function}() {{",
        "    local state line",
        "    local -a commands",
        f"    commands=({' '.join(names)})",
        "    _arguments -C \\",
        *(f"        {s} \\" for s in specs),
        "        '1: :->command' '*:: :->words'",
        "    case $state in",
        "        command) _describe command commands ;;",
        "        words) case $words[1] in",
        *calls,
        "        esac ;;",
        "    esac",
        "}",
    ]


def _zsh_specs(option: Option, values: Values) -> Iterator[str]:
    text = re.sub(r"([\[\]:])", r"\\\1", _plain(option.help))
    action = ""
    if option.value:
        choices = choices_of(option, values)
        what = f"({' '.join(choices)})" if choices else "_files" if takes_a_file(option) else " "
        label = re.sub(r"[^A-Za-z. ]", " ", option.value).strip() or "value"
        action = f"{'::' if option.value_is_optional else ':'}{label}:{what}"
    for flag in option.flags:
        # A long option's value may also stand behind "=".
        equals = "=" if option.value and flag.startswith("--") else ""
        yield shlex.quote(f"*{flag}{equals}[{text}]{action}")


def fish(command: Command, values: Values) -> str:
    """Lines of `complete` for fish, each with the condition under which it counts."""
    program = command.words[0]
    lines = [f"# fish completion for {program}, written from its own --help"]
    for each in _tree(command):
        condition = _fish_condition(each)
        start = f"complete -c {program}" + (f" -n {shlex.quote(condition)}" if condition else "")
        for child in each.commands:
            lines.append(f"{start} -f -a {child.words[-1]} -d {shlex.quote(_plain(child.what))}")
        for option in _all_options(each):
            lines.append(f"{start} {_fish_option(option, values)}")
    return "\n".join(lines) + "\n"


def _fish_condition(command: Command) -> str:
    """The words that must stand on the line, and those that must not yet."""
    seen = [f"__fish_seen_subcommand_from {word}" for word in command.words[1:]]
    below = [child.words[-1] for child in command.commands]
    if below:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
    return "; and ".join(seen)


def _fish_option(option: Option, values: Values) -> str:
    parts = []
    for flag in option.flags:
        parts.append(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}")
    if option.value and not option.value_is_optional:
        choices = choices_of(option, values)
        files = takes_a_file(option) and not choices
        parts.append("-r -F" if files else "-x")
        if choices:
            parts.append(f"-a {shlex.quote(' '.join(choices))}")
    if option.help:
        parts.append(f"-d {shlex.quote(_plain(option.help))}")
    return " ".join(parts)


def _plain(text: str) -> str:
    """A help text on one line, and short: it stands beside the option in a list."""
    line = " ".join(text.split())
    return line if len(line) <= 90 else line[:89].rstrip() + "…"
