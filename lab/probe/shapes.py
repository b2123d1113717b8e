"""Collect convolutions for `probe`: of traced runs, or of the models that timm knows.

    python -m lab.probe.shapes --cache DIR
    python -m lab.probe.shapes --timm

The folder is what `trace_rows` filled. The first writes plans/convolutions-of-runs.json.gz: a list of
convolutions as plans/convolutions.json.gz has them, each followed by type, channels last and batch of the
run. The second writes plans/convolutions-of-timm.json.gz: those of timm's models with pictures of the
model's own size. Models of the hold-out part are left out of both.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from math import prod
from pathlib import Path
from typing import Any, List, Optional, Set

from lab.command import exit_code
from lab.ground_truth import load_ground_truth_rows, part_of
from lab.probe.cases import RUNS, TIMM
from lab.score.trace_rows import path_of
from slurm_gpumem.estimators.workspaces.convolutions import BYTES
from slurm_gpumem.summaries.own import parse as parse_own
from slurm_gpumem.summaries.trace_types import Convolution, evaluate

LARGEST = 3 << 30
"""Bytes of input and output: several probes share the GPU."""
LARGEST_SIDE, MOST_PARAMETERS, FEWEST_LAYERS = 512, 400_000_000, 4
"""Of the models of timm that are run: pictures' sides, parameters, convolutions."""


def shapes_of(cache: Path) -> List[List[Any]]:
    """Every distinct convolution of the folder's development runs, in a fixed order."""
    found: Set[str] = set()
    for row in load_ground_truth_rows():
        path = path_of(cache, row["key"])
        if part_of(row["model"]) != "development" or not path.exists():
            continue
        with gzip.open(path, "rt") as file:
            file.readline()
            trace = parse_own(file.read(), origin=row["key"]).trace
        assert trace is not None
        for site in trace.sites:
            c = site.convolution
            if c is not None and c.call == "forward" and c.dtype != "fp64":
                rows = evaluate(c.batch, trace.job.batch)
                if rows * _sample_bytes(c) <= LARGEST:
                    found.add(json.dumps(_shape(c, rows)))
    return [json.loads(text) for text in sorted(found)]


def _sample_bytes(c: Convolution) -> int:
    return (c.channels * prod(c.size) + c.outputs * prod(c.out_size)) * BYTES[c.dtype]


def _shape(c: Convolution, rows: int) -> List[Any]:
    extra = [0] * len(c.size)
    if c.transposed:
        plain = [(n - 1) * s - 2 * p + d * (k - 1) + 1
                 for n, s, p, d, k in zip(c.size, c.stride, c.padding, c.dilation, c.kernel)]  # fmt: skip
        extra = [size - without for size, without in zip(c.out_size, plain)]
    return [c.channels, c.outputs, c.size, c.kernel, c.stride, c.padding, c.dilation, c.transposed, extra,
            c.groups, c.dtype, c.channels_last, rows]  # fmt: skip


def timm_shapes() -> List[List[Any]]:
    """Every distinct convolution of timm's models up to a size, none of the hold-out part."""
    import timm
    import torch
    from torch import nn

    found: Set[str] = set()
    kinds = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)

    def saw(layer: Any, args: Any, _: Any) -> None:
        places = len(layer.kernel_size)
        transposed = isinstance(layer, nn.ConvTranspose2d)
        padding = [0] * places if isinstance(layer.padding, str) else list(layer.padding)
        extra = list(layer.output_padding) if transposed else [0] * places
        found.add(json.dumps([
            layer.in_channels, layer.out_channels, list(args[0].shape[2:]), list(layer.kernel_size),
            list(layer.stride), padding, list(layer.dilation), transposed, extra, layer.groups,
        ]))  # fmt: skip

    for name in timm.list_models():
        if part_of(f"timm/{name}") != "development":
            continue
        try:
            with torch.device("meta"), torch.no_grad():
                model = timm.create_model(name).eval()
                size = model.default_cfg["input_size"]
                if size[-1] > LARGEST_SIDE or sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
                    continue
                layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
                if len(layers) < FEWEST_LAYERS:
                    continue
                for layer in layers:
                    layer.register_forward_hook(saw)
                model(torch.empty(1, *size))
        except Exception as error:  # noqa: BLE001 - a model that cannot be built here has no part in it
            print(f"{name}: {' '.join(str(error).split())[:100]}", file=sys.stderr)
    return [json.loads(text) for text in sorted(found)]


def main(argv: Optional[List[str]] = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m lab.probe.shapes", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--cache", type=Path, metavar="DIR", help="traces of measured runs")
    source.add_argument("--timm", action="store_true", help="the models of timm, built on meta tensors")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options.cache))


def _run(cache: Optional[Path]) -> int:
    path, shapes = (RUNS, shapes_of(cache)) if cache else (TIMM, timm_shapes())
    path.write_bytes(gzip.compress(json.dumps(shapes, separators=(",", ":")).encode(), mtime=0))
    print(f"{len(shapes):,} convolutions: {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
