"""The memory line: a job's GPU memory as a small function of its batch size, in one word.

    #GPUMEM batch-size=128 memory-line=1/9c41d2e07ab35f10/corrected/adam.fp32/both.100.100/128/KNOTS/SMALL

Fields between slashes: version, the model's fingerprint, the estimator, how it is trained, which CUDA context
the job has and how much of it counts for peak and request (per cent), then, where it is more than
the table's, the per cent of its peak that a traced request gets where nobody measured cuDNN's workspaces, the
batch it was made for, knots `batch,peak,request` between colons. Knots are MiB without the context, on a GPU
with large cuBLAS workspaces; SMALL, where it is, is the same on other GPUs: knots again, or `peak,request` to
add to those before.
lua/gpumem_line.lua is this module's twin in slurmctld; a test holds them to the same answers.
"""

from __future__ import annotations

import re
from math import floor
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.environment import workspace_margin
from slurm_gpumem.estimators.remembered import variant
from slurm_gpumem.estimators.types import INPUT_DTYPES, LOSSES, Estimate, Gpu, TrainingJob

KEY = "memory-line"
"""Its key in a #GPUMEM line."""
VERSION = "1"
MAX_BYTES = 2000
"""Of the whole word; slurmctld reads 4096 bytes of #GPUMEM lines."""
MAX_KNOTS = 200
MAX_BATCH = 1 << 20
MAX_MIB = 1 << 30
LARGE_WORKSPACE_BYTES = 20 << 20
"""A cuBLAS workspace from here on is a large one: they have 32 or 8.125 MiB."""
CONTEXTS = ("none", "bare", "conv", "matmul", "both")
_WORD = re.compile(r"[A-Za-z0-9._+-]{1,40}")
_FINGERPRINT = re.compile(r"[0-9a-f]{4,64}")
_CONTEXT = re.compile(r"([a-z]+)\.([0-9]{1,3})\.([0-9]{1,3})(?:\.([0-9]{1,3}))?")
_KNOT = re.compile(r"([0-9]{1,10}),(-?[0-9]{1,10}),(-?[0-9]{1,10})")
_SHIFT = re.compile(r"(-?[0-9]{1,10}),(-?[0-9]{1,10})")


class Knot(NamedTuple):
    """Memory at one batch size, without the CUDA context."""

    batch: int
    peak_mib: int
    request_mib: int


