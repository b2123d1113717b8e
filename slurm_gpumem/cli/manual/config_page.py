"""gpumem.toml(5) and an example file, from the table of every key."""

from __future__ import annotations

import json
from typing import Any, List

from slurm_gpumem.cli.manual.roff import CONFIG_PAGE, SITE_CONFIG, USER_CONFIG, escaped, filled, page_head
from slurm_gpumem.config.kinds import Key, Section
from slurm_gpumem.config.paths import SITE_VARIABLE
from slurm_gpumem.config.schema import SECTIONS

_ORDER = f"""\
Settings of gpusbatch, gpumem and the hooks on nodes, in TOML. The site's file is {SITE_CONFIG}
({SITE_VARIABLE} names another), the user's is {USER_CONFIG}. Later ones override earlier ones: the site's
file, the user's file, #GPUMEM lines in a job script, GPUMEM_* variables, options.

A key that is not listed here draws a warning with the nearest name that exists; a wrong value is an error."""


def config_page(made: float) -> str:
    """The man page of the configuration file."""
    lines = page_head(CONFIG_PAGE, 5, "settings of GPU sharing on Slurm", made)
    lines += [".SH DESCRIPTION", *filled(_ORDER)]
    for section in SECTIONS:
        lines += _section(section)
    pages = ("gpumem", "gpusbatch", "gpumem-setup", "gpumem-doctor")
    lines += [".SH SEE ALSO", ",\n".join(f"\\fB{escaped(page)}\\fR(1)" for page in pages)]
    return "\n".join(lines) + "\n"


def _section(section: Section, suffix: str = "") -> List[str]:
    lines = [f".SH [{escaped(section.name)}{suffix}]"]
    for key in section.keys:
        text = f"{key.doc[:1].upper()}{key.doc[1:]}. {_value_words(key)}"
        lines += [".TP", f"\\fB{escaped(key.name)}\\fR", *filled(text)]
    for below in section.named:
        lines += _section(below, ".NAME")
    return lines


def _value_words(key: Key) -> str:
    default = "unset" if key.default is None else toml_value(key.default)
    return f"Value: {key.kind.words}; default: {default}."


def toml_value(value: Any) -> str:
    """A default as it would stand in the file."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value)


def example_file() -> str:
    """A gpumem.toml with every key as a comment, at its default."""
    lines = [f"# Settings of GPU sharing on Slurm; see {CONFIG_PAGE}(5). Copy it to {SITE_CONFIG}.", ""]
    for section in SECTIONS:
        lines += _example(section, section.name)
    return "\n".join(lines).rstrip("\n") + "\n"


def _example(section: Section, title: str) -> List[str]:
    lines = [f"# [{title}]"]
    for key in section.keys:
        value = "" if key.default is None else toml_value(key.default)
        lines += [f"# {key.doc}", f"#{key.name} = {value}"]
    lines.append("")
    for below in section.named:
        lines += _example(below, f"{below.name}.NAME")
    return lines
