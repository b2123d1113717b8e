"""Add to a GPU's calibration whether cuDNN's workspaces are as in the table, or how they differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping

from slurm_gpumem.site.calibration.context import Calibration, run_probe
from slurm_gpumem.site.calibration.workspace_list import DTYPES, findings, is_as_expected, rows_of

_PROBE = "slurm_gpumem.site.calibration.workspace_probe"
_LEAST_CALLS = 200


def with_workspaces(calibration: Calibration, python: str) -> Calibration:
    """Measure the list with the interpreter `python` and add what it says to the entry."""
    return compared(calibration, run_probe(python, [], _PROBE))


def compared(calibration: Calibration, probe: Mapping[str, Any]) -> Calibration:
    """The entry with the fields that the measured calls justify."""
    rows = rows_of([(number, list(sizes)) for number, sizes in probe["cases"]])
    notes: List[str] = list(calibration.notes)
    if len(rows) < _LEAST_CALLS:
        notes.append(
            f"convolutions: {len(rows)} calls could be measured, too few to tell; nothing was stored"
        )
        return replace(calibration, notes=tuple(notes))
    found = findings(rows)
    as_expected = is_as_expected(found)
    fields = [*calibration.fields, ("workspaces_measured", True)]
    if as_expected:
        notes.append(
            f"convolutions: {found.agreeing * 100:.0f} % of {found.calls} cuDNN workspaces are as measured "
            f"on an H200, no difference ({probe['seconds']} s)"
        )
    else:
        fields.append(("workspace_scale", [found.scale[dtype] for dtype in DTYPES]))
        scales = ", ".join(f"{dtype} {found.scale[dtype]:.2f}" for dtype in DTYPES)
        notes.append(
            f"convolutions: cuDNN's workspaces differ from an H200's, in sum {scales} times as large; "
            f"scaled so, {found.agreeing * 100:.0f} % of {found.calls} are as expected ({probe['seconds']} s)"
        )
    if probe["benchmark"]:
        notes.append("cudnn.benchmark is on in this environment")
    if probe["attention"]:
        sizes = ", ".join(f"{name} {mib:g} MiB" for name, mib in probe["attention"].items())
        notes.append(f"attention beyond its output (8 x 8 heads, 1,024 tokens, causal): {sizes}")
    return replace(calibration, fields=tuple(fields), notes=tuple(notes))
