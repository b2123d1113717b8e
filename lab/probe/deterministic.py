"""What `cudnn.deterministic` changes: convolutions that were measured with it and without.

    python -m lab.probe.deterministic

Workspaces of single calls, of operators.jsonl.xz and convolutions.jsonl.xz in lab/data/ground-truth.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Iterator, List, Tuple

from lab.command import print_lines
from lab.places import CONVOLUTIONS, OPERATORS
from lab.probe.measured_calls import calls_of
from lab.rows import open_text

MORE = 0.1
"""Of input and output, from which on a call counts as one that needs more, or less."""
_MEASURED = ("forward", "backward", "deterministic")


def table() -> Iterator[str]:
    """A line for each kind of call."""
    pairs: Dict[str, List[Dict[str, Any]]] = {}
    for row in _rows():
        case = json.dumps({name: value for name, value in row.items() if name not in _MEASURED})
        pairs.setdefault(case, []).append(row)
    found: Dict[Tuple[str, str], List[float]] = {}
    for rows in pairs.values():
        if {bool(row.get("deterministic")) for row in rows} == {True, False}:
            free, fixed = sorted(rows, key=lambda row: bool(row.get("deterministic")))[:: len(rows) - 1]
            kind = f"{len(free['size'])}-D" + (", transposed" if free["transposed"] else "")
            for one, other in zip(calls_of(free), calls_of(fixed)):
                both = max(1, one.call.data + one.call.output)
                name = one.call.convolution.call
                found.setdefault((kind, name), []).append((other.bytes - one.bytes) / both)
    yield f"{'convolution':<18}{'call':<10}{'measured':>9}{'more':>8}{'less':>8}"
    for (kind, name), changes in sorted(found.items()):
        more, less = (sum(sign * one > MORE for one in changes) / len(changes) for sign in (1, -1))
        yield f"{kind:<18}{name:<10}{len(changes):>9,}{more:>8.1%}{less:>8.1%}"


def _rows() -> Iterator[Dict[str, Any]]:
    for path in (OPERATORS, CONVOLUTIONS):
        with open_text(path) as file:
            rows = (json.loads(line) for line in file)
            yield from (row for row in rows if row.get("kind") == "conv" and "error" not in row)


if __name__ == "__main__":
    sys.exit(print_lines(table))
