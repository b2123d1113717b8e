"""The script of a model that has none: move it to "cuda", make batches, train it for a few steps.

Its code runs as a traced command does (`script.run`); a model in memory in a fork of its process (`live`).
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from slurm_gpumem.errors import GpumemError, TargetError
from slurm_gpumem.summaries.trace_types import TracedJob
from slurm_gpumem.summaries.types import ModelSummary, Shape
from slurm_gpumem.tracing.engine.assemble import assemble, precision_of, torch_version
from slurm_gpumem.tracing.engine.module_stack import shapes
from slurm_gpumem.tracing.engine.value_dependent_code import EndlessLoop
from slurm_gpumem.tracing.model import losses, optimizers
from slurm_gpumem.tracing.model.build import Several
from slurm_gpumem.tracing.model.given import OfCode
from slurm_gpumem.tracing.model.inputs import Inputs
from slurm_gpumem.tracing.model.loop import Plan, Step, mark, note_model, seen_by, steps
from slurm_gpumem.tracing.model.spec import NO_OPTIMIZER, TraceRequest
from slurm_gpumem.tracing.script import tracer
from slurm_gpumem.tracing.script.summary import summary_of
from slurm_gpumem.tracing.script.tracer import Tracer
from slurm_gpumem.tracing.user_line import innermost, is_ours, own_words, user_line

_PURE = {"bf16": torch.bfloat16}
_FAILURES = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)


def main() -> None:
    """In the traced process: the request is the only argument."""
    request = TraceRequest.from_json(sys.argv[1])
    Training(request, OfCode(request), tracer.tracer()).run()


class Material(Protocol):
    """What a request is a training of: the user's code (`given.OfCode`), or what is in memory (`live`)."""

    scalable: bool
    """Whether a step with another batch size shows what grows with it."""
    gradients: bool
    """Whether forward passes keep what a backward pass needs."""

    def model(self, enter: Callable[[str], None], tracer: Tracer) -> Tuple[nn.Module, str]:
        """The model, and where it was built."""

    def batches(
        self, model: nn.Module, floats: Optional[torch.dtype], tracer: Tracer
    ) -> Callable[[int], Inputs]:
        """A function that makes a batch of a size on the GPU; fp32 numbers become `floats`, if given."""

    def loss(self) -> losses.Given:
        """Its name, or a function of output and target; None: by what the model returns."""

    def optimizer(self) -> optimizers.Given:
        """The optimizer, its name, or a function that makes it of parameters."""

    def step(self) -> Optional[Step]:
        """The user's own step, if there is one."""


