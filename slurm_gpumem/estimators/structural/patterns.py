"""Typical layers of blocks, by class name and parameters."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from slurm_gpumem.estimators.structural.layers.attention import HIDDEN_DROPPING, HIDDEN_EAGER
from slurm_gpumem.estimators.structural.layers.class_names import (
    family_of,
    is_attention,
    named,
)
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.summaries.types import Layer, ModelSummary, Shape

_SMOOTH = ("input_act", "hard")


def _feed_forward_activation(names: str, *, gated: bool) -> str:
    if named("cubic-gelu", names):
        return "NewGELUActivation"
    if "Esm" in names:
        return "ErfGELU"
    return "SiLU" if gated else "GELU"


def _attention_class(model: str, names: str) -> str:
    """The class name for hidden attention in such a model: some classes materialize their matrix."""
    if "Swin" in names:
        return "HiddenWindowAttention"
    for word, kind in (("T5", "T5Attention"), ("BigBird", "BigBirdSelfAttention")):
        if word in names:
            return kind
    for word in ("DebertaV2", "Deberta", "XLNet", "Funnel"):
        if word in names:
            return f"{word}Attention"
    if named("eager", model):
        return HIDDEN_DROPPING if named("dropping", model) else HIDDEN_EAGER
    return "HiddenAttention"


class Style(NamedTuple):
    """What the visible rows and the model's name imply about its hidden layers."""

    model: str
    """The model's class."""
    layer_norms: bool
    """Layer norms and no batch norm are visible."""
    activation: str
    """Of convolutional blocks."""
    mobile_activation: str
    """Of inverted residuals: a visible smooth one, else any visible one, else SiLU."""
    gelu: str
    """Of feed-forward blocks."""
    norm: str
    gated: bool
    grouped: bool
    """Fewer heads for keys than for queries, as in language models since Llama 2."""
    separate: bool
    """Queries, keys and values are made by three layers, as in transformers, not by one."""
    attention: str
    """The class used for hidden attention."""
    drops: bool
    counts_norms: bool
    """Whether torchinfo counts the outputs of batch norms: not if they contain their activation."""

    @classmethod
    def of(cls, summary: ModelSummary) -> Style:
        """Read the visible rows."""
        families = {row.kind: family_of(row.kind) for row in summary.layers}
        smooth = [kind for kind, family in families.items() if family in _SMOOTH]
        sharp = "relu" in families.values()
        names = f"{summary.name} " + " ".join(families)
        # Language models with root mean square norms have gated feed-forward layers, as Llama has.
        rms = any(kind.endswith("RMSNorm") for kind in families) and named("generates", summary.name)
        gated = named("gated", names) or rms
        seen = set(families.values())
        return cls(
            model=summary.name,
            layer_norms="layer_norm" in seen and not seen & {"batch_norm", "batch_norm_act"},
            activation=smooth[0] if smooth and not sharp else "ReLU",
            mobile_activation=smooth[0] if smooth else ("ReLU" if sharp else "SiLU"),
            gelu=_feed_forward_activation(names, gated=gated),
            norm="LlamaRMSNorm" if gated else ("T5LayerNorm" if "T5LayerNorm" in families else "LayerNorm"),
            gated=gated,
            grouped=gated and not named("ungrouped", names),
            separate=named("library-model", summary.name) and not named("fused-projection", summary.name),
            attention=_attention_class(summary.name, names),
            drops=named("dropping", summary.name),
            counts_norms="batch_norm_act" not in families.values(),
        )


class Step(NamedTuple):
    """One layer of a pattern: its width in multiples of the block's, its fraction of the parameters."""

    kind: str
    width: float = 1.0
    share: float = 0.0
    inner: bool = False
    """Not the block's own width: scaled with the inner width."""
    group: str = ""
    """The container it belongs to inside the block."""
    takes: float = 0.0
    """Width of its input if that is not the previous step's output; 0: it is."""

    def counts(self, style: Style) -> bool:
        """Whether torchinfo's total of outputs includes it."""
        if "BatchNorm" in self.kind:
            return style.counts_norms
        return "Norm" in self.kind or self.share > 0


