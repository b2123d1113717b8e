"""Blocks whose inner layers the summary does not show: put typical layers in their place.

A torchinfo table of depth 3 names a block, its output and its parameters. The class and the
dimensions determine what it is made of (attention, a feed-forward pair, a transformer layer, convolutions);
the parameters determine its width. torchinfo's totals also count the outputs of hidden layers: what
the visible ones do not explain is distributed among the hidden blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.structural.layers.class_names import family_of, may_add_input, named
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.summaries.types import Layer, ModelSummary, Shape

if TYPE_CHECKING:
    # Most texts show all layers.
    from slurm_gpumem.estimators.structural.patterns import Pattern, Style

_NOTICEABLE = 0.02
"""Fraction of all outputs that must be unexplained before unknown classes count as hidden blocks."""
_SAME_SHAPE = (
    *("relu", "hard", "input_act", "output_act"),
    *("batch_norm", "batch_norm_act", "layer_norm", "rms_norm"),
)
_MOST_REPEATS = 96
_FEW = 4
_SCALES = (0.1, 30.0)
_ABSURD = 2.0
"""Guessed outputs are never more than this many times what the totals leave for them."""


def expand_hidden(summary: ModelSummary, tree: List[Node]) -> bool:
    """Give every hidden block children; returns whether there was one."""
    batch = summary.batch or 1
    rest = _unexplained(summary, batch)
    noticeable = rest is not None and rest > _NOTICEABLE * (summary.output_bytes or 0) / 4
    if not any(_hides(row) for row in summary.layers) and not noticeable:
        return False
    found: List[Tuple[Node, Shape, str]] = []
    _collect(tree, None, found, max(row.depth for row in summary.layers) if noticeable else -1)
    if not found:
        return False
    if rest is not None:
        # Unknown classes at the deepest level were treated as layers above.
        rest += sum(
            summary.elements(node.row.outputs[0], batch)
            for node, _, _ in found
            if not _hides(node.row) and node.row.outputs
        )
    from slurm_gpumem.estimators.structural.patterns import Style

    style = Style.of(summary)
    blocks = [_Block(node, shape, parent, style) for node, shape, parent in found]
    if rest is not None and rest > 0:
        _share_out(summary, blocks, rest, batch)
    for block in blocks:
        block.fill()
    return True


class _Block:
    """One hidden block: its pattern, its number of repeats and the width of its inner layers."""

    def __init__(self, node: Node, shape: Shape, parent: str, style: Style) -> None:
        from slurm_gpumem.estimators.structural.patterns import holds_several, pattern_of, shortcut_pattern

        self.node = node
        self.shape = shape
        self.style = style
        self.gate = named("gate", node.row.kind) and len(shape) == 4
        """It computes one number for each channel, by which its input is scaled."""
        self.several = holds_several(node.row.kind) and not node.shortcut
        self.pattern: Pattern = (
            shortcut_pattern() if node.shortcut else pattern_of(node.row, shape, style, parent)
        )
        self.repeats = self.pattern.repeats
        self.scale = 1.0

    def outputs(self, summary: ModelSummary, batch: int) -> Tuple[float, float]:
        """Outputs that torchinfo counts in one repeat: (of inner layers, of the others)."""
        if self.gate:
            return 0.0, 0.0
        each = summary.elements(self.shape, batch)
        inner = sum(step.width for step in self.pattern.steps if step.inner and step.counts(self.style))
        outer = sum(step.width for step in self.pattern.steps if not step.inner and step.counts(self.style))
        return inner * each, outer * each

    def fill(self) -> None:
        """Create the children."""
        node = self.node
        node.guessed = True
        if self.gate:
            from slurm_gpumem.estimators.structural.patterns import gate_nodes

            node.children = gate_nodes(self.shape, node.row.params)
            return
        node.children = self.pattern.nodes(self.shape, node.row.params, self.repeats, self.scale)


def _share_out(summary: ModelSummary, blocks: Sequence[_Block], rest: float, batch: int) -> None:
    """Choose repeats and widths so that the blocks' outputs add up to what the totals leave for them."""
    made = [(block, *block.outputs(summary, batch)) for block in blocks]
    single = sum((inner + outer) * block.repeats for block, inner, outer in made if not block.several)
    several = sum((inner + outer) * block.repeats for block, inner, outer in made if block.several)
    if several and rest > single:
        factor = (rest - single) / several
        for block, _, _ in made:
            if block.several:
                # Attention that uses weights without calling their modules is not in torchinfo's total, so
                # transformers may have more layers than it implies, never fewer than their parameters imply.
                wanted = factor if block.pattern.axis == 1 else max(1.0, factor)
                block.repeats = max(1, min(_MOST_REPEATS, round(block.repeats * wanted)))
    inner_all = sum(inner * block.repeats for block, inner, _ in made)
    outer_all = sum(outer * block.repeats for block, _, outer in made)
    if inner_all:
        # A width that parameters imply may be absurd (tokens taken for channels): the total bounds it.
        least = min(_SCALES[0], _ABSURD * rest / inner_all)
        scale = min(_SCALES[1], max(least, (rest - outer_all) / inner_all))
        for block, _, _ in made:
            block.scale = scale if block.pattern.axis == 1 else max(1.0, scale)