class Training:
    """One request, from the model to its last step."""

    def __init__(self, request: TraceRequest, material: Material, tracer: Tracer) -> None:
        self._request = request
        self._material = material
        self._tracer = tracer
        self._phase = ""
        self._owner = os.getpid()
        self._trains = request.optimizer != NO_OPTIMIZER
        self._optimizer = ""
        self._loss = losses.Loss(None)
        self._step: Optional[Step] = None
        self._batches: List[int] = []
        """Batch size of each step that was run."""
        self._shapes: Tuple[Shape, ...] = ()
        self._filled, self._unfilled = "", ""
        """The argument for labels that nobody gave: filled for the model's own loss, or left out."""
        self._built_on = ""

    def run(self) -> None:
        """Train, and tell what was seen; or why that is not possible."""
        with self._told():
            model = self._built()
            make = self._fed(model)
            self._enter("tracing the model")
            with torch.set_grad_enabled(self._material.gradients):
                self._train(model, make)

    def _enter(self, phase: str) -> None:
        if os.getpid() != self._owner:
            os._exit(0)  # a process that the user's code has forked
        self._phase = phase
        self._tracer.now_at(phase)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything; all of it is told
            if os.getpid() != self._owner:
                os._exit(0)
            other = not isinstance(error, (TargetError, EndlessLoop))
            self._tracer.fail(failure(error, self._phase, self._request), may_guess_again=other)

    # -- Before the first step ---------------------------------------------------------------------

    def _built(self) -> nn.Module:
        request, recorder = self._request, self._tracer.recorder
        model, self._built_on = self._material.model(self._enter, self._tracer)
        if self._trains and not list(model.parameters()):
            raise TargetError(f"{request.target.label}: the model has no parameters; nothing to train")
        with recorder.unnoted():
            model = model.cuda()
            if request.precision in _PURE:
                model = model.to(_PURE[request.precision])
            if request.channels_last:
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def _fed(self, model: nn.Module) -> Callable[[int], Inputs]:
        self._enter("making the batch")
        request, recorder = self._request, self._tracer.recorder
        make = self._material.batches(model, _PURE.get(request.precision), self._tracer)
        loss, self._step = self._material.loss(), self._material.step()
        self._loss = losses.Loss(loss)
        with recorder.unnoted():
            self._shapes = shapes(make(request.batch_size).args)
            if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
                # Layers without a shape get theirs by one forward pass, as users do before training.
                training = model.training
                with torch.no_grad():
                    inputs = make(request.batch_size)
                    model.eval()(*inputs.args, **inputs.kwargs)
                model.train(training)
            if self._trains and self._step is None and loss is None:
                make = self._labelled(model, make)
        recorder.begin_again()
        return make

    def _labelled(self, model: nn.Module, make: Callable[[int], Inputs]) -> Callable[[int], Inputs]:
        """Batches with labels that nobody gave, if the model computes a loss from such."""
        inputs = make(self._request.batch_size)
        name = losses.unfilled(model, inputs) if inputs.target is None else None
        if name is None:
            return make
        filled = losses.filled(make, name)
        if filled is not None:
            try:
                inputs = filled(self._request.batch_size)
                if losses.own_loss(model(*inputs.args, **inputs.kwargs))[0] is not None:
                    self._filled = name
                    return filled
            except _FAILURES:
                pass  # not such labels
        self._unfilled = name
        return make

    # -- Steps -------------------------------------------------------------------------------------

    def _train(self, model: nn.Module, make: Callable[[int], Inputs]) -> None:
        request, tracer = self._request, self._tracer
        recorder, followed = tracer.recorder, tracer.steps
        tracer.lead(lambda: self._summary(model), trains=self._trains)
        recorder.enter("setup", 0)
        # Else they say that they are on "cuda", and parts of sparse ones are noted as what an operator made.
        with torch._C.DisableTorchFunction(), recorder.paused():
            note_model(model, recorder)

        def made(size: int) -> Inputs:
            with recorder.kernels.paused():  # a real job would load it
                inputs = make(size)
            with torch._C.DisableTorchFunction():
                mark(recorder, inputs.tensors(), "inputs")
            return inputs

        size, optimizer = request.batch_size, None
        if self._trains:
            given = self._material.optimizer()
            optimizer = optimizers.make_optimizer(given, model)
            self._optimizer = optimizers.name_of(given, optimizer)
        plan = Plan(
            model=model,
            make=made,
            loss=self._loss,
            optimizer=optimizer,
            # The last step has another batch size than those before it: it shows what grows with it.
            batches=(size, size, 2 * size if self._material.scalable else size),
            precision=request.precision,
            accumulate=request.grad_accumulation,
            evaluate=request.evaluate,
            step=self._step,
            trained=lambda: (sum(followed.counts.values()), followed.backwards),
        )
        begun = 0
        training = steps(plan)  # kept: its variables go with it
        try:
            for number in training:
                self._batches = list(plan.batches[: number - 1])
                if number > len(plan.batches):
                    break
                begun = len(recorder.events)
                tracer.begin_step(number)
            tracer.end()
        except _FAILURES as error:
            if len(self._batches) < len(plan.batches) - 1 or isinstance(error, EndlessLoop):
                raise
            # Sizes in the code itself (a graph, a table by rows): it runs with this batch only.
            recorder.forget_from(begun, len(plan.batches))
            tracer.end()

    # -- What was seen -----------------------------------------------------------------------------

    def _summary(self, model: nn.Module) -> Tuple[ModelSummary, Dict[str, Any]]:
        request, recorder = self._request, self._tracer.recorder
        summary, facts = summary_of(self._tracer)
        job = TracedJob(
            batch=request.batch_size,
            optimizer=self._optimizer,
            precision=precision_of(model, request.precision),
            grad_accumulation=request.grad_accumulation,
            checkpointing=request.checkpointing or self._tracer.steps.checkpointing,
            channels_last=request.channels_last,
            evaluate=request.evaluate,
            loss=self._loss.what or "the step's own",
            torch=torch_version(),
        )
        parameters = {id(p): p for p in model.parameters()}.values()
        summary = summary._replace(
            name=request.target.library_name or _class_of(model),
            batch=request.batch_size,
            input_shapes=self._shapes,
            total_params=sum(p.numel() for p in parameters),
            trainable_params=sum(p.numel() for p in parameters if p.requires_grad),
            trace=assemble(seen_by(recorder), job, self._batches),
            warnings=(*recorder.warnings, *losses.warnings(self._filled, self._unfilled, job.loss)),
        )
        return summary, {**facts, "way": "meta", "built_on": self._built_on, "loss": job.loss}


