"""What gres.conf says of a node: how many of each gres, and which device files."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.conf_file import parse
from slurm_gpumem.slurm.gres import parse_gres
from slurm_gpumem.slurm.node_names import expand_names


class GresLine(NamedTuple):
    """One line of gres.conf."""

    nodes: Optional[List[str]]
    """None for all nodes."""
    name: str
    kind: Optional[str]
    files: List[str]
    units: Optional[int]


class GresFile(NamedTuple):
    """The lines of gres.conf, as far as they can be read."""

    lines: List[GresLine]
    complete: bool
    """False where something is left to detection or to another file: then nothing can be counted."""

    def units(self, node: str, name: str) -> Optional[int]:
        """How many a node has; None when the file does not say."""
        found = [line for line in self._of(node) if line.name == name]
        counts = [line.units if line.units is not None else len(line.files) or None for line in found]
        if not self.complete or not found or None in counts:
            return None
        return sum(count for count in counts if count is not None)

    def devices(self, node: str) -> List[str]:
        """The device files of a node's GPUs."""
        return [path for line in self._of(node) if line.name == "gpu" for path in line.files]

    def _of(self, node: str) -> List[GresLine]:
        return [line for line in self.lines if line.nodes is None or node in line.nodes]


def parse_gres_conf(text: str) -> GresFile:
    """Read the file; lines that are not ours are left out."""
    lines: List[GresLine] = []
    complete = True
    for statement in parse("gres.conf", text):
        if (statement.value("autodetect") or "off").lower() != "off" or statement.include:
            complete = False
        name, listed, count = (statement.value(key) for key in ("name", "nodename", "count"))
        if name is None:
            continue
        try:
            nodes = expand_names(listed) if listed is not None else None
            several = statement.value("multiplefiles")
            files = expand_names(several or statement.value("file") or "")
        except UsageError:
            complete = False
            continue
        if count is None and several:
            count = "1"  # All of its files are one device: a MIG instance.
        units = parse_gres(f"x:{count}") if count is not None else []
        lines.append(GresLine(nodes, name, statement.value("type"), files, units[0][2] if units else None))
    return GresFile(lines, complete)