class MemoryLine(NamedTuple):
    """A parsed memory line."""

    fingerprint: str
    estimator: str
    job: str
    """How it is trained: `job_words` of the job."""
    context: str
    """One of CONTEXTS."""
    context_peak: int
    """Per cent of the context that counts for the peak ..."""
    context_request: int
    """... and for the request: a bound that is a multiple of the peak multiplies the context too."""
    batch: int
    knots: Tuple[Knot, ...]
    small_knots: Tuple[Knot, ...] = ()
    """On GPUs with small cuBLAS workspaces; empty: the same, moved by `small_shift`."""
    small_shift: Tuple[int, int] = (0, 0)
    unmeasured_percent: Optional[int] = None
    """What requests get more, of the peak, where nobody measured workspaces; None: as the table has it."""

    def text(self) -> str:
        """The word behind `memory-line=`."""
        fields = [
            VERSION,
            self.fingerprint,
            self.estimator,
            self.job,
            ".".join(map(str, self._context_words())),
            str(self.batch),
            _knots_text(self.knots),
        ]
        if self.small_knots:
            fields.append(_knots_text(self.small_knots))
        elif any(self.small_shift):
            fields.append(",".join(map(str, self.small_shift)))
        return "/".join(fields)

    def _context_words(self) -> Tuple[object, ...]:
        known = (self.context, self.context_peak, self.context_request)
        return known if self.unmeasured_percent is None else (*known, self.unmeasured_percent)

    def directive(self, *, with_batch: bool = True) -> str:
        """The whole line for a script, with the batch size where people can see and change it."""
        batch = f"batch-size={self.batch} " if with_batch else ""
        return f"#GPUMEM {batch}{KEY}={self.text()}"

    def memory(self, batch: int, gpu: Gpu) -> Tuple[int, int]:
        """Peak and request in MiB for a batch size on a GPU (`in_environment`), context included."""
        large = gpu.cublas_workspace_bytes >= LARGE_WORKSPACE_BYTES
        knots = self.knots if large or not self.small_knots else self.small_knots
        peak, request = interpolate(knots, batch)
        if not large and not self.small_knots:
            peak, request = peak + self.small_shift[0], request + self.small_shift[1]
        context = self.context_mib(gpu)
        peak = max(1, peak + context * self.context_peak // 100)
        margin = gpu.context_margin_mib
        if self.estimator.split("+")[0] == "trace":
            percent = workspace_margin(gpu, self.context in ("conv", "both"))
            if percent and self.unmeasured_percent is not None:
                percent = self.unmeasured_percent
            margin += peak * percent // 100
        return peak, max(peak, request + context * self.context_request // 100 + margin)

    def context_mib(self, gpu: Gpu) -> int:
        """The CUDA context that such a job has on this GPU."""
        if self.context == "none":
            return 0
        both = self.context == "both"
        return gpu.context_for(conv=both or self.context == "conv", matmul=both or self.context == "matmul")

    def training_job(self, batch: int) -> TrainingJob:
        """The job that it was made for, with another batch size."""
        return job_of_words(self.job, batch)

    def estimate(self, batch: int, gpu: Gpu) -> Estimate:
        """What the estimator would say, as far as the line knows it."""
        peak, request = self.memory(batch, gpu)
        context = min(peak, self.context_mib(gpu))
        first, last = self.knots[0].batch, self.knots[-1].batch
        warnings: Tuple[str, ...] = ()
        if not first <= batch <= last:
            warnings = (
                f"the memory line was made for batches of {first} to {last}, not {batch}: regenerate it "
                "with gpumem estimate --directive",
            )
        return Estimate(
            peak_mib=peak,
            request_mib=request,
            floor_mib=peak,
            parts={"tensors": peak - context, "context": context},
            estimator=self.estimator,
            gpu=gpu.name,
            job=self.training_job(batch),
            warnings=warnings,
        )


def interpolate(knots: Sequence[Knot], batch: int) -> Tuple[int, int]:
    """Peak and request between the knots, rounded up.

    Below the first knot it stays as there; beyond the last it goes on as between the middle one and it.
    """
    if batch <= knots[0].batch or len(knots) == 1:
        return knots[0].peak_mib, knots[0].request_mib
    at = 1
    while at < len(knots) - 1 and knots[at].batch < batch:
        at += 1
    left, right = knots[at - 1], knots[at]
    if batch > right.batch:
        left = knots[(len(knots) - 1) // 2]
    part, whole = batch - left.batch, right.batch - left.batch
    # Numbers stay below 2^53, so that Lua's doubles round to the same MiB.
    return (
        left.peak_mib - floor((left.peak_mib - right.peak_mib) * part / whole),
        left.request_mib - floor((left.request_mib - right.request_mib) * part / whole),
    )


# -- Text ------------------------------------------------------------------------------------------


def parse_line(text: str) -> MemoryLine:
    """The line behind `memory-line=`; UsageError says what is wrong with it."""
    if len(text) > MAX_BYTES:
        raise _damaged(f"it has more than {MAX_BYTES} characters")
    fields = text.split("/")
    if fields[0] != VERSION:
        raise _damaged(f"version {fields[0][:10]!r} is not {VERSION}")
    if len(fields) not in (7, 8):
        raise _damaged("it is cut off or has too many parts")
    _, fingerprint, estimator, job, context, batch, knots, *small = fields
    context_parts = _CONTEXT.fullmatch(context)
    if not context_parts or context_parts[1] not in CONTEXTS:
        raise _damaged(f"{context[:20]!r} is no context")
    if not _FINGERPRINT.fullmatch(fingerprint) or not _WORD.fullmatch(estimator) or not _WORD.fullmatch(job):
        raise _damaged("its model, estimator or job is not a plain word")
    job_of_words(job, 1)
    shift = _SHIFT.fullmatch(small[0]) if small else None
    return MemoryLine(
        fingerprint=fingerprint,
        estimator=estimator,
        job=job,
        context=context_parts[1],
        context_peak=int(context_parts[2]),
        context_request=int(context_parts[3]),
        batch=_batch(batch),
        knots=_knots(knots),
        small_knots=_knots(small[0]) if small and not shift else (),
        small_shift=(_mib(shift[1]), _mib(shift[2])) if shift else (0, 0),
        unmeasured_percent=None if context_parts[4] is None else int(context_parts[4]),
    )


def job_words(job: TrainingJob) -> str:
    """How a job is trained, but for its batch: "adam.fp32", "sgd.amp-bf16.ckpt+nhwc"."""
    rarer = variant(job)
    return f"{job.optimizer}.{job.precision}" + (f".{rarer}" if rarer else "")


def job_of_words(text: str, batch: int) -> TrainingJob:
    """The job that `job_words` wrote."""
    optimizer, _, rest = text.partition(".")
    precision, _, rarer = rest.partition(".")
    values: Dict[str, object] = {"optimizer": optimizer, "precision": precision}
    for word in rarer.split("+") if rarer else ():
        if word == "ckpt":
            values["checkpointing"] = True
        elif word == "nhwc":
            values["channels_last"] = True
        elif re.fullmatch("acc[0-9]{1,6}", word):
            values["grad_accumulation"] = int(word[3:])
        elif word in LOSSES:
            values["loss"] = word
        elif word in INPUT_DTYPES:
            values["input_dtype"] = word
        else:
            raise _damaged(f"{word!r} is nothing a job can be")
    try:
        return TrainingJob(batch, **values)  # type: ignore[arg-type]
    except UsageError as error:
        raise _damaged(str(error)) from None


def _knots_text(knots: Sequence[Knot]) -> str:
    return ":".join(",".join(map(str, knot)) for knot in knots)


def _knots(text: str) -> Tuple[Knot, ...]:
    found: List[Knot] = []
    for word in text.split(":"):
        match = _KNOT.fullmatch(word)
        if not match:
            raise _damaged(f"{word[:30]!r} is not batch,peak,request")
        knot = Knot(_batch(match[1]), _mib(match[2]), _mib(match[3]))
        if found and knot.batch <= found[-1].batch:
            raise _damaged(f"batch {knot.batch} stands behind batch {found[-1].batch}")
        found.append(knot)
    if len(found) > MAX_KNOTS:
        raise _damaged(f"it has more than {MAX_KNOTS} knots")
    return tuple(found)


def _batch(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text) or not 1 <= int(text) <= MAX_BATCH:
        raise _damaged(f"{text[:20]!r} is no batch size")
    return int(text)


def _mib(text: str) -> int:
    if abs(int(text)) > MAX_MIB:
        raise _damaged(f"{text} MiB is no GPU memory")
    return int(text)


def _damaged(why: str) -> UsageError:
    return UsageError(
        f"the {KEY} is damaged: {why}.\nRegenerate it: gpumem estimate summary.txt --directive --write job.sh"
    )


def check_settings(line: MemoryLine, given: Mapping[str, str]) -> Optional[str]:
    """Why the line is not for a job with these settings ("optimizer", "precision"); None when it is."""
    job = line.training_job(1)
    for key, mine in (("optimizer", job.optimizer), ("precision", job.precision)):
        other = given.get(key)
        if other is not None and other != mine:
            return f"the {KEY} was made for {key} {mine}, not {other}"
    return None
