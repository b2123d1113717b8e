"""Containers: their children in order, and what their forward does around them."""

from __future__ import annotations

from math import prod
from typing import List, Optional

from slurm_gpumem.estimators.allocator.tape import Tensor
from slurm_gpumem.estimators.structural.forwards.registry import forward_of
from slurm_gpumem.estimators.structural.layers import attention
from slurm_gpumem.estimators.structural.layers.class_names import (
    family_of,
    hidden_activation,
    is_attention,
    may_add_input,
    named,
)
from slurm_gpumem.estimators.structural.layers.convolutions import conv_input
from slurm_gpumem.estimators.structural.layers.layers import norm_of, rule_for
from slurm_gpumem.estimators.structural.shapes import input_shape
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Scope, Walk
from slurm_gpumem.summaries.types import Layer, Shape

_ACTIVATIONS = ("relu", "hard", "input_act", "output_act")
_TRANSFORMER_NORMS = ("layer_norm", "rms_norm", "affine")
_HALVED = (*_ACTIVATIONS, *_TRANSFORMER_NORMS)
_ACTIVATES = (
    *("relu", "hard", "input_act", "output_act", "composed_act"),
    *("batch_norm_act", "group_norm_act", "rnn", "rnn_cell", "mha"),
)
_PASSING = ("identity", "dropout", "drop_path", "layer_scale")
_MOST_SCALES = 4
_SILU = Layer(kind="SiLU")
_RELU = Layer(kind="ReLU", attributes=(("inplace", "False"),))


def run(walk: Walk, node: Node) -> None:
    """Walk one module; its output becomes the walk's current tensor."""
    row = node.row
    walk.tape.label = row.kind
    if not row.called:
        walk.param(row.params, trainable=row.trainable)
        for child in node.children:
            run(walk, child)
    elif family_of(row.kind) == "mha":
        attention.multihead(walk, node)
    elif family_of(row.kind) == "composed_act":
        _leaf(walk, node)  # the layers it calls are part of its rule
    elif node.children or attention.uses_weights_only(node):
        _container(walk, node)
    else:
        _leaf(walk, node)


def _leaf(walk: Walk, node: Node) -> None:
    row = node.row
    family = family_of(row.kind)
    if family == "rotary":
        # Sines and cosines; they are used inside the attention.
        if row.outputs and row.outputs[0][-1] > 1:
            walk.head = row.outputs[0][-1]
        walk.rotary = True
        walk.param(row.params)
        return
    taken = input_shape(row)
    attends = any(is_attention(scope.kind) for scope in walk.scopes[-2:])
    if family in _HALVED and taken is not None and walk.is_half(taken) and not attends:
        # This takes one half of the latest result, not an older tensor of that shape.
        x = walk.half(taken)
        if family in _TRANSFORMER_NORMS and walk.scopes:
            walk.scopes[-1].half = x
            walk.give(rule_for(row)(walk, row, x))
            return
    elif family in _PASSING and taken is not None and walk.holds(taken):
        # The latest result in another shape: not the block's input, although that may have the same shape.
        x = walk.take(walk.tape.view(walk.cur, taken))
    else:
        parallel = _parallel(walk, taken) if family in _ACTIVATIONS else None
        if parallel is not None:
            other = walk.take(walk.cur)
            walk.multiply(rule_for(row)(walk, row, walk.take(parallel)), other)
            return
        x = walk.find(conv_input(walk, row) if family == "conv" else input_shape(row))
    if family in _TRANSFORMER_NORMS:
        x = _residual_stream(walk, x)
        out = walk.give(rule_for(row)(walk, row, x))
        post = bool(walk.scopes) and walk.scopes[-1].post_norm
        if walk.stream is not None and (post or walk.stream.grad_id != x.grad_id):
            walk.stream = out
        return
    out = walk.give(rule_for(row)(walk, row, x))
    walk.sources[out.grad_id] = x
    if node.activated is not None:
        walk.activated.add(walk.give(rule_for(node.activated)(walk, node.activated, walk.take(out))).grad_id)
        return
    if family in _ACTIVATIONS or family in ("softmax", "composed_act"):
        walk.activated.add(out.grad_id)
        if x.grad_id in walk.halves and not attends:
            # One half, activated, gates the other.
            walk.multiply(out, x)
        elif walk.scopes and walk.scopes[-1].entry is x and walk.scopes[-1].kind == "NormFreeBlock":
            walk.give(walk.tape.op((walk.take(out),), walk.make(out.shape, out.width, grad=out.grad)))