def _unexplained(summary: ModelSummary, batch: int) -> Optional[float]:
    """Outputs that the totals count and no visible row explains, in elements; None if there is no total."""
    if summary.output_bytes is None:
        return None
    visible = sum(
        summary.elements(row.outputs[0], batch)
        for row in summary.layers
        if row.leaf
        and not _hides(row)
        and row.outputs
        and (row.params or row.repeated)
        # A separate module with an activation inside: torchinfo counts leaves only.
        and not family_of(row.kind).endswith("_act")
    )
    return summary.output_bytes / 4 - visible


def _collect(
    nodes: Sequence[Node], above: Optional[Layer], found: List[Tuple[Node, Shape, str]], deepest: int
) -> None:
    parent = above.kind if above else ""
    whole = above.outputs[0] if above and above.outputs else None
    last = whole
    has_convolutions = any(family_of(node.row.kind) == "conv" for node in nodes)
    for index, node in enumerate(nodes):
        row = node.row
        shape = row.outputs[0] if row.outputs else None
        if _hides(row) or _looks_hidden(row, deepest):
            # A list has no output: the activation after it has it, or its parent.
            chosen = shape or _next_shape(nodes[index + 1 :]) or whole or last
            node.shortcut = row.kind == "Sequential" and may_add_input(parent) and has_convolutions
            if chosen is not None and len(chosen) > 1:
                found.append((node, chosen, parent))
        elif node.children:
            inside = row if shape or not above else row._replace(outputs=above.outputs)
            _collect(node.children, inside, found, deepest)
        last = shape or last


def _next_shape(following: Sequence[Node]) -> Optional[Shape]:
    """The output of what follows, if that is a layer which does not change its input's shape."""
    for node in following:
        if node.row.outputs:
            family = family_of(node.row.kind)
            return node.row.outputs[0] if family in _SAME_SHAPE and not node.children else None
    return None


def _hides(row: Layer) -> bool:
    """Whether a row stands for layers that the summary does not show: not if its class is itself a layer."""
    return row.hidden and not _is_layer(family_of(row.kind))


def _is_layer(family: str) -> bool:
    return "norm" in family or family.startswith(("conv", "linear"))


def _looks_hidden(row: Layer, deepest: int) -> bool:
    """Whether an unknown class, at the deepest level and with parameters, is a block."""
    if row.depth != deepest or not row.leaf or family_of(row.kind):
        return False
    # A few numbers for each channel are a scale, not a layer.
    widest = max(row.outputs[0][1:], default=1) if row.outputs else 1
    return row.params > _FEW * widest