def _class_of(model: nn.Module) -> str:
    return type(model.parts[0] if isinstance(model, Several) else model).__name__


# -- What an exception of the user's code means --------------------------------------------------------

_OFFLINE = (
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "HfHubHTTPError",
    "URLError",
    "ConnectionError",
)
_HINTS = (
    (("libcud", "CUDA_HOME", "nvcc"),
     "CUDA extensions do not load without CUDA; trace with the PyTorch fallback of this code."),
    (("torch.distributed", "process group"),
     "Only one process on one GPU is traced: name a function that builds the bare model."),
    (("relative import",),
     "Name it as a module: package.module:build_model, from the directory above the package."),
)  # fmt: skip


def failure(error: BaseException, phase: str, request: TraceRequest) -> str:
    """One message for people; `phase` is what was going on."""
    label = request.target.label
    if isinstance(error, TargetError):
        return str(error)
    if isinstance(error, GpumemError):
        return f"{label}: {error}"
    return "\n".join(line for line in _lines(error, phase, request) if line)


def _lines(error: BaseException, phase: str, request: TraceRequest) -> List[str]:
    label, where = request.target.label, user_line(error)
    if isinstance(error, SystemExit):
        words = " ".join(str(error.code).split())[:200]
        said = f" saying: {words}" if isinstance(error.code, str) else f" with code {error.code or 0}"
        return [
            f"{label}: the code called sys.exit{said} while {phase}.",
            where,
            "Name a function that only builds the model.",
        ]
    if any(type(one).__name__ in _OFFLINE or isinstance(one, ConnectionError) for one in _chain(error)):
        return [
            f"{label}: the code tried to download; network access is disabled.",
            where,
            "Weights do not matter for memory: build it without them (pretrained=False, from_config),",
            "or download it first: files in the local cache are used.",
        ]
    if isinstance(error, ModuleNotFoundError):
        return [
            f"{label}: needs the package {error.name!r}, which is not installed for this Python.",
            where,
            "Install it, or name an environment that has it: --python ~/env/bin/python",
        ]
    if isinstance(error, RecursionError):
        return [f"{label}: endless recursion while {phase}.", where]
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return [f"{label}: not enough host memory while {phase}.", where, own_words(error)]
    if isinstance(error, EOFError):
        return [f"{label}: the code asks for input (input()), but there is no terminal.", where]
    if is_ours(error):
        return [
            f"{label}: a fault in gpumem while {phase}; please report it with this line.",
            f"{own_words(error)} ({innermost(error)})",
        ]
    runs = phase.startswith("tracing")
    what = "the model does not run with this input" if runs else f"failed while {phase}"
    return [f"{label}: {what}.", where, own_words(error), _hint(error, runs, request)]


def _hint(error: BaseException, runs: bool, request: TraceRequest) -> str:
    text = str(error)
    if runs and request.inputs:
        shapes = ", ".join(
            (f"{one.name}=" if one.name else "") + str(list(one.shape(request.batch_size)))
            for one in request.inputs
        )
        if isinstance(error, TypeError) and "argument" in text:
            return (
                f"It was called with {shapes}; name inputs by --input NAME=SHAPE, repeat --input for several."
            )
        return f"It was called with {shapes}: --input is the shape of one sample, without the batch."
    return next((hint for words, hint in _HINTS if any(word in text for word in words)), "")


def _chain(error: BaseException) -> List[BaseException]:
    found: List[BaseException] = []
    current: Any = error
    while current is not None and current not in found and len(found) < 20:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found
