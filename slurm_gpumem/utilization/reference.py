"""The short reference set of `gpumem calibrate --utilization`: five small jobs, each bound by one thing.

Each is a chain of linear layers or activations, so that its kernels are known exactly: a step that takes
longer than predicted says which rate of this GPU (or of its node's CPU) is other than in the table.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Tuple

from slurm_gpumem.memory.structural.estimator import simulate
from slurm_gpumem.memory.types import Gpu, TrainingJob
from slurm_gpumem.model.types import Layer, ModelSummary
from slurm_gpumem.utilization.features import Seen
from slurm_gpumem.utilization.model import UtilizationModel
from slurm_gpumem.utilization.predict import SUMMARY, answer
from slurm_gpumem.utilization.roofline import rates_of, step_times
from slurm_gpumem.utilization.work import StepWork, step_work

RATES = ("fp32", "tf32", "half", "bandwidth", "host")
"""What the jobs are bound by, in this order: three peak rates, memory, the CPU that starts kernels."""


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
    """A reference job as predicted and as measured."""

    reference: Reference
    predicted_s: float
    measured_s: float
    predicted_sm: float
    measured_sm: float
    """Percent; negative where this GPU cannot tell."""

    @property
    def ratio(self) -> float:
        """How much longer it takes than predicted."""
        return self.measured_s / self.predicted_s


def summary_of(reference: Reference) -> ModelSummary:
    """The summary that a tool would print of it."""
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
    """What a step of it gives the GPU to do."""
    walk, _ = simulate(summary_of(reference), reference.job, gpu)
    return step_work(walk.tape, reference.job)


def compare(measured: Mapping[str, Mapping[str, float]], gpu: Gpu, model: UtilizationModel) -> List[Compared]:
    """Every measured reference beside the roofline's answer for this GPU."""
    fitted = model.sources[SUMMARY]
    found = []
    for reference in REFERENCES:
        taken = measured.get(reference.name)
        if taken is None:
            continue
        work = work_of_reference(reference, gpu)
        times = step_times(work, rates_of(gpu), fitted.coefficients)
        got = answer(work, Seen(), gpu, fitted, model.outside)
        found.append(
            Compared(
                reference,
                times.step,
                taken["step_seconds"],
                100 * got.values["sm_active"],
                taken.get("sm_active", -1.0),
            )
        )
    return found


def rates_from(items: List[Compared], gpu: Gpu) -> Dict[str, object]:
    """The fields of a GPU's entry that make the reference jobs take as long as they took."""
    ratio = {item.reference.bound_by: min(max(item.ratio, 0.1), 10.0) for item in items}
    fields: Dict[str, object] = {}
    if gpu.tflops and {"fp32", "tf32", "half"} <= set(ratio):
        fields["tflops"] = [
            round(rate / ratio[name], 1) for rate, name in zip(gpu.tflops, ("fp32", "tf32", "half"))
        ]
    if gpu.bandwidth_gb_s and "bandwidth" in ratio:
        fields["bandwidth_gb_s"] = max(1, round(gpu.bandwidth_gb_s / ratio["bandwidth"]))
    if "host" in ratio:
        fields["host_factor"] = round(gpu.host_factor * ratio["host"], 3)
    fields["utilization_measured"] = True
    return fields
