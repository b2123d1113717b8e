"""The training job of a summary: what was stated about it, else what was traced, else the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional

from slurm_gpumem.errors import NotEstimatedError, UsageError
from slurm_gpumem.estimators.types import CPU_BUILD, OPTIMIZERS, USUAL_OPTIMIZER, Estimate, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.training_names import NOT_MODELLED, PURE_FP16, plain_name, sharded, sharding

if TYPE_CHECKING:
    from slurm_gpumem.summaries.trace_types import Trace

_NAMES = ("optimizer", "precision", "loss", "input_dtype", "module_loading")
PRECISION_TITLES = {
    "fp32": "fp32",
    "tf32": "tf32",
    "amp-fp16": "AMP fp16",
    "amp-bf16": "AMP bf16",
    "bf16": "bf16",
}


class StatedTraining(NamedTuple):
    """What somebody stated about the training; None leaves a value to the summary's trace or the default."""

    batch_size: Optional[int] = None
    optimizer: Optional[str] = None
    precision: Optional[str] = None
    grad_accumulation: Optional[int] = None
    checkpointing: Optional[bool] = None
    channels_last: Optional[bool] = None
    loss: Optional[str] = None
    input_dtype: Optional[str] = None
    torch: Optional[str] = None
    module_loading: Optional[str] = None
    alloc_conf: Optional[str] = None
    cublas_workspace: Optional[str] = None
    strategy: Optional[str] = None
    """How several GPUs divide the work: only data parallel training ("ddp") is estimated."""


def training_job(
    summary: ModelSummary,
    stated: StatedTraining,
    *,
    presets: StatedTraining = StatedTraining(),  # noqa: B008 - immutable
    gpus: Optional[int] = None,
) -> TrainingJob:
    """The job to estimate for; UsageError when nothing states the batch size or a value is wrong.

    NotEstimatedError for a strategy that shards the model. `presets` count where neither somebody states a
    value nor a trace has it. Without a number of GPUs it has as many as were traced.
    """
    gpus = gpus or (summary.trace.job.ranks if summary.trace else 1)
    traced = _traced(summary)
    if presets.torch and traced.get("torch", "").endswith(CPU_BUILD):
        del traced["torch"]
    values = {"batch_size": summary.batch, **_given(presets), **traced, **_given(stated)}
    refuse_sharded(values.pop("strategy", None))
    if values.get("batch_size") is None:
        raise UsageError(
            "no batch size: the summary does not state one.\n"
            "Give it with --batch-size 128 or #GPUMEM batch-size=128; in Python with batch_size=128."
        )
    for key in _NAMES:
        if key in values:
            values[key] = plain_name(str(values[key]), key)
    optimizer = values.get("optimizer")
    if optimizer in NOT_MODELLED:
        raise UsageError(
            f"there is no rule for the memory of the optimizer {optimizer!r}.\nTrace the training, which "
            "needs none (gpumem trace -- python train.py), or give the GPU memory by hand (--gpu-mem 12G)."
        )
    if values.get("precision") in PURE_FP16:
        raise UsageError(
            f"there is no rule for weights in fp16 ({values['precision']}); amp-fp16 is mixed precision, as "
            "frameworks mean it with fp16.\n"
            "Trace the training, which needs none (gpumem trace -- python train.py), or give the GPU "
            "memory by hand (--gpu-mem 12G)."
        )
    return TrainingJob(gpus=gpus, **values)


def refuse_sharded(strategy: Optional[str]) -> None:
    """NotEstimatedError for a strategy under which no GPU holds the whole model."""
    by = sharding(strategy or "ddp")
    if by:
        raise NotEstimatedError(sharded(by))


def refuse_untraced(summary: ModelSummary, stated: StatedTraining) -> None:
    """UsageError for what somebody states and a trace cannot answer: it was traced otherwise."""
    if summary.trace is None:
        return
    traced, wrong = summary.trace.job, []
    if stated.batch_size not in (None, traced.batch) and not summary.trace.scalable:
        wrong.append(f"batch size {traced.batch}, not {stated.batch_size}")
    precision = None if stated.precision is None else plain_name(stated.precision, "precision")
    single = ("fp32", "tf32")
    if precision not in (None, traced.precision) and not (
        traced.precision in single and (precision in single or str(precision).startswith("amp-"))
    ):
        wrong.append(f"{traced.precision}, not {precision}")
    for key in ("optimizer", "loss"):
        value, had = getattr(stated, key), getattr(traced, key)
        if (
            value is not None
            and had not in ("", "auto")
            and plain_name(value, key) != had.partition(" over ")[0]
        ):
            wrong.append(f"{key} {had}, not {plain_name(value, key)}")
    if (stated.grad_accumulation or 1) > 1 and traced.grad_accumulation == 1:
        wrong.append("without gradient accumulation")
    for key, title in (("checkpointing", "activation checkpointing"), ("channels_last", "channels_last")):
        if getattr(stated, key) not in (None, getattr(traced, key)):
            wrong.append(f"{'with' if getattr(traced, key) else 'without'} {title}")
    if wrong:
        raise UsageError(
            f"the summary was traced with {'; '.join(wrong)}.\n"
            "Memory of another training is not in it: trace again with these options (gpumem summarize, "
            "gpumem trace), or leave them out."
        )


def optimizer_title(job: TrainingJob, trace: Optional[Trace]) -> str:
    """What changes the weights: the job's optimizer, or one of a trace that has no rule here."""
    if trace is None or trace.job.optimizer in OPTIMIZERS or job.optimizer != USUAL_OPTIMIZER:
        return job.optimizer_rule.title
    if trace.job.optimizer:
        return trace.job.optimizer
    trains = any(phase.name == "backward" for phase in trace.phases)
    return "no optimizer" if trains else "inference"


def describe_estimated(summary: ModelSummary, estimate: Estimate) -> str:
    """The job of an estimate in one line; one of a trace is described as it was traced."""
    return describe_job(estimate.job, summary.trace if estimate.estimator == "trace" else None)


def describe_job(job: TrainingJob, trace: Optional[Trace] = None) -> str:
    """The job in one line: "batch 128, Adam, fp32", and what it does out of the ordinary."""
    words = [f"batch {job.batch_size}", optimizer_title(job, trace), PRECISION_TITLES[job.precision]]
    if job.gpus > 1:
        words.append(f"{job.gpus} GPUs")
    if job.grad_accumulation > 1:
        words.append(f"{job.grad_accumulation} accumulated batches")
    if job.checkpointing:
        words.append("checkpointing")
    if job.channels_last:
        words.append("channels_last")
    return ", ".join(words)


def _given(stated: StatedTraining) -> Dict[str, Any]:
    return {key: value for key, value in stated._asdict().items() if value is not None}


def _traced(summary: ModelSummary) -> Dict[str, Any]:
    """How the traced steps were trained."""
    if summary.trace is None:
        return {}
    traced = summary.trace.job
    found: Dict[str, Any] = {
        "batch_size": summary.batch,
        "precision": traced.precision,
        "grad_accumulation": traced.grad_accumulation,
        "checkpointing": traced.checkpointing,
        "channels_last": traced.channels_last,
        "torch": traced.torch,
    }
    # A custom optimizer has no name here; its memory is in the trace anyway.
    if traced.optimizer in OPTIMIZERS:
        found["optimizer"] = traced.optimizer
    return found
