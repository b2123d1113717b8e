"""Which class has which rule: by its name, by where it stands, and by the layers it must have."""

from __future__ import annotations

from typing import Callable, Dict, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.structural.attention import Run
from slurm_gpumem.estimators.structural.forwards import attentions, experts, gates, heads, states
from slurm_gpumem.estimators.structural.tree import Node
from slurm_gpumem.estimators.structural.walk import Walk

Forward = Callable[[Walk, Node, Run], None]
Fits = Callable[[Node], bool]

_BY_CLASS: Dict[str, Tuple[Forward, Fits]] = {
    "GatedConvBlock": (gates.gated_conv, gates.fits_gated_conv),
    "ParallelScalingBlock": (gates.scaling, gates.fits_scaling),
    "DiffParallelScalingBlock": (gates.joined_scaling, gates.fits_joined_scaling),
    "SelectiveKernel": (gates.selective_kernel, gates.fits_selective_kernel),
    "GPSA": (attentions.positional_gate, attentions.fits_positional_gate),
    "MaskUnitAttention": (attentions.mask_units, attentions.fits_fused),
    "SegformerDecodeHead": (heads.joined_stages, heads.fits_joined_stages),
    "XCA": (attentions.cross_covariance, attentions.fits_cross_covariance),
    "LevitAttention": (attentions.biased_heads, attentions.fits_biased_heads),
    "LevitAttentionSubsample": (attentions.biased_heads, attentions.fits_biased_heads),
    "HieraMaskUnitAttention": (attentions.mask_units, attentions.fits_fused),
    "MambaMixer": (states.selective_scan, states.fits_selective_scan),
    "FalconMambaMixer": (states.selective_scan, states.fits_selective_scan),
    "HaloAttn": (attentions.halo, attentions.fits_halo),
}
_INSIDE: Dict[Tuple[str, str], Tuple[Forward, Fits]] = {
    ("NestLevel", "Attention"): (attentions.blocks_of_tokens, attentions.fits_fused),
    ("VisionTransformerSAM", "Attention"): (
        attentions.relative_windows,
        attentions.fits_relative_windows,
    ),
    ("LevitStage", "Attention"): (attentions.biased_heads, attentions.fits_biased_heads),
    ("LevitStage", "AttentionDownsample"): (attentions.biased_heads, attentions.fits_biased_heads),
}
"""(an enclosing class, class): names that several models use."""
_BY_ENDING: Dict[str, Tuple[Forward, Fits]] = {
    "Experts": (experts.grouped, experts.fits_grouped),
    "Mixer": (states.chunk_scan, states.fits_chunk_scan),
    "MambaLayer": (states.chunk_scan, states.fits_chunk_scan),
}
"""Classes that transformers copies to each model under the model's own name."""


def forward_of(walk: Walk, node: Node) -> Optional[Forward]:
    """The rule for a container of a known class; None: its layers in order, as for any other."""
    if node.guessed:
        return None
    found = _rule(node.row.kind, [scope.kind for scope in walk.scopes])
    if found is None:
        endings = (rule for ending, rule in _BY_ENDING.items() if node.row.kind.endswith(ending))
        found = next(endings, None)
    return found[0] if found is not None and found[1](node) else None


def _rule(kind: str, around: Sequence[str]) -> Optional[Tuple[Forward, Fits]]:
    """By the class's own name, or by its name where it stands."""
    inside = (_INSIDE.get((owner, kind)) for owner in around)
    return _BY_CLASS.get(kind) or next(filter(None, inside), None)


def misfits(nodes: Sequence[Node], around: Tuple[str, ...] = ()) -> Set[str]:
    """Classes with a rule whose layers are not those that it needs: what they do stays unseen."""
    found: Set[str] = set()
    for node in nodes:
        kind = node.row.kind
        rule = _rule(kind, around)
        if rule is not None and not rule[1](node):
            found.add(kind)
        found |= misfits(node.children, (*around, kind))
    return found
