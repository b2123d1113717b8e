"""The units in which a model is wrapped, gathered or divided: its repeated blocks, and the rest."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.ranks.model import RankModel
from slurm_gpumem.summaries.types import Layer

ROOT = ""
"""The unit of everything that is in no block."""
_NUMBERED = re.compile(r"(?:.*\.)?\d+\Z")
_BLOCK = ("Block", "Layer")


def block_names(model: RankModel, wrap: str) -> Tuple[str, ...]:
    """The blocks in the order in which they run.

    `wrap` is the class of the blocks ("A+B" for two), "none", or "auto": the outermost numbered modules
    ("h.0"), and those inside them where only these are called a block or a layer (stages of blocks).
    """
    if wrap == "none":
        return ()
    refuse_unnamed(model)
    if wrap != "auto":
        kinds = wrap.split("+")
        named = [name for name, layer in model.layers.items() if layer.kind in kinds and name]
        missing = [kind for kind in kinds if not any(model.layers[name].kind == kind for name in named)]
        if missing:
            raise UsageError(f"wrap={wrap}: the model has no layer of class {missing[0]}")
        return tuple(_outermost(named))
    numbered = [name for name in model.layers if _NUMBERED.match(name)]
    found: List[str] = []
    for name in _outermost(numbered):
        inside = [other for other in numbered if other.startswith(f"{name}.")]
        inner = _outermost(inside)
        finer = [other for other in inner if model.layers[other].kind.endswith(_BLOCK)]
        if finer and not model.layers[name].kind.endswith(_BLOCK):
            found += finer
        else:
            found.append(name)
    owned = {parameter.module for parameter in model.parameters}
    kept = [name for name in found if any(_inside(module, name) for module in owned)]
    return tuple(kept) if len(kept) > 1 else ()


def refuse_unnamed(model: RankModel) -> None:
    """UsageError for a trace whose parameters have no layers: those stored for known texts."""
    if len(model.parameters) > 2 and not any(parameter.module for parameter in model.parameters):
        raise UsageError(
            "this trace does not name the layers of its parameters, so the model has no blocks to divide.\n"
            "Trace the model's code: gpumem summarize timm:resnet50, gpumem trace -- python train.py"
        )


def unit_of(module: str, names: Mapping[str, None]) -> str:
    """The block that a layer belongs to; ROOT for none."""
    at = module
    while at:
        if at in names:
            return at
        at = at.rpartition(".")[0]
    return ROOT


class Units:
    """Blocks of a model with their parameters."""

    def __init__(self, model: RankModel, names: Sequence[str]) -> None:
        self.names = dict.fromkeys(names)
        self._of: Dict[str, str] = {}
        self.parameters: Dict[str, List[int]] = {ROOT: [], **{name: [] for name in names}}
        """By unit the numbers of its parameters."""
        for index, parameter in enumerate(model.parameters):
            self.parameters[self.of(parameter.module)].append(index)

    def of(self, module: str) -> str:
        """The unit of a layer."""
        if module not in self._of:
            self._of[module] = unit_of(module, self.names)
        return self._of[module]


def _inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _outermost(names: Sequence[str]) -> List[str]:
    known = dict.fromkeys(names)
    return [name for name in known if not unit_of(name.rpartition(".")[0], known)]


def described(names: Sequence[str], layers: Mapping[str, Layer]) -> str:
    """ "12 blocks of class Block", for people."""
    if not names:
        return "the whole model as one unit: no repeated blocks were found"
    kinds = list(dict.fromkeys(layers[name].kind for name in names))
    listed = ", ".join(kinds[:3])
    return f"{len(names)} blocks ({listed}), and what is around them as one more unit"
