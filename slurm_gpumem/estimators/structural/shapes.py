"""Shapes for a summary that has none: print(model) gives every layer's sizes but not the input's.

An input is sent through the layers: the one that was stated, otherwise one of common size (an image of
224 x 224 pixels, 512 tokens, or as many features as the first layer takes). The latter is a guess and is
reported as one.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.class_names import family_of, named
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, Layer, ModelSummary, Shape

IMAGE = 224
SMALL_IMAGE = 32
VOLUME = 64
TOKENS = 512
STEPS = 128
_NUMBER = re.compile(r"-?\d+")
_SHORTCUT = re.compile(r"(?:^|\.)(?:downsample|shortcut|skip|identity_conv|proj_shortcut)\w*$")
_SAME = (
    *("identity", "dropout", "drop_path", "batch_norm", "batch_norm_act", "group_norm", "group_norm_act"),
    *("instance_norm", "frozen_norm", "relu", "hard", "input_act", "output_act", "composed_act", "softmax"),
    *("rms_norm", "layer_scale"),
)


def input_shape(row: Layer) -> Optional[Shape]:
    """The shape of the row's first input if the text gives or implies one."""
    return row.inputs[0] if row.inputs else None


def output_shape(row: Layer, x: Tensor) -> Shape:
    """The row's output, or its input's shape if the summary gives none."""
    return row.outputs[0] if row.outputs else x.shape


def with_shapes(summary: ModelSummary) -> Tuple[ModelSummary, str]:
    """The summary with guessed inputs and outputs, and the input that was assumed."""
    first = next((row for row in summary.layers if row.leaf and row.called), None)
    start, assumed = _usual_input(first)
    resized = _resized(summary.layers)
    if resized and len(start) == 4:
        start = (*start[:2], resized, resized)
        assumed = f"an image of {resized} x {resized}, as the model resizes it"
    rows = _Guess(start).rows(summary.layers)
    sides = [row.outputs[0][-1] for row in rows if row.leaf and row.outputs and len(row.outputs[0]) == 4]
    if len(start) == 4 and not resized and sides and min(sides) >= IMAGE // 8:
        # It shrinks its input by less than eight: made for small images, which it could not shrink more.
        start = (*start[:2], SMALL_IMAGE, SMALL_IMAGE)
        assumed = f"an image of {SMALL_IMAGE} x {SMALL_IMAGE}"
        rows = _Guess(start).rows(summary.layers)
    return summary._replace(layers=tuple(rows), input_shapes=(start,)), assumed


class MisfitError(ValueError):
    """A stated input does not lead through the layers; says where."""


def flow(layers: Tuple[Layer, ...], inputs: Sequence[Shape]) -> Tuple[Layer, ...]:
    """The rows with the shapes that follow from the inputs; MisfitError where one does not follow.

    What a layer takes must be what the one before it made, a half or a third of that (gates; queries, keys
    and values in one), all of it in one row, or what a module around it takes. Otherwise a forward does
    something that no summary shows, and all sizes behind it would be guesses: the outputs of measured
    models are then off by a factor of 0.01 to 14.
    """
    if not any(layer.attributes for layer in layers):
        raise MisfitError("the summary does not show what its layers make of an input, as print(model) does")
    guess = _Guess(inputs[0])
    for shape in inputs[1:]:
        guess.seen.setdefault(shape[1] if len(shape) > 3 else shape[-1], shape)
    rows = guess.rows(layers)
    # A classifier takes a mean of an image's positions; who does so before may take each of them.
    last = next((row for row in reversed(layers) if row.leaf and _sizes(row)), None)
    means = [(row, reason) for row, reason in guess.means if row is not last]
    for row, reason in sorted([*guess.unclear, *means], key=lambda found: found[0].line):
        raise MisfitError(f"{row.name or row.kind} (line {row.line}, {row.kind}) {reason}")
    return tuple(rows)


