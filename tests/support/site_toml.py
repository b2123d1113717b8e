"""A gpumem.toml of a test: settings of its nodes, and the constants that a test replaces."""

from __future__ import annotations

from typing import Mapping

from slurm_gpumem.config.schema import DEVCLUSTER
from slurm_gpumem.devcluster.hooks import toml_lines


def site_toml(node: Mapping[str, object], **tables: Mapping[str, object]) -> str:
    """The file's text; of `node`, what is no setting goes to the table of constants."""
    constants = {key: value for key, value in node.items() if DEVCLUSTER.find(key)}
    settings = {key: value for key, value in node.items() if key not in constants}
    tables = {"node": settings, "devcluster": {**constants, **tables.pop("devcluster", {})}, **tables}
    return "\n".join([line for name, table in tables.items() for line in toml_lines(name, table)] + [""])
