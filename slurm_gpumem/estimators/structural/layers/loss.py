"""The two ends of a step: the input batch, and the loss over the last output."""

from __future__ import annotations

from typing import List, Optional, Tuple

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.layers.class_names import (
    family_of,
    has_decoder,
    named,
    upsamples_logits,
)
from slurm_gpumem.estimators.structural.layers.convolutions import first_convolution, input_of_first
from slurm_gpumem.estimators.structural.shapes import input_shape
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import Shape

# Whether a language model's output layer uses its embedding's weights again: no summary shows it.
#
# torchinfo counts such weights twice, with a row for each use. What a class of transformers does follows from
# `tie_word_embeddings` in its configuration; the lists are those of transformers 5.17.

_CAUSAL = "ForCausalLM"
_TIED_DECODER = "BertGenerationDecoder"
# Published models whose configuration differs from their class's default, by class and vocabulary: small
# ones, whose embedding would be a large part of the model (Llama 3.2, SmolLM, Qwen 1.5 to 3, Granite 3).
_PUBLISHED: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    ("Llama", (128_256, 49_152)),
    ("Qwen", (151_936,)),
    ("Granite", (49_155, 49_156, 49_159)),
)
_SMALL_WIDTH = 3072


def ties_output(model: str, width: int, vocabulary: int) -> bool:
    """Whether a model of this class and size uses its embedding's weights again as its output layer."""
    if width <= _SMALL_WIDTH and any(
        model.startswith(start) and vocabulary in sizes for start, sizes in _PUBLISHED
    ):
        return _CAUSAL in model or named("tied", model)
    if model.endswith(_CAUSAL):
        return named("tied-causal", model)
    return model == _TIED_DECODER or (named("tied", model) and not named("untied", model))


_INDEX_BYTES = 8
_FLOAT = 4
_WIDTHS = {"fp32": 4, "fp16": 2, "bf16": 2, "int64": 8, "uint8": 1}


def start(walk: Walk, tree: List[Node]) -> None:
    """Allocate the batch."""
    walk.tied = _tied(walk)
    first = _first_leaf(tree)
    shapes = list(walk.summary.input_shapes)
    integers = first is not None and family_of(first.row.kind).startswith("embedding")
    if not shapes and first is not None:
        norms = any(family_of(row.kind) == "layer_norm" for row in walk.summary.layers)
        shape = _batch_shape(walk, first, cuts_patches=norms or walk.has_guesses)
        shapes = [shape] if shape else []
    if not shapes:
        shapes = [(walk.summary.batch or -1,)]
    width = _INDEX_BYTES if integers else walk.wide
    width = _WIDTHS.get(walk.job.input_dtype, width)
    for shape in shapes:
        tensor = walk.make(shape, width, grad=False)
        walk.tape.inputs.append(tensor.store)
        walk.give(tensor)
    walk.cur = walk.recent[shapes[0]]
    walk.sent = shapes[0]


def _tied(walk: Walk) -> int:
    """The parameters that embeddings, and perhaps the output layer, share; 0 if there is no sign of it."""
    leaves = walk.summary.leaves
    table = next((row for row in leaves if family_of(row.kind) == "embedding"), None)
    heads = [row for row in leaves if family_of(row.kind) == "linear" and row.outputs]
    model = walk.summary.name or walk.summary.layers[0].kind
    if table is None or not heads or not table.params:
        return 0
    same = heads[-1].params - table.params in (0, heads[-1].outputs[0][-1])
    width = max(1, table.outputs[0][-1]) if table.outputs else 1
    walk.ties_head = same and ties_output(model, width, table.params // width)
    copies = int(walk.ties_head)
    if has_decoder(model):
        # The encoder's and the decoder's embedding are the same weights.
        copies += sum(family_of(row.kind) == "embedding" and row.params == table.params for row in leaves) - 1
    if not copies:
        return 0
    if walk.ties_head:
        walk.assume("the output layer shares the embedding's weights, as this class does")
    for _ in range(copies):
        walk.forget(table.params)
    return table.params


def _first_leaf(tree: List[Node]) -> Optional[Node]:
    for node in tree:
        if node.children:
            found = _first_leaf(node.children)
            if found is not None:
                return found
        elif node.row.called:
            return node
    return None


def _batch_shape(walk: Walk, node: Node, *, cuts_patches: bool) -> Optional[Shape]:
    given = input_shape(node.row)
    if given or not node.row.outputs:
        return given
    made = node.row.outputs[0]
    if len(made) > 3 and family_of(node.row.kind) == "conv":
        stated = input_of_first(node.row, (walk.summary.input_bytes or 0) // _FLOAT)
        if stated is not None:
            return stated
        channels, shrinks = first_convolution(node.row, cuts_patches=cuts_patches)
        return (made[0], channels, *(size * factor for size, factor in zip(made[2:], shrinks)))
    return made


def finish(walk: Walk) -> None:
    """Record the loss over the current tensor; it and the output outlive the step."""
    walk.tape.label = "loss"
    logits = walk.take(walk.cur)
    if named("logits-bias", walk.summary.name):
        biased = walk.tape.new(logits.shape, logits.elements, walk.wide, grad=logits.grad)
        logits = walk.tape.op((logits,), biased, alias=not walk.amp)
    walk.tape.survivors.append(logits)
    if not named("computes-loss", walk.summary.name):
        walk.tape.returned = len(walk.tape.ops)
    if upsamples_logits(walk.summary.name) and len(logits.shape) == len(walk.sent) == 4:
        whole = walk.make((*logits.shape[:2], *walk.sent[2:]), logits.width)
        logits = walk.tape.op((logits,), whole)
    if walk.job.loss == "none":
        total = walk.tape.new((), 1, walk.wide, grad=logits.grad)
        walk.tape.op((logits,), total)
        walk.tape.survivors.append(total)
        return
    total = walk.tape.new((), 1, 4, grad=logits.grad)
    if walk.job.loss == "mse":
        wide = walk.widened(logits)
        target = walk.tape.new(logits.shape, logits.elements, 4, grad=False)
        walk.tape.inputs.append(target.store)
        walk.tape.op((wide,), total, saved=(wide,))
    else:
        shape = logits.shape or (1,)  # the layers may end with a loss
        classes = max(1, shape[-1] if len(shape) < 4 else shape[1])
        target = walk.tape.new((), max(1, logits.elements // classes), _INDEX_BYTES, grad=False)
        walk.tape.inputs.append(target.store)
        _cross_entropy(walk, logits, total)
        walk.assume("the loss is cross-entropy over the last layer's output")
    walk.tape.survivors.append(total)


def _cross_entropy(walk: Walk, logits: Tensor, total: Tensor) -> None:
    """Log-probabilities and the selection from them.

    cross_entropy computes the logarithm in the logits' own precision, and autocast widens it afterwards.
    Language models of transformers widen the logits first.
    """
    if logits.width < _FLOAT and named("generates", walk.summary.name):
        wide = walk.tape.new(logits.shape, logits.elements, _FLOAT, grad=logits.grad)
        logits = walk.tape.op((logits,), wide)
    logs = walk.tape.new(logits.shape, logits.elements, logits.width, grad=logits.grad)
    walk.tape.op((logits,), logs, saved=(logs,))
    chosen = walk.widened(logs)
    walk.tape.op((chosen,), total, saved=(chosen,))
