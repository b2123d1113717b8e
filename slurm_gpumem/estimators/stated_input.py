"""The input that somebody states for a summary: --input 3x224x224, where a summary has no shapes of its own.

A known model is then that of the stated size. Of any other print(model) the input is sent through the layers,
whose arguments say what each makes of it. What the summary itself shows counts before what is stated.
"""

from __future__ import annotations

from typing import Optional, Tuple

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.estimators.known.recognize import recognized
from slurm_gpumem.summaries.input_shape import read_inputs, shape_words, takes_tokens, torchinfo_call
from slurm_gpumem.summaries.parsers.finish import NO_SHAPES
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, ModelSummary, Shape


def with_input(summary: ModelSummary, stated: Optional[str]) -> ModelSummary:
    """The summary with the shapes that follow from the stated input; as it is where nothing is stated."""
    if not stated:
        return summary
    inputs = read_inputs(stated)
    if summary.has_shapes or summary.trace is not None:
        return _compared(summary, inputs)
    digest = f"{summary.digest} {inputs}" if summary.digest else ""
    summary = summary._replace(input_shapes=inputs, digest=digest)
    if recognized(summary) is not None:
        return summary
    from slurm_gpumem.estimators.structural.shapes import MisfitError, flow  # a trace needs none of it

    said = _words(inputs)
    try:
        rows = flow(summary.layers, inputs)
    except MisfitError as error:
        call = torchinfo_call(_sample(inputs[0], None), takes_tokens(summary))
        better = f"Print it with its shapes: {call}"
        raise SummaryError(
            f"what --input {said} becomes in this model is not known: {error}.\n{better}"
        ) from None
    notes = [note for note in summary.warnings if note != NO_SHAPES]
    notes.append(
        f"the summary has no shapes: they were computed from the input {said} and each layer's arguments"
    )
    # Not complete: what stands in no layer is missing, and so is what forward does between them.
    return summary._replace(layers=rows, has_shapes=True, complete=False, warnings=tuple(notes))


def _compared(summary: ModelSummary, inputs: Tuple[Shape, ...]) -> ModelSummary:
    """The summary, which has shapes; SummaryError where they are those of another input."""
    batch = summary.batch if summary.trace is None else summary.trace.job.batch
    shown = [_sample(shape, batch) for shape in summary.input_shapes]
    what = "text" if summary.trace is None else "trace"
    if not shown:
        raise SummaryError(
            f"--input {_words(inputs)}: the {what} has shapes of its own and does not say of which input.\n"
            "Leave --input out, or make the summary with that input."
        )
    stated = [_sample(shape, None) for shape in inputs]
    if any(shape not in shown for shape in stated):
        raise SummaryError(
            f"--input {_words(inputs)}: the {what} was made with "
            f"{_words(summary.input_shapes, batch)}, and its shapes are those.\n"
            "Make it again with the other input, or leave --input out."
        )
    return summary


def _sample(shape: Shape, batch: Optional[int]) -> Tuple[int, ...]:
    """Sizes of one sample, wherever the batch stands."""
    sizes = list(shape)
    for mark in (UNKNOWN_BATCH, batch):
        if mark in sizes:
            sizes.remove(mark)
            break
    return tuple(sizes)


def _words(inputs: Tuple[Shape, ...], batch: Optional[int] = None) -> str:
    named = []
    for shape in inputs:
        at = shape.index(batch) if batch in shape else -1
        named.append(shape_words((*shape[:at], UNKNOWN_BATCH, *shape[at + 1 :]) if at >= 0 else shape))
    return " and ".join(named)
