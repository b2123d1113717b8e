"""The nodes and partitions of slurm.conf, with what they inherit from DEFAULT lines."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.slurm.conf.conf_file import Statement
from slurm_gpumem.slurm.node_names import expand_names

DEFAULT = "default"
Attributes = Mapping[str, str]
"""Keys in lower case."""


class Line(NamedTuple):
    """One NodeName or PartitionName line that is not DEFAULT's."""

    statement: Statement
    names: Tuple[str, ...]
    attributes: Attributes
    """With those that it inherits."""


def lines_of(statements: Sequence[Statement], kind: str) -> List[Line]:
    """The lines of a kind ("nodename"); DEFAULT lines count for those behind them."""
    inherited: Dict[str, str] = {}
    found = []
    for statement in statements:
        if statement.kind != kind:
            continue
        name = statement.value(kind) or ""
        own = {pair.key.lower(): pair.value for pair in statement.pairs if pair.key.lower() != kind}
        if name.lower() == DEFAULT:
            inherited.update(own)
        else:
            found.append(Line(statement, tuple(expand_names(name)), {**inherited, **own}))
    return found


def attributes_of(lines: Sequence[Line]) -> Dict[str, Attributes]:
    """Each name's attributes; of several lines for one name the last one counts, as for Slurm."""
    return {name: line.attributes for line in lines for name in line.names}


def partition_nodes(statements: Sequence[Statement]) -> Dict[str, Tuple[str, ...]]:
    """The names of each partition's nodes; ALL and node sets are resolved."""
    nodes = attributes_of(lines_of(statements, "nodename"))
    sets: Dict[str, Tuple[str, ...]] = {}
    for line in lines_of(statements, "nodeset"):
        feature = line.attributes.get("feature")
        by_feature = [
            name
            for name, known in nodes.items()
            if feature and feature in (known.get("feature") or known.get("features", "")).split(",")
        ]
        listed = expand_names(line.attributes.get("nodes", ""))
        for name in line.names:
            sets[name] = tuple(dict.fromkeys([*listed, *by_feature]))
    found: Dict[str, Tuple[str, ...]] = {}
    for line in lines_of(statements, "partitionname"):
        members: List[str] = []
        for word in expand_names(line.attributes.get("nodes", "")):
            members += nodes if word.upper() == "ALL" else sets.get(word, (word,))
        for name in line.names:
            found[name] = tuple(name for name in dict.fromkeys(members) if name in nodes)
    return found
