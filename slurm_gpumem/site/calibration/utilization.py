"""Add the reference set's rates to a GPU's calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping

from slurm_gpumem.errors import CalibrationError
from slurm_gpumem.site.calibration.context import Calibration, run_probe
from slurm_gpumem.site.calibration.rates import Compared, compare, nominal, rates_from
from slurm_gpumem.utilization.model import packaged

_PROBE = "slurm_gpumem.site.calibration.rates_probe"


def with_reference_set(calibration: Calibration, python: str) -> Calibration:
    """Train the reference set with the interpreter `python` and add the results to the entry."""
    return calibrated(calibration, run_probe(python, [], _PROBE))


def calibrated(calibration: Calibration, probe: Mapping[str, Any]) -> Calibration:
    """The entry with the fields computed from the measured reference jobs."""
    if not probe["jobs"]:
        why = next(iter(probe["failed"].values()), "nothing was measured")
        raise CalibrationError(f"no job of the reference set could be trained: {why}")
    # Use the package's own rates: those of an earlier calibration would be corrected twice.
    gpu = nominal(probe["gpu"], probe["memory_mib"])
    items = compare(probe["jobs"], gpu, packaged())
    fields: Dict[str, object] = {**dict(calibration.fields), **rates_from(items, gpu)}
    notes = [*calibration.notes, *(_line(item) for item in items)]
    notes += [f"reference set, {name}: {why}" for name, why in probe["failed"].items()]
    return replace(calibration, fields=tuple(fields.items()), notes=tuple(notes))


def _line(item: Compared) -> str:
    parts: List[str] = [
        f"reference set, {item.reference.name}: step {item.measured_s * 1000:.4g} ms, "
        f"{item.expected_s * 1000:.4g} ms expected from the table"
    ]
    if item.measured_sm >= 0:
        parts.append(f"SM activity {item.measured_sm:.4g} %, {item.predicted_sm:.0f} % predicted")
    return "; ".join(parts)
