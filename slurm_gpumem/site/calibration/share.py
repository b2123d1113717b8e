"""A calibration as a file that a site may give away: GPU, versions and context, no names."""

from __future__ import annotations

import json
from typing import Dict

from slurm_gpumem.site.calibration.context import Calibration

_CONTEXTS = ("context_bare_mib", "context_conv_mib", "context_matmul_mib", "context_mib")


def shared_environment(calibration: Calibration) -> str:
    """The text of a file for models/environments."""
    measured = dict(calibration.fields)
    known: Dict[str, str] = dict(calibration.environment)
    fields: Dict[str, object] = {
        "gpu": known["gpu"],
        "compute_capability": measured["compute_capability"],
        "torch": known["torch"],
        "cuda": known["cuda"],
        "driver": known["driver"],
        # PyTorch sets the variable to lazy itself where nobody did, from 1.13 on.
        "loading": "eager" if known["loading"] == "eager" else "lazy",
        **{name: measured[name] for name in _CONTEXTS},
        "known": "measured",
        "source": "gpumem calibrate",
    }
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