def _parallel(walk: Walk, taken: Optional[Shape]) -> Optional[Tensor]:
    """The earlier of two results of layers that widen one tensor: activated, it scales the other."""
    cur = walk.cur
    first = walk.waiting(cur) if taken is None or taken == cur.shape else None
    if first is None or cur.grad_id in walk.activated or first.grad_id in walk.activated:
        return None
    source, other = walk.sources.get(cur.grad_id), walk.sources.get(first.grad_id)
    if source is None or other is None or source.shape != other.shape or cur.elements <= source.elements:
        return None
    return first


def _activates(kind: str) -> bool:
    """Whether a module of this class is an activation or may have one that no row shows."""
    family = family_of(kind)
    return family in _ACTIVATES or (not family and is_attention(kind))


def _mark_functional(nodes: List[Node], *, adds: bool) -> None:
    """In a model without any activation row, mark the layers that must be followed by a function.

    That is after a normalization or, if none follows, after a convolution; not at the end of a block
    that adds its input, where it acts on the sum.
    """
    layers = [node for node in nodes if node.row.called]
    for index, node in enumerate(layers):
        family = family_of(node.row.kind)
        following = layers[index + 1 :]
        if node.children:
            _mark_functional(node.children, adds=may_add_input(node.row.kind) or (adds and not following))
        elif family == "batch_norm":
            if not adds or any(family_of(other.row.kind) == "conv" for other in following):
                node.activated = _RELU
        elif family == "conv":
            normed = bool(following) and "norm" in family_of(following[0].row.kind)
            if not normed and not adds and len(node.row.outputs) == 1:
                node.activated = _RELU


def _mark_group_norms(nodes: List[Node]) -> None:
    """Mark group norms before a convolution in blocks without an activation row: diffusion models
    call theirs as a function on the normalized tensor."""
    layers = [node for node in nodes if node.row.called]
    families = [family_of(node.row.kind) for node in layers]
    silent = not any(family in _ACTIVATES for family in families)
    for index, node in enumerate(layers):
        if node.children:
            _mark_group_norms(node.children)
        elif silent and families[index] == "group_norm":
            after = [family for family in families[index + 1 :] if family not in ("dropout", "identity")]
            if after[:1] == ["conv"]:
                node.activated = _SILU


def _residual_stream(walk: Walk, x: Tensor) -> Tensor:
    """The input of a transformer's normalization: the stream plus the latest result."""
    stream = walk.stream
    inside = walk.scopes and not is_attention(walk.scopes[-1].kind)
    if stream is None and walk.amp and x.width < walk.wide and _adds_positions(walk, x):
        wide = walk.tape.new(x.shape, x.elements, walk.wide, grad=x.grad)
        x = walk.take(walk.give(walk.tape.op((walk.take(x),), wide, alias=True)))
    if inside and _convolved(walk, x):
        return x
    if stream is not None and inside and _same_tokens(stream, x) and stream.grad_id != x.grad_id:
        x = walk.take(walk.add(_branch(walk, x), stream))
    if inside:
        walk.stream = x
    return x


def _adds_positions(walk: Walk, x: Tensor) -> bool:
    """Whether the model itself has a parameter for each number of a sample: positions, in full precision."""
    top = walk.summary.layers[0]
    return not top.leaf and len(x.shape) == 3 and x.grad and top.params >= prod(x.shape[1:])


def _convolved(walk: Walk, x: Tensor) -> bool:
    """Whether a convolution of this block just made its input: then this is not the end of a branch."""
    last = walk.tape.ops[-1] if walk.tape.ops else None
    return last is not None and last.out.store == x.store and family_of(last.label) == "conv"


