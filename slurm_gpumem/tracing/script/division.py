"""How a traced script divides its model between ranks, noted in the words that `--strategy` takes.

The script runs as one process with the whole model; what each of its ranks holds is computed from the trace.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set

from torch import nn

_FSDP1 = {
    "FULL_SHARD": "fsdp1",
    "SHARD_GRAD_OP": "fsdp1-grad-op",
    "NO_SHARD": "ddp",
    # Within a node; the same as their namesakes where there is one.
    "HYBRID_SHARD": "fsdp1",
    "_HYBRID_SHARD_ZERO2": "fsdp1-grad-op",
}


class Division:
    """What was seen of it so far."""

    def __init__(self) -> None:
        self.ranks = 1
        self.why_not = ""
        """Why it cannot be computed what one rank holds; empty where it can."""
        self._names: Dict[str, None] = {}
        self._options: Dict[str, str] = {}
        self._units: List[nn.Module] = []

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.ranks > 1

    def unit(self, module: nn.Module, name: str, **options: str) -> None:
        """A part of the model is divided in this way; "yes" stays, whatever other parts say."""
        self._units.append(module)
        self.whole(name, **options)

    def parameters(self) -> Set[int]:
        """Those of the units so far, by id."""
        return {id(parameter) for unit in self._units for parameter in unit.parameters()}

    def whole(self, name: str, **options: str) -> None:
        """The model is."""
        self._names[name] = None
        self._options.update(options)

    def cannot(self, why: str) -> None:
        """The first reason counts."""
        self.why_not = self.why_not or why

    @property
    def text(self) -> str:
        """As `--strategy` takes it; "" where nothing divides the model."""
        names = [name for name in self._names if name != "ddp" or len(self._names) == 1]
        if not names or not self.several:
            return ""
        fsdp2 = {"fsdp", "fsdp-grad-op"}
        # The unit around the blocks need not say what they do.
        name = "fsdp" if set(names) == fsdp2 else names[0]
        if len(names) > 1 and set(names) != fsdp2:
            self.cannot(f"it divides its model in several ways ({', '.join(names)})")
        options = dict(self._options)
        if name.startswith("fsdp"):
            options["wrap"] = "+".join(sorted(self._classes())) or "none"
        return ",".join([name, *(f"{key}={value}" for key, value in sorted(options.items()))])

    def _classes(self) -> Set[str]:
        """Classes of the wrapped parts that are inside another one."""
        inner = {id(part) for unit in self._units for part in unit.modules() if part is not unit}
        return {type(unit).__name__ for unit in self._units if id(unit) in inner}


def one_node() -> bool:
    """Whether all ranks are on this node, by what launchers tell them."""
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or ""
    return os.environ.get("SLURM_NNODES", "1") == "1" and local in ("", os.environ.get("WORLD_SIZE", local))


def fsdp1_name(strategy: Any, division: Division) -> str:
    """The name of a ShardingStrategy."""
    kind = getattr(strategy, "name", "FULL_SHARD")
    if "HYBRID" in kind and not one_node():
        division.cannot(f"FSDP's {kind} divides within each node and copies between nodes")
    return _FSDP1.get(kind, "fsdp1")


def precision_options(param: Any, reduce: Any) -> Dict[str, str]:
    """Options for the types of FSDP's mixed precision."""
    if param is None or param.itemsize != 2:
        return {}
    return {"mixed": "yes", "reduce": "fp32" if reduce is not None and reduce.itemsize == 4 else "bf16"}