def _usual_input(first: Optional[Layer]) -> Tuple[Shape, str]:
    family = family_of(first.kind) if first else ""
    sizes = _sizes(first) if first else []
    if family.startswith("embedding"):
        return (UNKNOWN_BATCH, TOKENS), f"{TOKENS} tokens"
    if family in ("conv", "conv_transpose") and first is not None and sizes:
        if "1d" in first.kind:
            return (UNKNOWN_BATCH, sizes[0], STEPS), f"{STEPS} steps of {sizes[0]} channels"
        if "3d" in first.kind:
            return (UNKNOWN_BATCH, sizes[0], VOLUME, VOLUME, VOLUME), f"a volume of {VOLUME}³ points"
        return (UNKNOWN_BATCH, sizes[0], IMAGE, IMAGE), f"an image of {IMAGE} x {IMAGE}"
    if family in ("rnn", "mha") and sizes:
        return (UNKNOWN_BATCH, STEPS, sizes[0]), f"{STEPS} steps of {sizes[0]} features"
    if family == "linear" and sizes:
        return (UNKNOWN_BATCH, sizes[0]), f"{sizes[0]} features"
    return (UNKNOWN_BATCH, 3, IMAGE, IMAGE), f"an image of {IMAGE} x {IMAGE}"


def _resized(rows: Sequence[Layer]) -> int:
    """The side to which a detector resizes its images; 0 if there is none."""
    for row in rows:
        numbers = _NUMBER.findall(dict(row.attributes).get("min_size", ""))
        if row.kind == "Resize" and numbers:
            return max(map(int, numbers))
    return 0


def _sizes(row: Layer) -> List[int]:
    """The first numbers in a layer's parentheses: its channels or features, in and out."""
    found: List[int] = []
    for name, value in row.attributes:
        if name in ("0", "1", "in_features", "out_features", "in_channels", "out_channels") or (
            name in ("input_size", "hidden_size", "num_embeddings", "embedding_dim", "nf", "nx")
        ):
            found += [int(number) for number in _NUMBER.findall(value)[:1]]
    return found


def _option(row: Layer, name: str, default: int) -> int:
    value = dict(row.attributes).get(name)
    numbers = _NUMBER.findall(value) if value else []
    return int(numbers[0]) if numbers else default


