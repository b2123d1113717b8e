"""Our own summary, `gpumem-summary/1`: layers like every other format's, and a trace of the first steps.

One JSON document, docs/developer/summary-format.md has its fields. Names of tensors' places are kept, code,
weights and paths are not. Everything read is checked: the file may come from anybody.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Sequence, Tuple, Type, TypeVar, Union

from slurm_gpumem.errors import NotEstimatedError, SummaryError
from slurm_gpumem.summaries.trace_types import (
    CALL_TYPES,
    CALLS,
    CATEGORIES,
    DTYPES,
    KERNELS,
    PHASES,
    SIZES,
    WAYS,
    Convolution,
    Kernel,
    Phase,
    Polynomial,
    Reduction,
    Site,
    Trace,
    TracedJob,
)
from slurm_gpumem.summaries.types import Layer, ModelSummary, Shape
from slurm_gpumem.training_names import sharded

FORMAT = "gpumem-summary/1"
_AGAIN = "write it again with `gpumem summarize`"
_LARGEST = 1 << 50
_MOST_EVENTS = 4_000_000
_LONGEST_NAME = 1000
_MOST_SIZES = 7

Kind = TypeVar("Kind", Convolution, TracedJob)


# -- Writing -------------------------------------------------------------------------------------


def save_summary(summary: ModelSummary, path: Union[str, os.PathLike[str]]) -> None:
    """Write what `summarize` returned to a file that `estimate`, `gpumem` and `gpusbatch --model` read."""
    from pathlib import Path

    from slurm_gpumem.named_files import save  # reading needs neither

    save(Path(path), to_json(summary))


def to_json(summary: ModelSummary) -> str:
    """The document; `summary.trace` must be there."""
    if summary.trace is None:
        raise ValueError("a summary of our own has a trace")
    document = {
        "format": FORMAT,
        "model": {
            "name": summary.name,
            "params": summary.total_params,
            "trainable_params": summary.trainable_params,
            "input_shapes": summary.input_shapes,
            "warnings": summary.warnings,
        },
        "layers": [_plain(layer) for layer in summary.layers],
        "trace": trace_content(summary.trace),
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _plain(layer: Layer) -> Dict[str, Any]:
    """Only what differs from the defaults."""
    defaults = Layer._field_defaults
    return {
        name: value
        for name, value in layer._asdict().items()
        if name not in defaults or value != defaults[name]
    }


def trace_content(trace: Trace) -> Dict[str, Any]:
    """A trace as plain values, for a JSON document."""
    operators: Dict[str, int] = {}
    modules: Dict[str, int] = {}
    convolutions: Dict[Convolution, int] = {}
    sites = []
    for site in trace.sites:
        row: List[Any] = [
            list(site.bytes),
            operators.setdefault(site.operator, len(operators)),
            modules.setdefault(site.module, len(modules)),
            CATEGORIES.index(site.category),
        ]
        if site.convolution is not None:
            row.append(convolutions.setdefault(site.convolution, len(convolutions)))
        elif site.reduction is not None:
            row.append(list(site.reduction))
        if site.stream:
            row += [None] * (5 - len(row)) + [site.stream]
        sites.append(row)
    return {
        "job": trace.job._asdict(),
        "way": trace.way,
        "scalable": trace.scalable,
        "uses_conv": trace.uses_conv,
        "uses_matmul": trace.uses_matmul,
        "benchmark": trace.benchmark,
        **({"finished": True} if trace.finished else {}),
        **({"unfinished": trace.unfinished} if trace.unfinished else {}),
        **({"varied": True} if trace.varied else {}),
        "remarks": trace.remarks,
        "operators": list(operators),
        "modules": list(modules),
        "convolutions": [convolution._asdict() for convolution in convolutions],
        "sites": sites,
        "phases": [[phase.event, phase.name, phase.step] for phase in trace.phases],
        "events": trace.events,
        "kernels": [_kernel_row(kernel) for kernel in trace.kernels],
        **({"emptied": trace.emptied} if trace.emptied else {}),
    }


def _kernel_row(kernel: Kernel) -> List[Any]:
    names = (KERNELS.index(kernel.kind), PHASES.index(kernel.phase), DTYPES.index(kernel.dtype))
    return [*names, kernel.times, list(kernel.bytes), *(list(size) for size in kernel.sizes)]


# -- Reading -------------------------------------------------------------------------------------


def parse(text: str, *, origin: str) -> ModelSummary:
    """Read and check a document; SummaryError says what is wrong with it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SummaryError(f"{origin}: is not whole JSON: {error}; {_AGAIN}") from None
    try:
        return _summary(document)
    except (_Wrong, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SummaryError(f"{origin}: is no {FORMAT}: {what}; {_AGAIN}") from None


class _Wrong(ValueError):
    """A field is not what it must be."""


def _summary(document: Any) -> ModelSummary:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        said = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise _Wrong(f"format is {str(said)[:50]!r}")
    model = document["model"]
    if not isinstance(model, dict):
        raise _Wrong("model is not an object")
    trace = trace_of(document["trace"])
    layers = tuple(_layer(values) for values in _list(document["layers"], "layers"))
    return ModelSummary(
        format="gpumem",
        layers=layers,
        name=_text(model.get("name", ""), "name"),
        batch=trace.job.batch,
        input_shapes=_shapes(model.get("input_shapes", [])),
        total_params=_whole(model["params"], "params"),
        trainable_params=_whole(model["trainable_params"], "trainable_params"),
        warnings=tuple(_text(text, "warning") for text in _list(model.get("warnings", []), "warnings")),
        has_shapes=any(layer.outputs for layer in layers),
        trace=trace,
    )


def _layer(values: Any) -> Layer:
    if not isinstance(values, dict):
        raise _Wrong("a layer is not an object")
    unknown = set(values) - set(Layer._fields)
    if unknown:
        raise _Wrong(f"a layer has an unknown field {sorted(unknown)[0][:50]!r}")
    read: Dict[str, Any] = dict(values)
    read["kind"] = _text(values["kind"], "kind")
    for name in ("outputs", "inputs"):
        read[name] = _shapes(values.get(name, []))
    for name in ("params", "depth", "line"):
        read[name] = _whole(values.get(name, 0), name)
    for name in ("trainable", "leaf", "repeated", "hidden", "called", "params_known"):
        if not isinstance(values.get(name, False), bool):
            raise _Wrong(f"a layer's {name} is not true or false")
    read["name"] = _text(values.get("name", ""), "name")
    read["kernel"] = None if values.get("kernel") is None else _shape(values["kernel"])
    read["attributes"] = tuple(
        (_text(key, "attribute"), _text(value, "attribute")) for key, value in values.get("attributes", [])
    )
    read["derived"] = tuple(_text(text, "derived") for text in values.get("derived", []))
    return Layer(**read)


def trace_of(content: Any) -> Trace:
    """The trace of a document, every value checked; ValueError and the like where one is wrong."""
    if not isinstance(content, dict):
        raise _Wrong("trace is not an object")
    operators = [_text(text, "operator") for text in _list(content["operators"], "operators")]
    modules = [_text(text, "module") for text in _list(content["modules"], "modules")]
    convolutions = [_convolution(values) for values in _list(content["convolutions"], "convolutions")]
    sites = tuple(_site(row, operators, modules, convolutions) for row in _list(content["sites"], "sites"))
    events = _events(content["events"], len(sites))
    way = content["way"]
    if way not in WAYS:
        raise _Wrong(f"way is {str(way)[:50]!r}")
    return Trace(
        job=_job(content["job"]),
        way=way,
        sites=sites,
        events=events,
        phases=_phases(content["phases"], len(events)),
        scalable=content.get("scalable", True) is True,
        uses_conv=content.get("uses_conv", False) is True,
        uses_matmul=content.get("uses_matmul", False) is True,
        benchmark=content.get("benchmark", False) is True,
        finished=content.get("finished", False) is True,
        unfinished=_text(content.get("unfinished", ""), "unfinished"),
        varied=content.get("varied", False) is True,
        remarks=tuple(_text(text, "remark") for text in _list(content.get("remarks", []), "remarks")),
        kernels=tuple(_kernel(row) for row in _list(content.get("kernels", []), "kernels")),
        emptied=_emptied(content.get("emptied", []), len(events)),
    )


def _site(
    row: Any, operators: Sequence[str], modules: Sequence[str], convolutions: Sequence[Convolution]
) -> Site:
    if not 4 <= len(_list(row, "site")) <= 6:
        raise _Wrong("a site has not four to six elements")
    numbers = [_whole(number, "site") for number in row[1:4]]
    extra = row[4] if len(row) > 4 else None
    return Site(
        bytes=_polynomial(row[0]),
        operator=operators[numbers[0]],
        module=modules[numbers[1]],
        category=CATEGORIES[numbers[2]],
        convolution=convolutions[_whole(extra, "convolution")] if isinstance(extra, int) else None,
        reduction=_reduction(extra) if isinstance(extra, list) else None,
        stream=_whole(row[5], "stream") if len(row) > 5 else 0,
    )


def _kernel(row: Any) -> Kernel:
    if not 5 <= len(_list(row, "kernel")) <= 5 + _MOST_SIZES:
        raise _Wrong("a kernel has too few or too many elements")
    kind, phase, dtype, count = (_whole(number, "kernel") for number in row[:4])
    sizes = tuple(_polynomial(size) for size in row[5:])
    if len(sizes) < SIZES.get(KERNELS[kind], 2):
        raise _Wrong("a kernel lacks sizes")
    return Kernel(KERNELS[kind], PHASES[phase], DTYPES[dtype], sizes, _polynomial(row[4]), count)


def _reduction(values: List[Any]) -> Reduction:
    inputs, outputs, vector, number = (
        values if len(values) != 3 else (*values, Reduction._field_defaults["number"])
    )
    if vector not in (1, 2, 4, 8):
        raise _Wrong("a sum's vector is not 1, 2, 4 or 8")
    if number not in (4, 8, 16, 32):
        raise _Wrong("a sum's number has not 4, 8, 16 or 32 bytes")
    return Reduction(_polynomial(inputs), _polynomial(outputs), vector, number)


def _events(values: Any, sites: int) -> Tuple[int, ...]:
    """The stream; a release of what was never allocated, or twice, is refused here."""
    if len(_list(values, "events")) > _MOST_EVENTS:
        raise _Wrong(f"more than {_MOST_EVENTS:,} events")
    live = bytearray()
    for index, value in enumerate(values):
        if type(value) is not int or value >= sites or -value > len(live):
            raise _Wrong(f"event {index} is {str(value)[:20]}")
        if value >= 0:
            live.append(1)
        elif live[value]:
            live[value] = 0
        else:
            raise _Wrong(f"event {index} releases a block twice")
    return tuple(values)


def _phases(rows: Any, events: int) -> Tuple[Phase, ...]:
    found: List[Phase] = []
    for event, name, step in _list(rows, "phases"):
        last = found[-1].event if found else 0
        if type(event) is not int or not last <= event <= events or name not in PHASES:
            raise _Wrong(f"phase {str(name)[:20]!r} begins at event {str(event)[:20]}")
        found.append(Phase(event, name, _whole(step, "step")))
    if not found or found[0].event:
        raise _Wrong("no phase begins at the first event")
    return tuple(found)


def _emptied(values: Any, events: int) -> Tuple[int, ...]:
    found = [_whole(value, "emptied") for value in _list(values, "emptied")]
    if any(not before < at < events for before, at in zip([-1, *found], found)):
        raise _Wrong("emptied is not a list of events in their order")
    return tuple(found)


def _convolution(values: Any) -> Convolution:
    read = _fields(Convolution, values)
    for name in ("size", "out_size", "kernel", "stride", "padding", "dilation"):
        read[name] = _shape(read[name])
    read["batch"] = _polynomial(read["batch"])
    for name in ("channels", "outputs", "groups"):
        if _whole(read[name], name) < 1:
            raise _Wrong(f"a convolution's {name} is {read[name]}")
    if read["call"] not in CALLS or read["dtype"] not in CALL_TYPES:
        raise _Wrong(f"a convolution is a {str(read['call'])[:50]!r} of {str(read['dtype'])[:50]!r}")
    if read["channels"] % read["groups"] or read["outputs"] % read["groups"]:
        raise _Wrong("a convolution's groups do not divide its channels")
    sizes = [read[name] for name in ("size", "out_size", "kernel", "stride", "dilation")]
    if {len(each) for each in (*sizes, read["padding"])} not in ({1}, {2}, {3}):
        raise _Wrong("a convolution's sizes are not all of one, two or three dimensions")
    if any(number < 1 for each in sizes for number in each):
        raise _Wrong("a convolution has a size below 1")
    return Convolution(**read)


def _job(values: Any) -> TracedJob:
    if isinstance(values, dict) and "strategy" in values:
        # Earlier versions traced a model that its script shards as a whole one, and noted how.
        values = dict(values)
        strategy = _text(values.pop("strategy"), "strategy")
        if strategy not in ("", "ddp"):
            raise NotEstimatedError(sharded(strategy.partition(",")[0][:20]))
    read = _fields(TracedJob, values)
    for name in ("batch", "grad_accumulation", "ranks"):
        if _whole(read.get(name, 1), name) < 1:
            raise _Wrong(f"{name} is {read[name]}")
    for name in ("optimizer", "precision", "loss", "torch"):
        _text(read.get(name, ""), name)
    return TracedJob(**read)


def _fields(kind: Type[Kind], values: Any) -> Dict[str, Any]:
    """A type's fields from an object; its own defaults give the types of numbers and flags."""
    if not isinstance(values, dict):
        raise _Wrong(f"{kind.__name__} is not an object")
    for name, value in values.items():
        if name not in kind._fields:
            raise _Wrong(f"{kind.__name__} has an unknown field {name[:50]!r}")
        default = kind._field_defaults.get(name)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise _Wrong(f"{name} is not true or false")
        if isinstance(default, str):
            _text(value, name)
    return dict(values)


# -- Values --------------------------------------------------------------------------------------


def _list(value: Any, what: str) -> List[Any]:
    if not isinstance(value, list):
        raise _Wrong(f"{what} is not a list")
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise _Wrong(f"{what} is {str(value)[:30]!r}, not a whole number")
    return int(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise _Wrong(f"{what} is not a text of at most {_LONGEST_NAME} characters")
    # Terminal control characters have no place in a name.
    return value if value.isprintable() else "".join(c for c in value if c.isprintable())


def _shape(value: Any) -> Shape:
    sizes = _list(value, "shape")
    if any(type(size) is not int or not -1 <= size <= _LARGEST for size in sizes):
        raise _Wrong("a shape has a size that is no whole number")
    return tuple(sizes)


def _shapes(value: Any) -> Tuple[Shape, ...]:
    return tuple(_shape(shape) for shape in _list(value, "shapes"))


def _polynomial(value: Any) -> Polynomial:
    numbers = _list(value, "size")
    if len(numbers) > 4 or any(type(n) is not int or abs(n) > _LARGEST for n in numbers):
        raise _Wrong("a size is no polynomial of whole numbers")
    return tuple(numbers)
