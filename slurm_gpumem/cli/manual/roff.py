"""Man pages of commands, in roff's man macros."""

from __future__ import annotations

import re
import time
from typing import Iterable, List, Tuple

from slurm_gpumem import __version__
from slurm_gpumem.cli.manual.commands import Argument, Command, Option, of_anybody
from slurm_gpumem.config.paths import SITE_VARIABLE, site_config_path, user_config_path

CONFIG_PAGE = "gpumem.toml"
SITE_CONFIG = site_config_path({})
USER_CONFIG = of_anybody(user_config_path())
EXIT_CODES = (
    ("0", "done"),
    ("1", "the answer is no"),
    ("2", "wrong usage or bad input; the message says what and how to fix it"),
)


def escaped(text: str) -> str:
    """Text that roff prints as it stands: its control characters, and hyphens that are minus signs."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.M)


def page_head(name: str, section: int, what: str, made: float) -> List[str]:
    """Title and NAME of a page; `made` is the time that it bears."""
    day = time.strftime("%Y-%m-%d", time.gmtime(made))
    manual = {1: "User Commands", 5: "File Formats"}[section]
    title = f'.TH "{escaped(name.upper())}" "{section}" "{day}" "slurm_gpumem {__version__}" "{manual}"'
    return [title, ".SH NAME", f"{escaped(name)} \\- {escaped(what)}"]


def filled(text: str) -> List[str]:
    """Paragraphs of running text; indented lines, such as examples, stay as they are."""
    lines: List[str] = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines.append(".PP")
        verbatim = False
        for line in paragraph.splitlines():
            indented = line.startswith(" ")
            if indented is not verbatim:
                lines.extend([".RS 4", ".nf"] if indented else [".fi", ".RE"])
                verbatim = indented
            lines.append(escaped(line.strip()))
        if verbatim:
            lines.extend([".fi", ".RE"])
    # A heading begins a paragraph by itself.
    return lines[1:]


def command_page(command: Command, made: float, others: Iterable[str]) -> str:
    """The man page of one command, with those below it; `others` are pages to name at its end."""
    lines = page_head(command.name, 1, command.what, made)
    lines += [".SH SYNOPSIS", _synopsis(command.usage)]
    lines += [".SH DESCRIPTION", *filled(command.description)]
    if command.passed_on:
        program = command.words[0][3:]
        lines += [".PP", f"All other options are those of \\fB{program}\\fR(1) and are handed to it."]
    has_pages = command.words == ("gpumem",)
    lines += _arguments(command.arguments)
    lines += _options(command.options, ".SH")
    if command.commands:
        lines.append(".SH COMMANDS")
        for below in command.commands:
            lines += _entry(below) if has_pages else _section(below)
    if command.epilog:
        title, text = _titled(command.epilog)
        lines += [f".SH {title}", *filled(text)]
    if "xit code" not in command.description + command.epilog:
        lines += [".SH EXIT STATUS", *_rows(EXIT_CODES)]
    if command.passed_on:
        lines += [".PP", f"If {command.words[0][3:]} itself refuses, its own exit status."]
    lines += [".SH FILES", *_rows(((SITE_CONFIG, "the site's settings"), (USER_CONFIG, "the user's")))]
    lines += [".SH ENVIRONMENT", *_rows(((SITE_VARIABLE, f"another file than {SITE_CONFIG}"),))]
    seen = [f"\\fB{escaped(name)}\\fR({5 if name == CONFIG_PAGE else 1})" for name in others]
    lines += [".SH SEE ALSO", ",\n".join(seen)]
    return "\n".join(lines) + "\n"


def _titled(epilog: str) -> Tuple[str, str]:
    """An epilog's heading: its first line where that ends in a colon, as "examples:" does."""
    first, _, rest = epilog.partition("\n")
    return (first[:-1].upper(), rest) if first.endswith(":") and rest else ("NOTES", epilog)


def _synopsis(usage: str) -> str:
    """A line of usage: what is typed as it stands in bold, what stands for something else in italics."""
    text = escaped(usage)
    text = re.sub(r"^(\w[\w ]*\w)", r"\\fB\1\\fR", text) if "COMMAND" not in usage else text
    text = re.sub(r"(?<![\w\\])((?:\\-){1,2}[a-z][\w]*(?:\\-\w+)*)", r"\\fB\1\\fR", text)
    return re.sub(r"(?<![\w.])([A-Z][A-Z_.|=]*[A-Z]|[A-Z])(?![\w(])", r"\\fI\1\\fR", text)


def _flags(option: Option) -> str:
    value = f" \\fI{escaped(option.value)}\\fR" if option.value else ""
    if option.value_is_optional:
        value = f" [{value.strip()}]"
    return ", ".join(f"\\fB{escaped(flag)}\\fR{value}" for flag in option.flags)


def _options(options: Iterable[Option], heading: str) -> List[str]:
    """The options in the order of --help, under its headings."""
    lines: List[str] = []
    group = None
    for option in sorted(options, key=lambda option: option.group != ""):
        if option.group != group:
            group = option.group
            lines.append(f"{heading} {escaped(group.upper()) if group else 'OPTIONS'}")
        lines += [".TP", _flags(option), *filled(option.help)]
    return lines


def _arguments(arguments: Iterable[Argument]) -> List[str]:
    rows = [line for argument in arguments for line in _row(argument.name, argument.help)]
    return [".SH ARGUMENTS", *rows] if rows else []


def _row(name: str, text: str) -> List[str]:
    return [".TP", f"\\fB{escaped(name)}\\fR", *filled(text)]


def _rows(rows: Iterable[Tuple[str, str]]) -> List[str]:
    return [line for name, text in rows for line in _row(name, text)]


def _entry(command: Command) -> List[str]:
    """A command that has a page of its own."""
    return [".TP", f"\\fB{escaped(command.name)}\\fR(1)", *filled(command.what)]


def _section(command: Command) -> List[str]:
    """A command that is explained in the page of the one above it."""
    lines = [f".SS {escaped(' '.join(command.words))}", *filled(command.what)]
    lines += [".PP", _synopsis(command.usage)]
    for argument in command.arguments:
        lines += _row(argument.name, argument.help)
    for option in command.options:
        lines += [".TP", _flags(option), *filled(option.help)]
    return lines