class _Guess:
    """The shape that flows through the rows, and where each width was seen last."""

    def __init__(self, start: Shape) -> None:
        self.cur = start
        self.seen: Dict[int, Shape] = {start[1]: start}
        self.around: List[Shape] = []
        """Inputs of the open containers."""
        self.means: List[Tuple[Layer, str]] = []
        self.unclear: List[Tuple[Layer, str]] = []
        """Rows whose input does not follow from what is shown, and why."""
        self.beside: Dict[int, Shape] = {}
        """By the row of an open shortcut: the result of the main branch."""

    def rows(self, layers: Sequence[Layer]) -> List[Layer]:
        """Every row with its input and output; a container has its last child's output."""
        result: List[Layer] = []
        open_at: List[int] = []
        for layer in layers:
            while open_at and result[open_at[-1]].depth >= layer.depth:
                self._close(result, open_at.pop())
            if layer.leaf:
                entry = self._entry(layer)
                self.cur = self._made(layer, entry)
                self.seen[self.cur[1] if len(self.cur) > 3 else self.cur[-1]] = self.cur
                result.append(layer._replace(inputs=(entry,), outputs=(self.cur,)))
            else:
                open_at.append(len(result))
                main = self.cur
                if _SHORTCUT.search(layer.name) and self.around:
                    # Parallel to the block's other layers: it starts where they started.
                    self.cur = self.around[-1]
                    self.beside[len(result)] = main
                self.around.append(self.cur)
                result.append(layer._replace(inputs=(self.cur,)))
        while open_at:
            self._close(result, open_at.pop())
        return result

    def _close(self, result: List[Layer], index: int) -> None:
        entry = self.around.pop()
        if named("gate", result[index].kind):
            self.cur = entry
        result[index] = result[index]._replace(outputs=(self.cur,))
        self.cur = self.beside.pop(index, self.cur)

    def _entry(self, row: Layer) -> Shape:
        """The layer's input: the current shape, or the last one of the width that it needs."""
        sizes = _sizes(row)
        family = family_of(row.kind)
        cur = self.cur
        if not sizes or family.startswith("embedding"):
            return cur
        # transformers' Conv1D writes its output first, a group norm its groups.
        second = row.kind == "Conv1D" or family.startswith("group_norm")
        width = sizes[1] if second and len(sizes) > 1 else sizes[0]
        if family.startswith(("conv", "batch_norm", "instance_norm", "group_norm")):
            if len(cur) > 2 and cur[1] == width:
                return cur
            nearby = [shape for shape in reversed(self.around) if len(shape) > 2 and shape[1] == width]
            if nearby:
                return nearby[0]
            self.unclear.append((row, f"takes {width} channels, and gets {_channels(cur)}"))
            found = self.seen.get(width)
            if found is not None and len(found) > 2 and found[1] == width:
                return found
            return (cur[0], width, *cur[2:]) if len(cur) > 2 else cur
        if family in ("linear", "rnn", "mha", "layer_norm", "rms_norm"):
            if cur[-1] == width:
                return cur
            if len(cur) == 4 and cur[1] == width:
                # Patches become tokens before a norm; a classifier takes their mean.
                tokens = (cur[0], cur[2] * cur[3], width)
                if family == "linear" and tokens[1] > 1:
                    self.means.append((row, f"takes a mean over {tokens[1]} positions, or each of them"))
                return tokens if family != "linear" else (cur[0], width)
            found = self.seen.get(width)
            if _product(cur[1:]) == width:
                return (cur[0], width)
            nearby = [shape for shape in reversed(self.around) if shape[-1] == width and len(shape) < 4]
            if cur[-1] not in (2 * width, 3 * width) and not nearby:
                self.unclear.append((row, f"takes {width} features, and gets {cur[-1]}"))
            if found is not None and found[-1] == width:
                return found
            if nearby:
                return nearby[0]
            return (*cur[:-1], width) if len(cur) == 3 else (cur[0], width)
        return cur

    def _made(self, row: Layer, entry: Shape) -> Shape:
        family = family_of(row.kind)
        sizes = _sizes(row)
        if family in _SAME or family == "layer_norm":
            return (entry[0], _product(entry[1:])) if row.kind == "Flatten" else entry
        if family.startswith("embedding") and len(sizes) > 1:
            return (UNKNOWN_BATCH, entry[1] if len(entry) in (2, 3) else TOKENS, sizes[1])
        if family == "linear" and len(sizes) > 1:
            return (*entry[:-1], sizes[0] if row.kind == "Conv1D" else sizes[1])
        if family == "conv" and len(sizes) > 1:
            return (entry[0], sizes[1], *self._strided(row, entry, 1))
        if family == "conv_transpose" and len(sizes) > 1:
            return (entry[0], sizes[1], *(size * _option(row, "stride", 1) for size in entry[2:]))
        if family in ("max_pool", "avg_pool"):
            return (*entry[:2], *self._strided(row, entry, _option(row, "kernel_size", 2)))
        if family == "global_pool":
            side = _option(row, "output_size", 1)
            return (*entry[:2], *(side for _ in entry[2:])) if len(entry) > 2 else entry
        if family == "upsample" and len(entry) > 2:
            return (*entry[:2], *(size * _option(row, "scale_factor", 2) for size in entry[2:]))
        if family == "rnn" and len(sizes) > 1:
            both = 2 if dict(row.attributes).get("bidirectional") == "True" else 1
            return (*entry[:-1], sizes[1] * both)
        return entry

    def _strided(self, row: Layer, entry: Shape, stride: int) -> Tuple[int, ...]:
        kernel, padding = _option(row, "kernel_size", 1), _option(row, "padding", 0)
        stride = _option(row, "stride", stride)
        if dict(row.attributes).get("padding") == "same":
            return tuple(-(-size // max(1, stride)) for size in entry[2:])
        reach = _option(row, "dilation", 1) * (kernel - 1) + 1
        return tuple(max(1, (size + 2 * padding - reach) // max(1, stride) + 1) for size in entry[2:])


def _channels(shape: Shape) -> int:
    return shape[1] if len(shape) > 1 else 0


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
