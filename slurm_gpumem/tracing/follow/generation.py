"""`model.generate()` of transformers: as long as it may become, without running every token.

Whether a text has ended depends on values, which a trace does not have: every text is taken to reach
`max_new_tokens`. A token does what the one before it did, on a cache that is one token longer. After a few
tokens that are alike, the rest is added to the trace by their growth.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.inference import Inference
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

WINDOW = 8
"""Tokens over which growth is measured: masks are padded to multiples of eight."""
_FIRST = 2
"""The first tokens release what the prompt left."""
_MOST_EVENTS = 120_000
"""That the tokens which are not run may take."""
_SEEN_CALLS = 2
"""Calls of `generate` with the same shapes that are run."""
Mark = Tuple[int, int]


class Generation:
    """Follows calls of `generate`."""

    def __init__(self, recorder: ScriptRecorder, inference: Inference) -> None:
        self._recorder = recorder
        self._inference = inference
        self._marks: Optional[List[Mark]] = None
        """Where the recorder stood after each token of the call at work."""
        self._length = 0
        self._left_out = 0
        self._seen: Dict[Any, Tuple[int, List[Any], Any]] = {}

    def install(self) -> None:
        """Wait for transformers."""
        AfterImport(
            {
                "transformers.generation.stopping_criteria": self._in_criteria,
                "transformers.generation.utils": self._in_utils,
            }
        ).install()

    def _in_criteria(self, module: Any) -> None:
        def call(criteria: Any, input_ids: Any, scores: Any = None, **kwargs: Any) -> Any:
            done = self._after_token(int(input_ids.shape[1]), criteria.max_length)
            return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)

        module.StoppingCriteriaList.__call__ = call

    def _in_utils(self, module: Any) -> None:
        real = module.GenerationMixin.generate

        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._marks is not None:
                return real(model, *args, **kwargs)  # an assistant's, inside another one's
            key = _key(model, args, kwargs)
            count, leaves, spec = self._seen.get(key, (0, [], None))
            if count >= _SEEN_CALLS:
                self._inference.skipped(model, (args, kwargs))
                with self._recorder.unnoted():
                    return pytree.tree_unflatten([_made(leaf) for leaf in leaves], spec)
            self._marks, self._left_out = [], 0
            try:
                answer = self._whole(real(model, *args, **kwargs))
            finally:
                self._marks = None
            if key is not None:
                leaves, spec = pytree.tree_flatten(answer)
                if all(isinstance(leaf, (torch.Tensor, type(None))) for leaf in leaves):
                    self._seen[key] = (count + 1, [_shape(leaf) for leaf in leaves], spec)
            return answer

        module.GenerationMixin.generate = generate

    def _after_token(self, length: int, longest: Optional[int]) -> bool:
        """Called after each token; whether the texts have ended."""
        if longest is None:
            return False
        if length >= longest:
            return True
        marks = self._marks
        if marks is None:
            return False
        if length != self._length + 1:
            marks.clear()
        if not marks:
            self._inference.asked_for(longest - length + 1)
        self._length = length
        recorder = self._recorder
        marks.append((len(recorder.events), len(recorder.blocks)))
        if len(marks) <= _FIRST + WINDOW or longest - length <= 1:
            return False
        if recorder.repeat_growing(marks[-1 - WINDOW - 1 :], longest - length, _MOST_EVENTS):
            self._left_out = longest - length
            return True
        return False

    def _whole(self, answer: Any) -> Any:
        """The answer as long as it would be."""
        if not self._left_out or not isinstance(answer, torch.Tensor):
            return answer
        with self._recorder.unnoted():
            rest = torch.zeros((answer.shape[0], self._left_out), dtype=answer.dtype, device=answer.device)
            return torch.cat([answer, rest], dim=1)


def _key(model: Any, args: Any, kwargs: Any) -> Optional[Tuple[Any, ...]]:
    """What a call's memory depends on; None where that is more than shapes and plain values."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    found: List[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.append((tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, (int, float, str, bool, type(None))):
            found.append(leaf)
        elif type(leaf).__name__ == "GenerationConfig":
            found.append(str(leaf))
        else:
            return None
    return (id(model), str(spec), tuple(found))


def _shape(leaf: Any) -> Any:
    if leaf is None:
        return None
    with torch._C.DisableTorchFunction():
        return tuple(leaf.shape), leaf.dtype, leaf.device


def _made(leaf: Any) -> Any:
    if leaf is None:
        return None
    shape, dtype, device = leaf
    return torch.empty(shape, dtype=dtype, device=device)
