"""Which class has which rule: by its name, by where it stands, and by the layers it must have."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Callable, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.structural.layers.attention import Run
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk

Forward = Callable[[Walk, Node, Run], None]

_BY_CLASS: Dict[str, str] = {
    "FalconMambaMixer": "language.selective_scan",
    "GatedConvBlock": "images.gated_conv",
    "HaloAttn": "attentions.halo",
    "HieraMaskUnitAttention": "attentions.mask_units",
    "LevitAttention": "attentions.biased_heads",
    "LevitAttentionSubsample": "attentions.biased_heads",
    "MambaMixer": "language.selective_scan",
    "MaskUnitAttention": "attentions.mask_units",
    "SegformerDecodeHead": "images.joined_stages",
    "SelectiveKernel": "images.selective_kernel",
    "XCA": "attentions.cross_covariance",
}
"""The rule of a class: a function of a module here; beside it, `fits_` says whether the layers are right."""
_INSIDE: Dict[Tuple[str, str], str] = {
    ("LevitStage", "Attention"): "attentions.biased_heads",
    ("LevitStage", "AttentionDownsample"): "attentions.biased_heads",
    ("NestLevel", "Attention"): "attentions.blocks_of_tokens",
}
"""(an enclosing class, class): names that several models use."""
_BY_ENDING: Dict[str, str] = {
    "Experts": "language.grouped",
    "Mixer": "language.chunk_scan",
    "MambaLayer": "language.chunk_scan",
}
"""Classes that transformers copies to each model under the model's own name."""


class Rule(NamedTuple):
    """What a class's forward does, and whether a module has the layers that this needs."""

    run: Forward
    fits: Callable[[Node], bool]


@lru_cache(maxsize=64)
def _loaded(name: str) -> Rule:
    """Most texts need no rule, so that none is imported before its class is met."""
    module, function = name.split(".")
    rules = vars(import_module(f"{__package__}.{module}"))
    return Rule(rules[function], rules[f"fits_{function}"])


def forward_of(walk: Walk, node: Node) -> Optional[Forward]:
    """The rule for a container of a known class; None: its layers in order, as for any other."""
    if node.guessed:
        return None
    name = _rule(node.row.kind, [scope.kind for scope in walk.scopes])
    if name is None:
        endings = (rule for ending, rule in _BY_ENDING.items() if node.row.kind.endswith(ending))
        name = next(endings, None)
    if name is None:
        return None
    rule = _loaded(name)
    return rule.run if rule.fits(node) else None


def _rule(kind: str, around: Sequence[str]) -> Optional[str]:
    """By the class's own name, or by its name where it stands."""
    inside = (_INSIDE.get((owner, kind)) for owner in around)
    return _BY_CLASS.get(kind) or next(filter(None, inside), None)


def misfits(nodes: Sequence[Node], around: Tuple[str, ...] = ()) -> Set[str]:
    """Classes with a rule whose layers are not those that it needs: what they do is not known."""
    found: Set[str] = set()
    for node in nodes:
        kind = node.row.kind
        rule = _rule(kind, around)
        if rule is not None and not _loaded(rule).fits(node):
            found.add(kind)
        found |= misfits(node.children, (*around, kind))
    return found
