"""The convolutions that `gpumem calibrate` measures: few, of the kinds in which GPUs differ."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Tuple

from slurm_gpumem.estimators.workspaces.convolutions import workspace_bytes
from slurm_gpumem.summaries.trace_types import CALLS, Convolution

DTYPES = ("fp32", "fp16", "bf16")
BATCHES = (8, 32, 128)
LARGEST_TENSOR = 1 << 30
"""Bytes; a case with a larger one is left out, so that small GPUs take part."""
NEAR_MIB, NEAR_SHARE = 2, 0.1
"""A call is as expected within these."""
MOST_SCALE = 4.0


class Shape(NamedTuple):
    """A square convolution with padding that keeps the size."""

    channels: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1


SHAPES = (
    Shape(3, 64, 224, 7, 2),
    Shape(3, 64, 224, 3),
    Shape(64, 64, 224, 3),
    Shape(64, 64, 512, 3),
    Shape(128, 128, 112, 3),
    Shape(256, 256, 56, 3),
    Shape(512, 512, 28, 3),
    Shape(512, 512, 14, 3),
    Shape(64, 64, 56, 3),
    Shape(64, 256, 56, 1),
    Shape(256, 64, 56, 1),
    Shape(256, 512, 56, 1, 2),
    Shape(1024, 2048, 14, 1),
    Shape(128, 256, 56, 3, 2),
    Shape(96, 96, 56, 7, 1, 96),
    Shape(144, 144, 56, 3, 1, 144),
    Shape(256, 256, 28, 3, 2, 32),
    Shape(67, 131, 56, 3),
    Shape(30, 60, 112, 5),
    Shape(1, 32, 28, 3),
)


class Case(NamedTuple):
    """One convolution at a batch size and in a precision."""

    shape: Shape
    dtype: str
    batch: int

    @property
    def out_size(self) -> int:
        """Of one side."""
        return (self.shape.size - 1) // self.shape.stride + 1

    def convolution(self, call: str) -> Convolution:
        """As a trace has it."""
        shape, side = self.shape, self.shape.kernel // 2
        return Convolution(
            call=call,
            dtype=self.dtype,
            batch=(self.batch,),
            channels=shape.channels,
            outputs=shape.outputs,
            size=(shape.size, shape.size),
            out_size=(self.out_size, self.out_size),
            kernel=(shape.kernel, shape.kernel),
            stride=(shape.stride, shape.stride),
            padding=(side, side),
            dilation=(1, 1),
            groups=shape.groups,
        )


class Row(NamedTuple):
    """What one call took, beside what the table expects; bytes."""

    dtype: str
    expected: int
    measured: int


class Findings(NamedTuple):
    """What the measured calls say about a GPU."""

    scale: Dict[str, float]
    """By precision: what workspaces take, as a multiple of the table's."""
    agreeing: float
    """Share of the calls that are as the scaled table expects."""
    calls: int


def cases() -> Iterator[Case]:
    """All cases, those of one shape beside each other."""
    for shape in SHAPES:
        for dtype in DTYPES:
            for batch in BATCHES:
                number = 4 if dtype == "fp32" else 2
                if batch * max(shape.channels, shape.outputs) * shape.size**2 * number <= LARGEST_TENSOR:
                    yield Case(shape, dtype, batch)


def rows_of(measured: List[Tuple[int, List[int]]]) -> List[Row]:
    """Results of the probe, (number of the case, bytes by CALLS), beside the table's."""
    every = list(cases())
    return [
        Row(every[number].dtype, workspace_bytes(every[number].convolution(call), every[number].batch), size)
        for number, sizes in measured
        for call, size in zip(CALLS, sizes)
        if size >= 0
    ]


def findings(rows: List[Row]) -> Findings:
    """Scales by precision, and how well they explain the calls."""
    scale: Dict[str, float] = {}
    for dtype in DTYPES:
        own = [row for row in rows if row.dtype == dtype]
        expected = sum(row.expected for row in own)
        found = sum(row.measured for row in own) / expected if expected else 1.0
        near = _agreeing([row._replace(measured=row.measured) for row in own], {dtype: 1.0})
        # Where most calls are as expected the few others are no scale.
        scale[dtype] = 1.0 if near >= _MOST else round(min(max(found, 1 / MOST_SCALE), MOST_SCALE), 3)
    return Findings(scale, _agreeing(rows, scale), len(rows))


_MOST = 0.9


def is_as_expected(found: Findings) -> bool:
    """Whether the table holds on this GPU."""
    return found.agreeing >= _MOST and all(value == 1.0 for value in found.scale.values())


def _agreeing(rows: List[Row], scale: Dict[str, float]) -> float:
    near = sum(
        abs(row.measured - row.expected * scale[row.dtype])
        <= max(NEAR_MIB << 20, NEAR_SHARE * max(row.measured, row.expected * scale[row.dtype]))
        for row in rows
    )
    return near / len(rows) if rows else 0.0