def _same_tokens(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same number of tokens of one width, in any layout."""
    if left.shape == right.shape:
        return True
    return left.elements == right.elements and left.shape[-1:] == right.shape[-1:]


def _branch(walk: Walk, x: Tensor) -> Tensor:
    """What a block does to a branch before it is added: a dropout without a row, a learned scale."""
    scope = walk.scopes[-1]
    if x.grad_id == scope.entry.grad_id:
        return x
    if named("functional-dropout", scope.kind):
        kept = walk.tape.new(x.shape, x.elements, x.width, grad=x.grad)
        x = walk.give(walk.tape.op((walk.take(x),), kept, kept=(x.elements,)))
    if not scope.scales:
        return x
    scope.scales -= 1
    out = walk.tape.new(x.shape, x.elements, max(x.width, walk.wide))
    walk.give(walk.tape.op((walk.take(x),), out, saved=(x,), back=(x.bytes,)))
    return out


def _ends_with_norm(node: Node) -> bool:
    """Whether a block normalizes after its last addition, as the first transformers did."""
    last = next((child for child in reversed(node.children) if child.row.called), None)
    return last is not None and family_of(last.row.kind) in _TRANSFORMER_NORMS


def _count_scales(row: Layer, own: int) -> int:
    """How many of a block's branches have a scale for each channel, from its own parameters."""
    width = row.outputs[0][-1] if row.outputs and len(row.outputs[0]) > 2 else 0
    return own // width if width > 0 and own % width == 0 and 1 < own // width <= _MOST_SCALES else 0


def _container(walk: Walk, node: Node) -> None:
    row = node.row
    shape = input_shape(row)
    if shape is None and "norm" in family_of(row.kind) and row.outputs:
        shape = row.outputs[0]
    if node.shortcut and walk.scopes:
        entry = walk.scopes[-1].entry
    else:
        entry = walk.find(shape) if shape is not None else walk.cur
    scope = Scope(row.kind, entry)
    walk.scopes.append(scope)
    walk.cur = entry
    family = family_of(row.kind)
    first_op = len(walk.tape.ops)
    own = 0 if node.guessed else row.params
    if family in ("batch_norm_act", "group_norm_act", "batch_norm", "layer_norm", "rms_norm"):
        walk.give(norm_of(row)(walk, row, walk.take(entry)))
        own = 0
    adds = may_add_input(row.kind) and not named("branches", row.kind)
    if adds:
        scope.scales = _count_scales(row, own)
        scope.post_norm = _ends_with_norm(node)
        if scope.post_norm:
            walk.stream = entry
    merged = False
    uncalled = attention.uncalled_projection(node)
    forward = forward_of(walk, node)
    if forward is not None:
        forward(walk, node, run)
        walk.param(own, trainable=row.trainable)
        own = 0
    elif is_attention(row.kind) and attention.projections(node):
        attention.container(walk, node, run)
    elif uncalled:
        attention.around_uncalled(walk, node, uncalled, run)
        own = 0
    elif attention.uses_weights_only(node):
        attention.functional(walk, node, run)
        own = 0
    elif named("branches", row.kind):
        _branches(walk, node.children, entry)
    else:
        packed: List[Tensor] = []
        for child in node.children:
            if adds and child is node.children[-1] and family_of(child.row.kind) in _ACTIVATIONS:
                merged = _merge_shortcut(walk, scope, in_place=True)
            linear = family_of(child.row.kind) == "linear"
            is_packed = linear and attention.is_packed(child)
            if packed and not is_packed and attention.ends_attention(walk, child, packed):
                packed = []
            run(walk, child)
            if is_packed:
                packed.append(walk.cur)
            elif linear and _hides_activation(node.children, child):
                walk.give(rule_for(_RELU)(walk, _RELU, walk.take(walk.cur)))
    walk.tape.label = row.kind
    if len(walk.tape.ops) == first_op and walk.cur is entry:
        walk.give(entry)
    hidden = hidden_activation(row.kind)
    if hidden and len(node.children) == 1 and family_of(node.children[0].row.kind) == "linear":
        act = Layer(kind=hidden)
        walk.give(rule_for(act)(walk, act, walk.take(walk.cur)))
    _finish(walk, node, scope, own, adds and not merged)
    walk.scopes.pop()
    walk.tape.hold(entry)
    walk.sources[walk.cur.grad_id] = entry
    walk.give(walk.cur)
    if walk.job.checkpointing and may_add_input(row.kind):
        _checkpoint(walk, first_op)


def _hides_activation(children: List[Node], child: Node) -> bool:
    """Whether a function without a row follows this layer: it widens, the next linear one narrows
    again, and there is no activation between them."""
    made, taken = child.row.outputs[:1], child.row.inputs[:1]
    following = children[children.index(child) + 1 :]
    after = next((c for c in following if c.row.called and family_of(c.row.kind) != "dropout"), None)
    if after is None or after.children or family_of(after.row.kind) != "linear" or not made or not taken:
        return False
    return after.row.inputs[:1] == made and after.row.outputs[:1] == taken and made[0][-1] > taken[0][-1]


def _checkpoint(walk: Walk, first_op: int) -> None:
    """Mark a block as recomputed in the backward pass; the outermost one counts."""
    tape = walk.tape
    while tape.segments and tape.segments[-1][0] >= first_op:
        tape.segments.pop()
    if len(tape.ops) > first_op:
        tape.segments.append((first_op, len(tape.ops)))


def _branches(walk: Walk, children: List[Node], entry: Tensor) -> None:
    """Re-parametrized blocks: every convolution takes the block's input, the results are added."""
    made: List[Tensor] = []
    for child in children:
        family = family_of(child.row.kind)
        # A norm beside the convolutions is a branch; after all of them it normalizes their sum.
        of_sum = family == "batch_norm" and child is children[-1] and len(made) > 1 and not child.children
        if of_sum and entry.shape == made[0].shape:
            made.append(entry)
        if family in _ACTIVATIONS or family == "identity" or named("gate", child.row.kind) or of_sum:
            _add_all(walk, made)
            made = []
            run(walk, child)
            continue
        if not child.row.outputs and child.children:
            for member in child.children:
                walk.cur = entry
                run(walk, member)
                made.append(walk.cur)
            continue
        walk.cur = entry
        run(walk, child)
        made.append(walk.cur)
    _add_all(walk, made)


def _add_all(walk: Walk, made: List[Tensor]) -> None:
    for first in made[:1]:
        walk.cur = first
        for other in made[1:]:
            if other.shape == first.shape and other.grad_id != walk.cur.grad_id:
                walk.add(walk.cur, other)


def _merge_shortcut(walk: Walk, scope: Scope, *, in_place: bool) -> bool:
    """Add the block's input, or what its shortcut made of it, to the result of its other layers."""
    cur = walk.cur
    waiting = [t for t in scope.unused.values() if t.grad_id != cur.grad_id and t.shape == cur.shape]
    other: Optional[Tensor] = None
    if waiting:
        other = waiting[-1]
    elif scope.entry.shape == cur.shape and scope.entry.grad_id != cur.grad_id:
        other = scope.entry
    if other is None:
        return False
    walk.add(cur, other, in_place=in_place)
    return True


def _finish(walk: Walk, node: Node, scope: Scope, own: int, adds: bool) -> None:
    """What a container does after its children: gates, scales, additions, concatenations."""
    row = node.row
    shape = row.outputs[0] if row.outputs else None
    entry, cur = scope.entry, walk.cur
    if _count_scales(row, own) and adds:
        walk.param(own, trainable=row.trainable)
    elif own:
        params = walk.param(own, trainable=row.trainable)
        if len(cur.shape) > 1 and own in (cur.shape[1], cur.shape[-1]) and cur.grad_id != entry.grad_id:
            # A learned scale of the block's output.
            out = walk.tape.new(cur.shape, cur.elements, max(cur.width, walk.wide))
            walk.take(cur)
            walk.give(walk.tape.op((cur,), out, saved=(cur,), params=params))
        elif params:
            # Positions, one number for each of a sample's, are added in full precision.
            width = max(cur.width, walk.wide) if own >= prod(cur.shape[1:]) else cur.width
            out = walk.tape.new(cur.shape, cur.elements, width)
            walk.give(walk.tape.op((walk.take(cur),), out, params=params, alias=True))
        cur = walk.cur
    if shape is None:
        return
    if adds and cur.shape != shape and cur.elements == walk.count(shape):
        # Tokens become pixels of an image again.
        cur = walk.give(walk.tape.view(walk.take(cur), shape))
    if scope.half is not None and cur.elements == scope.half.elements:
        cur = walk.multiply(walk.tape.view(walk.take(cur), shape), scope.half)
    full = entry if entry.shape == shape else walk.recent.get(shape)
    if full is not None and cur.shape != shape and _gates(cur, full):
        walk.multiply(full, cur)
    elif adds and cur.shape == shape and not (scope.post_norm and walk.stream is cur):
        norms = [child for child in node.children if family_of(child.row.kind) in _TRANSFORMER_NORMS]
        if norms and walk.stream is not None and _same_tokens(walk.stream, cur):
            if walk.stream.grad_id != cur.grad_id:
                walk.stream = walk.add(_branch(walk, cur), walk.stream)
        else:
            _merge_shortcut(walk, scope, in_place=False)
    if len(walk.scopes) == 1 and shape in walk.recent:
        # A model returns several tensors, of which the row shows one; the loss uses the last one made.
        return
    if walk.cur.shape != shape:
        walk.give(walk.joined(shape) or walk.find(shape))


def _gates(cur: Tensor, entry: Tensor) -> bool:
    """Whether `cur` has one value per channel of `entry`: squeeze and excitation."""
    if len(entry.shape) != 4 or cur.elements >= entry.elements:
        return False
    channels = {entry.shape[1], entry.shape[3]}
    return [size for size in cur.shape[1:] if size != 1] in [[c] for c in channels]


def run_all(walk: Walk, nodes: List[Node]) -> None:
    """Walk the top-level modules."""
    if not walk.has_guesses and not any(_activates(row.kind) for row in walk.summary.layers):
        _mark_functional(nodes, adds=False)
    if any(family_of(row.kind) == "group_norm" for row in walk.summary.layers):
        _mark_group_norms(nodes)
    for node in nodes:
        run(walk, node)
