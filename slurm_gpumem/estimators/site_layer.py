"""The site's own layer over an estimate: what its measured jobs taught, applied at submission.

    gpumem-learned.json beside the site's gpumem.toml, written by `gpumem learn`:
    {"format": "gpumem-learned/2", "layers": [{"estimator": "corrected", "constant": MiB,
     "constants": {type: MiB}, "offset": a, "models": {fp: m}, "quantile": q, "known_quantile": q,
     "coverage": c, "card": {...}}, {"estimator": "trace", ...}]}

The peak becomes (peak + constant) * exp(a + m): the constant of the GPU's type or the site's own, m where the
model has run here often enough. The CUDA context belongs to the environment, so most of what differs between
sites is a constant. The request is that peak times (request / peak) ** q as the estimator gave them: its own
idea of where it is unsure stays, only its scale is the site's.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import ceil, exp, inf, isfinite, log
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.paths import beside_site_config
from slurm_gpumem.estimators.environment import loads_eagerly, without_context_doubt
from slurm_gpumem.estimators.types import SITE_SUFFIX, Estimate, Gpu

FORMAT = "gpumem-learned/2"
FILE = "gpumem-learned.json"
LEAST_WIDTH = 0.02
"""A bound nearer to the peak than this is taken as this wide: a multiple of nothing stays nothing."""
MOST_CONSTANT = 4096.0
MOST_OFFSET = 0.7
MOST_QUANTILE = 8.0
_LEAST_LEFT = 0.4
"""A constant never takes away more than leaves this share of the estimated peak."""
_SIZE_CAP = 4 << 20


class SiteLayer(NamedTuple):
    """What a site knows about one estimator."""

    estimator: str
    constant: float
    """MiB that jobs take beyond their estimate, for GPU types without a constant of their own."""
    constants: Mapping[str, float]
    """The same by the type of the GPU, where enough ran on it; there the context is not in doubt any more."""
    offset: float
    """log(measured / estimated) after the constant, of a model that has not run here."""
    models: Mapping[str, float]
    """What comes on top for a model (by its fingerprint) that has run here."""
    quantile: float
    """How many of the estimator's own widths above the peak hold `coverage` of the jobs of new models."""
    known_quantile: float
    """The same for models in `models`."""
    coverage: float
    card: Mapping[str, Any]

    def knows(self, gpu: str) -> bool:
        """Whether enough ran on this type of GPU to know its context."""
        from slurm_gpumem.estimators.remembered import plain_gpu

        return plain_gpu(gpu) in self.constants

    def constant_on(self, gpu: str, spare_mib: float = inf) -> float:
        """MiB that jobs on this type of GPU take beyond their estimate.

        What jobs on other types showed never makes its context smaller than by `spare_mib`.
        """
        from slurm_gpumem.estimators.remembered import plain_gpu

        known = self.constants.get(plain_gpu(gpu))
        return max(self.constant, -spare_mib) if known is None else known

    def move(
        self, peak: float, request: float, gpu: str, fingerprint: str, spare_mib: float = inf
    ) -> Tuple[float, float]:
        """Peak and request in MiB as the site's jobs suggest them."""
        term = self.models.get(fingerprint)
        moved = with_constant(peak, self.constant_on(gpu, spare_mib)) * exp(self.offset + (term or 0.0))
        quantile = self.quantile if term is None else self.known_quantile
        return moved, moved * exp(width(peak, request) * quantile)


def with_constant(peak: float, constant: float) -> float:
    """The peak with a constant in MiB added, or taken away within reason."""
    return max(peak + constant, peak * _LEAST_LEFT)


def width(peak: float, request: float) -> float:
    """How unsure the estimator was, as a log."""
    return max(log(max(request, 1) / max(peak, 1)), LEAST_WIDTH)


def layer_path(environ: Optional[Mapping[str, str]] = None) -> str:
    """Where the site's layers are: beside its gpumem.toml."""
    return beside_site_config(FILE, environ)


def adjusted(estimate: Estimate, fingerprint_of: Callable[[], str], path: Optional[str] = None) -> Estimate:
    """The estimate with the site's layer over it; as it is where there is none for this estimator.

    A file that cannot be used is a warning: it must not keep anybody from submitting.
    """
    name = layer_path() if path is None else path
    if not os.path.exists(name):
        return estimate
    try:
        layer = load_layers(name).get(estimate.estimator)
    except (OSError, ValueError) as error:
        return replace(estimate, warnings=(*estimate.warnings, f"{name} is not used: {error}"))
    if layer is None:
        return estimate
    fingerprint = fingerprint_of()
    base = estimate.base or (estimate.peak_mib, estimate.request_mib)
    # What an unknown environment added comes on top where the site has not learned what it is.
    kept = (0, 0)
    spare = estimate.spare_mib
    constant = round(layer.constant_on(estimate.gpu, spare))
    if layer.knows(estimate.gpu):
        said = (
            *without_context_doubt(estimate.assumptions),
            f"the CUDA context on {estimate.gpu} as in jobs here",
        )
        estimate = replace(estimate, spare_mib=0, context_learned=True, assumptions=said)
    else:
        kept = (estimate.peak_mib - base[0], estimate.request_mib - base[1])

    def moved(request: int) -> Tuple[float, float]:
        peak, bound = layer.move(base[0], request, estimate.gpu, fingerprint, spare)
        return peak + kept[0], bound + kept[1]

    peak, request = moved(base[1])
    requests = [moved(at - estimate.request_mib + base[1])[1] for at in estimate.requests]
    if loads_eagerly(estimate.job):
        # Few jobs do: what the others taught does not make its context smaller.
        peak, request = max(peak, estimate.peak_mib), max(request, estimate.request_mib)
        requests = list(map(max, requests, estimate.requests))
    known = fingerprint in layer.models
    changed = replace(estimate, requests=tuple(map(ceil, requests)), learned_mib=constant)
    return _with(changed, round(peak), ceil(request), known=known)


