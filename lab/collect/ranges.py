"""Draw synthetic networks uniformly from their published ranges, rejecting what no GPU run could hold."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple

from lab.collect.footprint import Footprint
from lab.zoo import synthetic
from slurm_gpumem.errors import ConfigError


@dataclass(frozen=True)
class Drawn:
    """A synthetic network's arguments, its input and batch, and how large it will be."""

    args: Dict[str, Any]
    task_args: Dict[str, Any]
    size: int
    batch: int
    shape: str
    footprint: Footprint


def draw(name: str, rng: random.Random, max_mib: float, max_step_seconds: float) -> Drawn:
    """The next network of the family that fits the limits."""
    if name not in _FAMILIES:
        raise ConfigError(f"synthetic: unknown family {name!r}; known: {', '.join(_FAMILIES)}")
    make, size_up = _FAMILIES[name]
    while True:
        values = make(rng)
        print_ = size_up(values)
        if print_.expected_mib(values["batch"], "adam", "fp32") > max_mib:
            continue
        if print_.step_seconds(values["batch"], "fp32") <= max_step_seconds:
            return Drawn(
                values["args"], values["task_args"], values["size"], values["batch"], values["shape"], print_
            )


def _mlp_footprint(values: Dict[str, Any]) -> Footprint:
    args, widths = values["args"], values["args"]["widths"]
    weights = sum((a + 1) * b for a, b in zip(widths, widths[1:]))
    copies = 2 + bool(args["norm"]) + 1.25 * bool(args["dropout"])
    return Footprint(weights * 4, sum(widths) * 4 * copies, 2 * weights)


def _cnn_footprint(values: Dict[str, Any]) -> Footprint:
    args = values["args"]
    side, width, pools = values["size"], args["channels"], 0
    weights = saved = flops = 0.0
    copies = 2 + bool(args["norm"]) + bool(args["dropout"])
    for i, count in enumerate(args["filters"]):
        taken = width * count * args["kernel"] ** 2
        out = count
        if args["shape"] == "dense" and i:
            out += width
            saved += 4 * out * side**2
        elif args["shape"] == "residual" and i:
            saved += 4 * count * side**2
        weights += taken
        flops += 2 * taken * side**2
        saved += 4 * count * side**2 * copies
        width = out
        if args["pool_every"] and (i + 1) % args["pool_every"] == 0 and pools < 4:
            saved += 3 * width * side**2
            side, pools = side // 2, pools + 1
    weights += width * args["classes"]
    # Convolutions run on TF32 units even in "fp32": three times the rate that the guess assumes.
    return Footprint(weights * 4, saved + 12 * args["classes"], flops / 3)


def _transformer_footprint(values: Dict[str, Any]) -> Footprint:
    args = values["args"]
    width, hidden, depth, length = args["width"], args["hidden"], args["depth"], args["length"]
    block = 4 * width**2 + 2 * width * hidden
    weights = args["vocabulary"] * width + length * width + depth * block + width * args["classes"]
    saved = depth * length * (4 * (9 * width + 3 * hidden) + 2 * width + hidden)
    flops = depth * length * (2 * block + 4 * length * width)
    return Footprint(weights * 4, saved, flops)


_FAMILIES: Dict[
    str, Tuple[Callable[[random.Random], Dict[str, Any]], Callable[[Dict[str, Any]], Footprint]]
] = {
    "mlp": (synthetic.draw_mlp, _mlp_footprint),
    "cnn": (synthetic.draw_cnn, _cnn_footprint),
    "transformer": (synthetic.draw_transformer, _transformer_footprint),
}
