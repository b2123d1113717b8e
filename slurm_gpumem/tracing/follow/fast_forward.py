"""Fast forward: when training repeats itself, its models are no longer run, so that evaluation comes soon.

A model that is called with the same shapes as before answers with tensors of the same shapes as before; what
is noted is the first time. Gradients are made again after each backward pass, so that they are alive where
they would be. Where training does more than before (a longer rollout, a loss that is switched on) after calls
that were skipped, their graphs are missing beside it: the next two are run whole. What goes wrong in this
mode ends the trace with what was seen until then.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.engine.values import is_wrapped
from slurm_gpumem.tracing.follow.answers import (
    Again,
    Answer,
    Call,
    GrowingCalls,
    Leaf,
    ModelStates,
    described,
    kept_by,
    kept_of,
    tensors_in,
)
from slurm_gpumem.tracing.follow.enough_steps import Steps
from slurm_gpumem.tracing.script.inference import Inference, Passes
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

# Whether training gives a model batches of many shapes: what PyTorch keeps then depends on their order.

Shapes = Tuple[Tuple[int, ...], ...]
_MANY = 4
"""Of a model's batches: more than full ones, a last one that is smaller, and two stages."""
_DRAWN = 3
"""Of batches in no order. After a last batch comes a full one or the next stage's, but after no second shape
is there a choice; where shapes are drawn, each may follow each."""


class BatchShapes:
    """The shapes of one model's batches, in their order."""

    def __init__(self) -> None:
        self._batches: Set[Shapes] = set()
        self._next: Dict[Tuple[Shapes, Shapes], Set[Any]] = {}
        """Batches with their answers, and other ones that came right after each."""
        self._last: Optional[Tuple[Shapes, Shapes]] = None

    def add(self, batch: Shapes, answer: Shapes) -> None:
        """A batch, and what the model made of it: a number beside a batch may decide how large that is (the
        scale of a picture), or nothing (a step, a temperature)."""
        self._batches.add(batch)
        here = batch, answer
        self._next.setdefault(here, set())
        if self._last is not None and self._last != here:
            self._next[self._last].add(here)
        self._last = here

    @property
    def varied(self) -> bool:
        """Whether there are many, or some that come as if they were drawn."""
        choices = sum(len(others) > 1 for others in self._next.values())
        return len(self._batches) >= _MANY or (len(self._next) >= _DRAWN and choices > 1)


def shapes_in(value: Any) -> Shapes:
    """Of the tensors of a call's inputs, or of its answer."""
    return tuple(tuple(tensor.shape) for tensor in tensors_in(value))


SEEN_EVALUATIONS = 4
"""Passes without gradients of the same shapes that are run before the rest is skipped."""
_LONGEST_CYCLE = 32
"""Calls of the same shapes between two steps that are run, if more than ever before: their graphs may all be
kept, as in an evaluation without no_grad."""
_WHOLE_AFTER_MORE = 2
"""Cycles that are run whole after one that did more than before. The first is beside what that one left; in
the second its blocks lie where the first left gaps, and what PyTorch reserves may still grow."""
_SPARSE = "_gpumem_sparse"
"""Marks parameters whose gradients have rows for what a batch used only: there are none of others."""


