"""The site's own layer over the default estimate: what its measured jobs taught, applied at submission.

    gpumem-learned.json beside the site's gpumem.toml, written by `gpumem learn`:
    {"format": "gpumem-learned/1", "estimator": "corrected", "offset": a, "gpus": {type: a},
     "models": {fp: m}, "quantile": q, "known_quantile": q, "coverage": c, "card": {...}}

The peak is multiplied by exp(a + m): a of the GPU's type or the site's own, m where the model has run here
often enough. The request is that peak times (request / peak) ** q as the estimator gave them: its own idea of
where it is unsure stays, only its scale is the site's.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import ceil, exp, isfinite, log
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.config.paths import beside_site_config
from slurm_gpumem.estimators.remembered import plain_gpu
from slurm_gpumem.estimators.types import Estimate

FORMAT = "gpumem-learned/1"
FILE = "gpumem-learned.json"
SUFFIX = "+site"
"""Behind the estimator's name where the layer moved its answer."""
LEAST_WIDTH = 0.02
"""A bound nearer to the peak than this is taken as this wide: a multiple of nothing stays nothing."""
MOST_OFFSET = 0.7
MOST_QUANTILE = 8.0
_SIZE_CAP = 4 << 20


class SiteLayer(NamedTuple):
    """A checked file."""

    estimator: str
    offset: float
    """log(measured / estimated) of a model that has not run here."""
    gpus: Mapping[str, float]
    """The same by the type of the GPU, where enough ran on it."""
    models: Mapping[str, float]
    """What comes on top for a model (by its fingerprint) that has run here."""
    quantile: float
    """How many of the estimator's own widths above the peak hold `coverage` of the jobs of new models."""
    known_quantile: float
    """The same for models in `models`."""
    coverage: float
    card: Mapping[str, Any]

    def move(self, peak: float, request: float, gpu: str, fingerprint: str) -> Tuple[float, float]:
        """Peak and request in MiB as the site's jobs suggest them."""
        kind = plain_gpu(gpu)
        term = self.models.get(fingerprint)
        moved = peak * exp(self.gpus.get(kind, self.offset) + (term or 0.0))
        width = max(log(max(request, 1) / max(peak, 1)), LEAST_WIDTH)
        quantile = self.quantile if term is None else self.known_quantile
        return moved, moved * exp(width * quantile)


def layer_path(environ: Optional[Mapping[str, str]] = None) -> str:
    """Where the site's layer is: beside its gpumem.toml."""
    return beside_site_config(FILE, environ)


def adjusted(estimate: Estimate, fingerprint_of: Callable[[], str], path: Optional[str] = None) -> Estimate:
    """The estimate with the site's layer over it; as it is where there is none for this estimator.

    A file that cannot be used is a warning: it must not keep anybody from submitting.
    """
    name = layer_path() if path is None else path
    if not os.path.exists(name):
        return estimate
    try:
        layer = load_layer(name)
    except (OSError, ValueError) as error:
        return replace(estimate, warnings=(*estimate.warnings, f"{name} is not used: {error}"))
    if layer.estimator != estimate.estimator:
        return estimate
    fingerprint = fingerprint_of()
    peak, request = layer.move(estimate.peak_mib, estimate.request_mib, estimate.gpu, fingerprint)
    return _with(estimate, round(peak), ceil(request), known=fingerprint in layer.models)


def _with(estimate: Estimate, peak: int, request: int, *, known: bool) -> Estimate:
    parts: Dict[str, int] = dict(estimate.parts)
    change = peak - estimate.peak_mib
    for name in ("fragmentation", "activations", "workspace"):
        step = max(change, -parts.get(name, 0))
        if name in parts:
            parts[name] += step
            change -= step
    peak -= change
    percent = (peak / estimate.peak_mib - 1) * 100
    source = "runs of this model here" if known else "jobs here"
    return replace(
        estimate,
        peak_mib=peak,
        request_mib=max(peak, request),
        floor_mib=min(estimate.floor_mib, peak),
        parts=parts,
        estimator=estimate.estimator + SUFFIX,
        assumptions=(*estimate.assumptions, f"moved by {percent:+.0f} % as measured {source} suggest"),
        base=(estimate.peak_mib, estimate.request_mib),
    )


def load_layer(path: str) -> SiteLayer:
    """Read and check a layer; ValueError says what is wrong with it."""
    with open(path, "rb") as file:
        text = file.read(_SIZE_CAP + 1)
    if len(text) > _SIZE_CAP:
        raise ValueError(f"larger than {_SIZE_CAP} bytes")
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return SiteLayer(
            estimator=str(content["estimator"]),
            offset=_number(content["offset"], MOST_OFFSET),
            gpus={str(key): _number(value, MOST_OFFSET) for key, value in content["gpus"].items()},
            models={str(key): _number(value, MOST_OFFSET) for key, value in content["models"].items()},
            quantile=_number(content["quantile"], MOST_QUANTILE),
            known_quantile=_number(content["known_quantile"], MOST_QUANTILE),
            coverage=_number(content["coverage"], 1.0),
            card=dict(content["card"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({error})") from None


def layer_json(layer: SiteLayer) -> str:
    """The file's text."""
    numbers: Dict[str, Any] = {
        key: round(value, 6) if isinstance(value, float) else value for key, value in layer._asdict().items()
    }
    for key in ("gpus", "models"):
        numbers[key] = {name: round(value, 6) for name, value in sorted(numbers[key].items())}
    return json.dumps({"format": FORMAT, **numbers}, indent=1) + "\n"


def _number(value: Any, most: float) -> float:
    if type(value) not in (int, float) or not isfinite(value) or abs(value) > most:
        raise TypeError(f"{value!r} is not a usable number")
    return float(value)