def with_learned(gpu: Gpu, estimator: str, path: Optional[str] = None) -> Gpu:
    """The GPU (`in_environment`) with the context that jobs here showed: for memory lines, which have none.

    A file that cannot be used changes nothing; estimates warn of it.
    """
    name = layer_path() if path is None else path
    try:
        layer = load_layers(name).get(estimator.split(SITE_SUFFIX)[0])
    except (OSError, ValueError):
        return gpu
    if layer is None:
        return gpu
    if layer.knows(gpu.name):
        gpu = replace(gpu, context_doubt_mib=0, context_spare_mib=0)
    constant = round(layer.constant_on(gpu.name, gpu.context_spare_mib))
    return replace(
        gpu,
        context_bare_mib=max(1, gpu.context_for(conv=False, matmul=False) + constant),
        context_conv_mib=max(1, gpu.context_for(conv=True, matmul=False) + constant),
        context_matmul_mib=max(1, gpu.context_for(conv=False, matmul=True) + constant),
        context_mib=max(1, gpu.context_mib + constant),
    )


def _with(estimate: Estimate, peak: int, request: int, *, known: bool) -> Estimate:
    parts: Dict[str, int] = dict(estimate.parts)
    change = peak - estimate.peak_mib
    # What differs between sites is mostly the context; it never falls to nothing.
    for name, least in (("context", 1), ("fragmentation", 0), ("activations", 0), ("workspace", 0)):
        if name in parts:
            step = max(change, min(0, least - parts[name]))
            parts[name] += step
            change -= step
    peak -= change
    moved = peak - estimate.peak_mib
    source = "runs of this model here" if known else "jobs here"
    return replace(
        estimate,
        peak_mib=peak,
        request_mib=max(peak, request),
        requests=tuple(max(peak, at) for at in estimate.requests),
        floor_mib=min(max(1, estimate.floor_mib + min(moved, 0)), peak),
        parts=parts,
        estimator=estimate.estimator + SITE_SUFFIX,
        assumptions=(*estimate.assumptions, f"moved by {moved:+,} MiB as measured {source} suggest"),
        base=estimate.base or (estimate.peak_mib, estimate.request_mib),
    )


def load_layers(path: str) -> Dict[str, SiteLayer]:
    """Read and check a site's layers, by estimator; ValueError says what is wrong with the file."""
    with open(path, "rb") as file:
        text = file.read(_SIZE_CAP + 1)
    if len(text) > _SIZE_CAP:
        raise ValueError(f"larger than {_SIZE_CAP} bytes")
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        layers = [_layer(entry) for entry in content["layers"]]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({error})") from None
    return {layer.estimator: layer for layer in layers}


def _layer(entry: Mapping[str, Any]) -> SiteLayer:
    return SiteLayer(
        estimator=str(entry["estimator"]),
        constant=_number(entry["constant"], MOST_CONSTANT),
        constants={str(key): _number(value, MOST_CONSTANT) for key, value in entry["constants"].items()},
        offset=_number(entry["offset"], MOST_OFFSET),
        models={str(key): _number(value, MOST_OFFSET) for key, value in entry["models"].items()},
        quantile=_number(entry["quantile"], MOST_QUANTILE),
        known_quantile=_number(entry["known_quantile"], MOST_QUANTILE),
        coverage=_number(entry["coverage"], 1.0),
        card=dict(entry["card"]),
    )


def layers_json(layers: Iterable[SiteLayer]) -> str:
    """The file's text."""
    return json.dumps({"format": FORMAT, "layers": [_rounded(layer) for layer in layers]}, indent=1) + "\n"


def _rounded(layer: SiteLayer) -> Dict[str, Any]:
    numbers: Dict[str, Any] = {
        key: round(value, 6) if isinstance(value, float) else value for key, value in layer._asdict().items()
    }
    for key in ("constants", "models"):
        numbers[key] = {name: round(value, 6) for name, value in sorted(numbers[key].items())}
    return numbers


def _number(value: Any, most: float) -> float:
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > most:
        raise TypeError(f"{value!r} is not a usable number")
    return float(value)