class Pattern(NamedTuple):
    """The layers of one block and its number of repeats."""

    steps: Tuple[Step, ...]
    repeats: int
    axis: int
    residual: bool

    def nodes(self, shape: Shape, params: int, repeats: int, scale: float) -> List[Node]:
        """The block as modules, its inner layers `scale` times as wide."""
        result: List[Node] = []
        each = params / repeats
        for _ in range(repeats):
            children: List[Node] = []
            entry = shape
            for step in self.steps:
                factor = step.width * (scale if step.inner else 1.0)
                made = self._widened(shape, factor)
                takes = self._widened(shape, step.takes) if step.takes else entry
                row = Layer(kind=step.kind, outputs=(made,), inputs=(takes,), params=int(each * step.share))
                members = children
                if step.group:
                    if not children or children[-1].row.kind != step.group:
                        box = Layer(kind=step.group, outputs=(shape,), inputs=(shape,), leaf=False)
                        children.append(Node(box))
                    members = children[-1].children
                members.append(Node(row))
                entry = made
            if self.residual:
                box = Layer(kind="HiddenBlock", outputs=(shape,), inputs=(shape,), leaf=False)
                result.append(Node(box, children))
            else:
                result += children
        return result

    def _widened(self, shape: Shape, factor: float) -> Shape:
        if factor == 1.0:
            return shape
        width = max(1, round(shape[self.axis] * factor))
        axis = self.axis % len(shape)
        return (*shape[:axis], width, *shape[axis + 1 :])


def holds_several(kind: str) -> bool:
    """Whether a container of this class holds several blocks rather than being one."""
    return named("several-blocks", kind)


def pattern_of(row: Layer, shape: Shape, style: Style, parent: str) -> Pattern:
    """The typical inner layers of a block of this class and output, in a container of class `parent`."""
    # [batch, height, width, channels] has two equal sizes before the channels.
    last = len(shape) < 4 or shape[-3] == shape[-2] != shape[-1]
    axis = -1 if last else 1
    width = max(1, shape[axis])
    if is_attention(row.kind) and not (axis == 1 and named("attention-block", row.kind)):
        return Pattern(_attention(style, "", convolves=axis == 1), 1, axis, residual=False)
    if named("feed-forward", row.kind):
        return Pattern(_feed_forward(row.params, width, style, 1.0, ""), 1, axis, residual=False)
    if len(shape) == 2:
        return Pattern((Step("Linear", share=1.0), Step("ReLU")), 1, axis, residual=False)
    if named("dense-layer", row.kind) and not last:
        return Pattern(_dense_layer(row.params, width), 1, axis, residual=False)
    if last:
        repeats = max(1, round(row.params / (12 * width * width))) if holds_several(row.kind) else 1
        return Pattern(_transformer(row.params / repeats, width, style), repeats, axis, residual=True)
    repeats = max(1, min(64, round(row.params / (8 * width * width)))) if holds_several(row.kind) else 1
    kind = f"{parent} {style.model}" if holds_several(row.kind) else row.kind
    return Pattern(_convolutions(kind, row.params / repeats, width, style), repeats, axis, residual=False)


def shortcut_pattern() -> Pattern:
    """The shortcut around a residual block's layers: one convolution and its norm."""
    return Pattern((Step("Conv2d", share=1.0), Step("BatchNorm2d")), 1, 1, residual=False)


