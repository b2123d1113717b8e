"""The short reference set of `gpumem calibrate --utilization`: five small jobs, each bound by one thing.

Each is a chain of linear layers or activations. models/reference-set.toml has their times on the GPU that
utilization was fitted on. If a step takes longer here than those times and the table's rates imply, the
corresponding rate of this GPU (or of its node's CPU) differs from the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.estimators.structural.estimator import simulate
from slurm_gpumem.estimators.types import Gpu, TrainingJob
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.toml_file import load_toml
from slurm_gpumem.utilization.features import TextQuality
from slurm_gpumem.utilization.model import UtilizationModel
from slurm_gpumem.utilization.predict import SUMMARY, predict_targets
from slurm_gpumem.utilization.roofline import MEASURED_GB_S, MEASURED_TFLOPS, rates_of, step_times
from slurm_gpumem.utilization.work import StepWork, step_work

FILE = "reference-set.toml"
FITTED_ON = "h200"
STEP_FIELD, SM_FIELD = "reference_step_ms", "reference_sm_active"
"""Fields of a GPU's entry, numbers in the order of REFERENCES: the measurements behind the rates."""


class Reference(NamedTuple):
    """One job: `layers` are widths of linear layers, 0 for an activation."""

    name: str
    bound_by: str
    layers: Tuple[int, ...]
    inputs: int
    batch: int
    precision: str = "fp32"
    optimizer: str = "sgd"

    @property
    def job(self) -> TrainingJob:
        """How it is trained."""
        return TrainingJob(
            batch_size=self.batch, optimizer=self.optimizer, precision=self.precision, loss="none"
        )


_SQUARE = (4096, 0) * 6
REFERENCES = (
    Reference("products in fp32", "fp32", _SQUARE, 4096, 4096),
    Reference("products in TF32", "tf32", _SQUARE, 4096, 4096, precision="tf32"),
    Reference("products in half precision", "half", _SQUARE, 4096, 8192, precision="amp-fp16"),
    Reference("activations", "bandwidth", (4096, *[0] * 24), 64, 8192),
    Reference("many small layers", "host", (64, 0) * 60, 64, 16, optimizer="adam"),
)


class Compared(NamedTuple):
    """A reference job: its expected time from the table of GPUs, and its measured time."""

    reference: Reference
    expected_s: float
    """Its time on the GPU that utilization was fitted on, scaled by the table's rates of the two GPUs."""
    measured_s: float
    predicted_sm: float
    measured_sm: float
    """Percent; negative if this GPU cannot report it."""

    @property
    def ratio(self) -> float:
        """How much longer it takes than the table implies."""
        return self.measured_s / self.expected_s


def summary_of(reference: Reference) -> ModelSummary:
    """The summary that a tool would print for it."""
    rows: List[Layer] = []
    width = reference.inputs
    for size in reference.layers:
        before = (-1, width)
        if size:
            rows.append(Layer("Linear", ((-1, size),), (before,), params=width * size + size))
            width = size
        else:
            rows.append(Layer("GELU", (before,), (before,)))
    total = sum(row.params for row in rows)
    return ModelSummary(
        "reference",
        tuple(rows),
        name=reference.name,
        input_shapes=((-1, reference.inputs),),
        total_params=total,
        trainable_params=total,
    )


def work_of_reference(reference: Reference, gpu: Gpu) -> StepWork:
    """The GPU work of one step."""
    walk, _ = simulate(summary_of(reference), reference.job, gpu)
    return step_work(walk.tape, reference.job)


def fitted_seconds(path: Optional[Path] = None) -> Dict[str, float]:
    """Seconds of the reference jobs on the GPU that utilization was fitted on, by what they are bound by."""
    path = path or data_path("models", FILE)
    steps = load_toml(path).get(FITTED_ON, {}).get(STEP_FIELD)
    good = isinstance(steps, list) and all(
        isinstance(step, (int, float)) and not isinstance(step, bool) and step > 0 for step in steps
    )
    if not good or len(steps) != len(REFERENCES):
        raise ConfigError(
            f"{path}: [{FITTED_ON}] {STEP_FIELD} must be {len(REFERENCES)} numbers of milliseconds, "
            f"not {steps!r}"
        )
    return {reference.bound_by: step / 1000 for reference, step in zip(REFERENCES, steps)}


def compare(measured: Mapping[str, Mapping[str, float]], gpu: Gpu, model: UtilizationModel) -> List[Compared]:
    """Every measured reference with the time that the table of GPUs implies.

    The roofline is only used to compare times on two GPUs, never for an absolute time: if it is wrong about
    a reference job, it is equally wrong on both, and that is not a property of this GPU.
    """
    fitted = model.sources[SUMMARY]
    there = fitted_seconds()
    other = nominal(FITTED_ON)
    found = []
    for reference in REFERENCES:
        taken = measured.get(reference.name)
        if taken is None:
            continue
        work = work_of_reference(reference, gpu)
        here = step_times(work, rates_of(gpu), fitted.coefficients).step
        scale = here / step_times(work, rates_of(other), fitted.coefficients).step
        got = predict_targets(work, TextQuality(), gpu, fitted, model.outside)
        found.append(
            Compared(
                reference,
                there[reference.bound_by] * scale,
                taken["step_seconds"],
                100 * got.values["sm_active"],
                taken.get("sm_active", -1.0),
            )
        )
    return found


def rates_from(items: List[Compared], gpu: Gpu) -> Dict[str, object]:
    """The fields of a GPU's entry with which the reference jobs take as long as they took."""
    ratio = {item.reference.bound_by: item.ratio for item in items}
    fields: Dict[str, object] = {}
    if {"fp32", "tf32", "half"} <= set(ratio):
        # If the table has no rates, the roofline used those of the GPU that it was fitted on.
        known = gpu.tflops or MEASURED_TFLOPS
        fields["tflops"] = [
            round(rate / ratio[name], 1) for rate, name in zip(known, ("fp32", "tf32", "half"))
        ]
    if "bandwidth" in ratio:
        fields["bandwidth_gb_s"] = max(1, round((gpu.bandwidth_gb_s or MEASURED_GB_S) / ratio["bandwidth"]))
    if "host" in ratio:
        fields["host_factor"] = round(gpu.host_factor * ratio["host"], 3)
    fields["utilization_measured"] = True
    if len(items) == len(REFERENCES):
        fields[STEP_FIELD] = [_digits(1000 * item.measured_s) for item in items]
        if all(item.measured_sm >= 0 for item in items):
            fields[SM_FIELD] = [_digits(item.measured_sm) for item in items]
    return fields


def nominal(name: str, memory_mib: Optional[int] = None) -> Gpu:
    """The package's own entry for a GPU, whatever the site's file has."""
    return closest_gpu(name, memory_mib, site_file=Path("/nonexistent"))


def _digits(value: float) -> float:
    """Rounded to four digits."""
    return float(f"{value:.4g}")