class FastForward:
    """Skips calls whose effect on memory is known."""

    def __init__(self, recorder: ScriptRecorder, steps: Steps, inference: Inference) -> None:
        self._recorder = recorder
        self._places = recorder.places
        self._steps = steps
        self._inference = inference
        self._states = ModelStates()
        self._answers: Dict[Any, Answer] = {}
        self._before: Dict[Any, Tuple[int, int]] = {}
        """The cycle in which each call was run first, and the most bytes that it was run beside."""
        self._last: Dict[Any, Answer] = {}
        """Of calls with inputs of growing sizes."""
        self._counts: Dict[Any, int] = {}
        self._cycle = 0
        self._here: Dict[Any, int] = {}
        """Calls with gradients in the training cycle at work ..."""
        self._most: Dict[Any, int] = {}
        """... and the most that were run in one."""
        self._alive_in_forward = False
        """Whether gradients of the step before are alive when a model is called, as in evaluation then."""
        self._batches: Dict[int, BatchShapes] = {}
        self.skipping = False
        """Whether the training cycle at work has skipped a call."""
        self._more_at: Optional[int] = None
        """The last training cycle that did more than any before it, and had skipped a part."""
        self._largest: Dict[int, int] = {}
        """The most elements that each model was given in training."""
        self.whole = False
        """Whether gradients of weights are asked for: answers of calls that are not run have none."""
        self._growing = GrowingCalls()
        self._completed = Passes()

    def install(self) -> None:
        """Stand before every call of a model."""
        real: Callable[..., Any] = nn.Module.__call__
        places = self._places

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if places.depth or self._recorder.computes_again:
                return real(module, *args, **kwargs)
            if self._recorder.loading and _transforms(module):
                return module.forward(*args, **kwargs)
            return self._root(real, module, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _root(self, real: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        key = self._key(module, args, kwargs)
        growing = self._growing_call(key)
        longer = growing is not None and self._growing.grows(growing)
        if longer or not (torch.is_grad_enabled() and module.training and _learns(module)):
            # Transforms of images and losses are modules too, and no models; a text that grows is no batch.
            return self._answer(real, module, (args, kwargs), key, growing)
        batch = shapes_in((args, kwargs))
        answer = self._answer(real, module, (args, kwargs), key, growing)
        self._batches.setdefault(id(module), BatchShapes()).add(batch, shapes_in(answer))
        return answer

    def _answer(
        self, real: Callable[..., Any], module: nn.Module, given: Any, key: Any, growing: Optional[Call]
    ) -> Any:
        """What a call gives: it is run, or what is known of it is given again."""
        args, kwargs = given
        known = self._answers.get(key)
        trains = torch.is_grad_enabled() and module.training
        learns = _learns(module)
        # An evaluation without no_grad keeps its graph, beside which others may be called.
        graph = trains or (torch.is_grad_enabled() and learns)
        usual = self._usual(key) if graph else True
        usual = usual and (trains or self._counts.get(key, 0) >= SEEN_EVALUATIONS or self._is_repeated(key))
        whole = self.whole or self._is_after_more()
        usual = usual and not (trains and whole) and not _transformed(args, kwargs, module)
        # Also in evaluation: a model that adapts to each task asks for gradients of its weights there.
        asked = graph and self.whole
        usual = usual and not asked
        if known is not None and usual and (self._steps.fast_forward or not trains):
            self.skipping = self.skipping or trains
            if trains:
                self._recorder.kernels.stop(self._recorder.cycles + 1)
            self._inference.skipped(module, given)
            return self._again(known, given)
        if growing is not None and known is None and not asked and (self._steps.fast_forward or not trains):
            grown = self._growing.answer(growing, self._recorder.peak_bytes)
            if grown is not None:
                self._inference.skipped(module, given)
                return self._again(self._grown(growing, grown), given)
        if trains and learns:
            self._look_for_more(module, (args, kwargs), known)
        cycle, beside = self._before.get(key, (self._recorder.cycles, 0))
        self._before[key] = cycle, max(beside, self._recorder.live_bytes)
        blocks = self._recorder.blocks
        before = len(blocks)
        self._places.named_inputs = kwargs
        answer = real(module, *args, **kwargs)
        self._completed.add(module, given)
        leaves, spec = pytree.tree_flatten(answer)
        kept = kept_by(module)
        if _has_no_weights(module) and (
            (len(blocks) == before and _is_of_the_cpu((args, kwargs, answer)))
            or any(type(leaf) in (int, float) for leaf in leaves)
        ):
            # A transform of samples, or a loss that counts: numbers are real, and no step is shorter without.
            return answer
        if key is not None and all(_has_no_state(leaf) for leaf in leaves) and kept is not None:
            seen: Dict[int, Leaf] = {}
            left = [(weakref.ref(part), name, kept_of(value, seen)) for part, name, value in kept]
            found = self._answers[key] = Answer([kept_of(leaf, seen) for leaf in leaves], spec, left)
            self._counts[key] = self._counts.get(key, 0) + 1
            if not self.skipping:
                self._most[key] = max(self._most.get(key, 0), self._here.get(key, 0))
            plain = not left and all(leaf is None or isinstance(leaf, Leaf) for leaf in found.leaves)
            if growing is not None and plain:
                self._last[growing.family] = found
                shapes = tuple(None if leaf is None else leaf.shape for leaf in found.leaves)
                self._growing.ran(growing, shapes, sum(block.nbytes for block in blocks[before:]))
        return answer

    def _growing_call(self, key: Any) -> Optional[Call]:
        """A call that may be one of a series with ever longer inputs; None: none of them can be longer."""
        if key is None or not any(_is_tensor(one) for one in key[-1]):
            return None
        shapes = tuple(one[0] if _is_tensor(one) else None for one in key[-1])
        kinds = tuple((len(one[0]), *one[1:]) if _is_tensor(one) else one for one in key[-1])
        recorder = self._recorder
        return Call((*key[:-1], kinds), shapes, len(recorder.phases), recorder.live_bytes)

    def _grown(self, call: Call, shapes: List[Any]) -> Answer:
        """The last answer of this series, as large as it is by now."""
        last = self._last[call.family]
        pairs = zip(last.leaves, shapes)
        return last._replace(leaves=[leaf and replace(leaf, shape=shape) for leaf, shape in pairs])

    @property
    def completed(self) -> int:
        """Calls of models that were run to their end."""
        return self._completed.count

    @property
    def varies(self) -> bool:
        """Whether training gives a model batches of many shapes."""
        return any(batches.varied for batches in self._batches.values())

    def _look_for_more(self, module: nn.Module, given: Any, known: Optional[Answer]) -> None:
        """Before a call in training is run: whether it is more than was run before, beside what was not."""
        elements = sum(tensor.numel() for tensor in tensors_in(given))
        more = elements > self._largest.get(id(module), -1)
        self._largest[id(module)] = max(elements, self._largest.get(id(module), -1))
        if self.skipping and (more or known is not None):
            self._more_at = self._recorder.cycles

    def _is_after_more(self) -> bool:
        """Whether the training cycle at work comes soon after one that did more."""
        return self._more_at is not None and 0 < self._recorder.cycles - self._more_at <= _WHOLE_AFTER_MORE

    @property
    def does_more(self) -> bool:
        """Whether the training cycle at work does more than any that was run whole."""
        return self._more_at is not None and self._more_at == self._recorder.cycles

    @property
    def misses_more(self) -> bool:
        """Whether no whole cycle came after one that did more."""
        return self._more_at is not None and self._recorder.cycles <= self._more_at + 1

    def _is_repeated(self, key: Any) -> bool:
        """Whether an earlier evaluation had it, beside as much: growing texts have each length once."""
        cycle, beside = self._before.get(key, (self._recorder.cycles, 0))
        repeated = cycle < self._recorder.cycles and self._recorder.live_bytes <= beside
        return repeated and self._steps.fast_forward

    def _usual(self, key: Any) -> bool:
        """Whether a cycle with this call is as long as one that was run."""
        if self._cycle != self._recorder.cycles:
            self._cycle = self._recorder.cycles
            self._here.clear()
        self._here[key] = self._here.get(key, 0) + 1
        return self._here[key] <= self._most.get(key, 0) or self._here[key] > _LONGEST_CYCLE

    def _key(self, module: nn.Module, args: Any, kwargs: Any) -> Optional[Tuple[Any, ...]]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if not all(_has_no_state(leaf) for leaf in leaves):
            return None
        shapes = tuple(described(leaf) for leaf in leaves)
        return (id(module), self._states.of(module), torch.is_grad_enabled(), str(spec), shapes)

    def _again(self, known: Answer, given: Any) -> Any:
        asked = [one for one in pytree.tree_leaves(given) if isinstance(one, Tensor) and one.requires_grad]
        again = Again(asked if torch.is_grad_enabled() else [])
        for found, name, leaf in known.left:
            part = found()
            if part is not None:
                vars(part)[name] = again.made(leaf)
        collected = not self._steps.counts  # without training, a script may keep them
        with nullcontext() if collected else self._recorder.unnoted():
            return pytree.tree_unflatten([again.made(leaf) for leaf in known.leaves], known.spec)

    def cycle_over(self) -> bool:
        """Whether the training cycle that ends skipped its models; the next one begins."""
        skipped, self.skipping = self.skipping and not self.does_more, False
        return skipped

    # -- Gradients ---------------------------------------------------------------------------------

    def before_call(self, trains: bool) -> None:
        """A model is called by the script: gradients are there where they would be."""
        if trains and not self.skipping:
            self._alive_in_forward = any(p.grad is not None for p in self._parameters())
        elif not trains and self.skipping and self._alive_in_forward:
            self._make_gradients()

    def after_backward(self) -> None:
        """After a backward pass that found nothing to do."""
        if self.skipping:
            self._make_gradients()
        else:
            for parameter in self._parameters():
                if parameter.grad is not None and parameter.grad.layout != torch.strided:
                    setattr(parameter, _SPARSE, True)

    def _make_gradients(self) -> None:
        for parameter in self._parameters():
            if parameter.grad is None and parameter.requires_grad and not hasattr(parameter, _SPARSE):
                parameter.grad = torch.empty_like(parameter)

    def _parameters(self) -> Iterator[Any]:
        for optimizer in self._steps.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
        # Also those that no optimizer has: a script may train copies of them.
        for root in self._places.roots.values():
            if root.trained and root.module is not None:
                yield from root.module.parameters()


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _has_no_weights(module: nn.Module) -> bool:
    return not any(True for _ in module.parameters())  # a script's own may give a list of them


def _is_of_the_cpu(values: Any) -> bool:
    """Whether neither what a module was given nor its answer is on the GPU."""
    with torch._C.DisableTorchFunction():
        return all(tensor.device.type != "meta" for tensor in tensors_in(values))


def _is_tensor(description: Tuple[Any, ...]) -> bool:
    """Whether this is how `described` describes a tensor."""
    return isinstance(description[0], tuple)


def _transformed(args: Any, kwargs: Any, module: nn.Module) -> bool:
    """Whether a transform (vmap, grad) calls the model: its tensors know more than their shapes."""
    given = [*tensors_in((args, kwargs)), *module.parameters()]
    return any(is_wrapped(one) for one in given if isinstance(one, Tensor))


def _has_no_state(leaf: Any) -> bool:
    """Whether a value is no cache of keys and values, which grows with every call."""
    return isinstance(leaf, Tensor) or not hasattr(leaf, "get_seq_length")


def _transforms(module: nn.Module) -> bool:
    """Whether a module is no model: it learns nothing, and nobody watches it."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return not hooks and _has_no_weights(module)