def gate_nodes(shape: Shape, params: int) -> List[Node]:
    """Squeeze and excitation: the channels' means, two small layers, and a factor for each channel."""
    point = (*shape[:2], 1, 1)
    inner = (shape[0], max(1, params // (2 * max(1, shape[1]))), 1, 1)
    rows = (
        Layer(kind="AdaptiveAvgPool2d", outputs=(point,), inputs=(shape,)),
        Layer(kind="Conv2d", outputs=(inner,), inputs=(point,), params=params // 2, kernel=(1, 1)),
        Layer(kind="ReLU", outputs=(inner,), inputs=(inner,)),
        Layer(kind="Conv2d", outputs=(point,), inputs=(inner,), params=params - params // 2, kernel=(1, 1)),
        Layer(kind="Sigmoid", outputs=(point,), inputs=(point,)),
    )
    return [Node(row) for row in rows]


def _attention(style: Style, group: str, share: float = 1.0, *, convolves: bool = False) -> Tuple[Step, ...]:
    kind = "Conv2d" if convolves else "Linear"
    if style.grouped and not convolves:
        return (
            Step("Linear", 1.0, 0.4 * share, group=group, takes=1.0),
            Step("Linear", 0.25, 0.1 * share, group=group, takes=1.0),
            Step("Linear", 0.25, 0.1 * share, group=group, takes=1.0),
            Step("Linear", 1.0, 0.4 * share, group=group, takes=1.0),
        )
    if style.separate and not convolves:
        projection = Step("Linear", 1.0, 0.25 * share, group=group, takes=1.0)
        return (projection,) * 4
    return (
        Step(kind, 3.0, 0.75 * share, inner=True, group=group),
        Step(kind, 1.0, 0.25 * share, group=group, takes=1.0),
    )


def _dense_layer(params: int, growth: int) -> Tuple[Step, ...]:
    """All results of the block so far are normalized, narrowed to four times the growth and convolved."""
    narrow = 4
    taken = (params - 2 * narrow * growth - 9 * narrow * growth**2) / (2 + narrow * growth)
    wide = max(1.0, taken / growth)
    share = min(0.9, 9 * narrow * growth**2 / max(1, params))
    return (
        Step("BatchNorm2d", wide, takes=wide),
        Step("ReLU", wide),
        Step("Conv2d", narrow, 1 - share),
        Step("BatchNorm2d", narrow),
        Step("ReLU", narrow),
        Step("Conv2d", 1.0, share),
    )


def _feed_forward(params: float, width: int, style: Style, share: float, group: str) -> Tuple[Step, ...]:
    """Up, activation, down; the inner width follows from the parameters."""
    # If it is more than eight times as wide, it contains something else, such as a spatial reduction.
    inner = min(8.0, max(0.25, params / ((3 if style.gated else 2) * width * width)))
    up = Step("Linear", inner, share * (1 / 3 if style.gated else 0.5), inner=True, group=group)
    act = Step(style.gelu, inner, inner=True, group=group)
    down = Step("Linear", 1.0, share * (1 / 3 if style.gated else 0.5), group=group)
    if style.gated:
        return (up, act, Step("Linear", inner, share / 3, inner=True, group=group, takes=1.0), down)
    return (up, act, down)


def _transformer(params: float, width: int, style: Style) -> Tuple[Step, ...]:
    """Normalization, attention, normalization, feed-forward."""
    attention = min(1.0, (2.5 if style.grouped else 4) * width * width / params) if params else 0.33
    drop = (Step("Dropout", group=""),) if style.drops else ()
    steps = (Step(style.norm), *_attention(style, style.attention, attention), *drop, Step(style.norm))
    if attention < 1.0 or not params:
        rest = params * (1 - attention) if params else 8.0 * width * width
        steps = (*steps, *_feed_forward(rest, width, style, 1 - attention, "HiddenMlp"), *drop)
    return steps


def _convolutions(kind: str, params: float, width: int, style: Style) -> Tuple[Step, ...]:
    act = style.activation

    def pair(size: float, share: float, *, inner: bool = True) -> Tuple[Step, ...]:
        return (Step("Conv2d", size, share, inner=inner), Step("BatchNorm2d", size, inner=inner))

    if kind.startswith("BnActConv"):
        return (Step("BatchNorm2d"), Step(act), Step("Conv2d", share=1.0))
    if named("conv-norm", kind):
        return (*pair(1, 1.0, inner=False), Step(act))
    if named("inverted", kind):
        smooth = style.mobile_activation
        wide = min(6.0, max(1.0, params / (2.5 * width * width)))
        middle = Step(smooth, wide, inner=True)
        # torchvision's MBConv scales its channels by squeeze and excitation, which keeps what it scales.
        gate = (Step("Multiply", wide, inner=True),) if kind == "MBConv" else ()
        return (*pair(wide, 0.45), middle, *pair(wide, 0.1), middle, *gate, *pair(1, 0.45, inner=False))
    if named("modern-conv", kind) or style.layer_norms:
        wide = max(0.5, params / (2.0 * width * width))
        depthwise = (Step("Conv2d", 1, 0.02), Step("LayerNorm2d", 1))
        return (
            *depthwise,
            Step("Linear", wide, 0.49, inner=True),
            Step("GELU", wide, inner=True),
            Step("Linear", 1, 0.49),
        )
    if named("bottleneck", kind):
        # Solves 2·C·w + 9·w² = parameters for the inner width w.
        wide = min(1.0, max(0.1, ((4 * width**2 + 36 * params) ** 0.5 - 2 * width) / 18 / width))
        middle = Step(act, wide, inner=True)
        return (*pair(wide, 0.25), middle, *pair(wide, 0.5), middle, *pair(1, 0.25, inner=False), Step(act))
    return (*pair(1, 0.5), Step(act, inner=True), *pair(1, 0.5, inner=False), Step(act))
