"""The formats that are read: one row each. Parsers are imported only when a text is theirs.

To add one: write its parser as a module of this room, add a row to FORMATS, and put a text of it into
tests/summaries/samples (docs/developer/contributing.md). Nothing outside this room knows formats by name.
"""

from __future__ import annotations

import re
from typing import Callable, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.summaries.types import Shows

DOCUMENT, TABLE, TREE = "document", "table", "tree"
"""How a text is laid out, and so what its parser's module must have.

    document   parse(text, origin): the whole text, as one value
    table      parse(lines, table): the rows below a line of titles
    tree       find_starts(lines), parse(lines, start): nested brackets, without titles
"""

# Patterns stay text here: compiling them all costs more than trying the few that are needed.
_NUMBERED_ROW = r".{0,200}?\b[A-Za-z_]\w*-[0-9]+\s+\[*(?:-1|[0-9]+)(?:, |\])"
_TREE_ROW = r".{0,200}?(?:[├└]─|[|+] )[A-Za-z_]\w*.{0,200}: [0-9]+-[0-9]+\s"


class Format(NamedTuple):
    """One format."""

    name: str
    """`ModelSummary.format` of its texts."""
    layout: str
    """DOCUMENT, TABLE or TREE."""
    parser: str
    """Its module in this room."""
    detect: Optional[Callable[[str, Sequence[str]], bool]] = None
    """Whether a text is of this format, by its titles ("" without) and its first lines: of a table its first
    rows, of other layouts the text's. The first row of FORMATS that says yes gets the text.
    None: its parser also reads a format above and tells the two apart."""
    shows: Shows = Shows()
    titles: str = "Layer (type"
    """What a table's line of titles has in it."""
    row: str = ""
    """Pattern of a table's row, to find a table whose titles are cut off; such a row has "[" or "─"."""


def _is_own(titles: str, lines: Sequence[str]) -> bool:
    return lines[0].startswith("{") and '"gpumem-summary/' in lines[0]


def is_keras(titles: str, lines: Sequence[str]) -> bool:
    """Whether it is a table of Keras's model.summary(), which is not read: no rule here is for its models."""
    return "┃" in titles or any("(None" in line for line in lines)


def _is_numbered(titles: str, lines: Sequence[str]) -> bool:
    return "depth-idx" not in titles and any(re.match(_NUMBERED_ROW, line) for line in lines)


def _is_printed(titles: str, lines: Sequence[str]) -> bool:
    return any("(" in line for line in lines)


def _is_nested(titles: str, lines: Sequence[str]) -> bool:
    return not is_keras(titles, lines)


FORMATS: Tuple[Format, ...] = (
    Format("gpumem", DOCUMENT, "own", _is_own),
    Format(
        "torchsummary",
        TABLE,
        "torchsummary",
        _is_numbered,
        Shows(nesting=False, leading_sizes=False),
        row=_NUMBERED_ROW,
    ),
    # These show no block beside its layers, so there is no nesting to be missed.
    Format("modelsummary", TABLE, "torchsummary"),
    Format("pytorch-model-summary", TABLE, "torchsummary"),
    Format("torchinfo", TABLE, "torchinfo", _is_nested, Shows(total_outputs=True), row=_TREE_ROW),
    Format("torch-summary", TABLE, "torchinfo"),
    Format("print(model)", TREE, "printed", _is_printed),
    Format("modelsummary hierarchy", TREE, "printed"),
)
BY_NAME: Mapping[str, Format] = {row.name: row for row in FORMATS}
TITLES: Tuple[str, ...] = tuple(dict.fromkeys(row.titles for row in FORMATS if row.layout == TABLE))
"""What a line has in it that begins a table."""


def detected(layout: str, titles: str, lines: Sequence[str]) -> Optional[Format]:
    """The first format of a layout that takes such a text for its own."""
    rows = (row for row in FORMATS if row.layout == layout and row.detect is not None)
    # A line of titles that only one format writes is not read as another's.
    return next(
        (row for row in rows if row.detect and _has_titles(row, titles) and row.detect(titles, lines)), None
    )


def _has_titles(row: Format, titles: str) -> bool:
    return not titles or row.titles in titles


def looks_like_row(line: str) -> bool:
    """Whether a line may be a row of some format's table."""
    return any(row.row and re.match(row.row, line) for row in FORMATS)
