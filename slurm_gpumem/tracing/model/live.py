"""`summarize(model, batch, optimizer=…)`: a model in memory is trained in a fork of this process.

The fork has the model, closures and all, and is traced as a script is; here nothing changes.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from slurm_gpumem.errors import TargetError
from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.engine.values import give, small
from slurm_gpumem.tracing.fake_cuda.gpu_facts import ANY_GPU
from slurm_gpumem.tracing.guard.syscalls import PDEATHSIG, prctl
from slurm_gpumem.tracing.model import losses, optimizers
from slurm_gpumem.tracing.model.inputs import Inputs, as_inputs, mapped, on_gpu, require_size
from slurm_gpumem.tracing.model.loop import Step
from slurm_gpumem.tracing.model.spec import MODULE, NO_OPTIMIZER, Target, TraceRequest
from slurm_gpumem.tracing.model.training import Training
from slurm_gpumem.tracing.script import tracer
from slurm_gpumem.tracing.script.hints import TOLD
from slurm_gpumem.tracing.script.report_folder import SUMMARY, Messages, Report, read_file
from slurm_gpumem.tracing.script.tracer import Tracer
from slurm_gpumem.tracing.user_line import own_words

_LONGEST_S = 900.0
_POLL_S = 0.02
_OTHERWISE = (
    "Name its code: gpumem summarize FILE:NAME; or trace the whole script: gpumem trace -- python SCRIPT"
)
_NO_GRADIENTS = (
    "gradients are off where summarize is called (torch.no_grad or inference_mode): call it outside, or with "
    "optimizer=None for forward passes alone"
)
_NO_FORK = (
    "this process has run a backward pass beside a GPU, and PyTorch runs none in a fork of it. Call "
    f"summarize before the first one. {_OTHERWISE}"
)


def summarize(
    model: nn.Module,
    batch: Any,
    *,
    optimizer: optimizers.Given = "adam",
    loss: losses.Given = None,
    target: Any = None,
    precision: str = "fp32",
    batch_size: Optional[int] = None,
    grad_accumulation: int = 1,
    channels_last: bool = False,
    evaluate: bool = False,
    scalable: bool = True,
    step: Optional[Step] = None,
    name: str = "",
) -> ModelSummary:
    """Trace three training steps of `model` without running them.

    `batch` is what the model's forward takes (a tensor, a tuple by position, a dictionary by name), a data
    loader's (input, target) where forward takes one argument, or a function that makes a batch of a given
    size. Nothing is changed here: a fork of this process is traced. `step` is the user's own training step,
    called with the model, the batch and the optimizer. TargetError says why a model cannot be traced.
    """
    model = unwrapped(model)
    if step is None and target is None and losses.is_pair(model, batch):
        batch, target = batch
        batch = batch if isinstance(batch, (tuple, list, dict)) else (batch,)
    size = require_size(batch, batch_size)
    optimizers.check(optimizer, model)
    losses.Loss(loss)  # an unknown name
    request = TraceRequest(
        Target(MODULE, name or type(model).__name__),
        size,
        optimizer=NO_OPTIMIZER if optimizer is None else "given",
        precision=precision,
        grad_accumulation=grad_accumulation,
        channels_last=channels_last,
        evaluate=evaluate,
    )
    if not callable(batch) or isinstance(batch, Tensor):
        batch = mapped(as_inputs(batch, target), _off_gpu)
    live = _Live(model, batch, size, optimizer, loss, step, scalable)
    answer = _in_fork(request, live, truth=True)
    if answer.get("guessed") is True:
        # A value that nobody knows was taken to be true, and the model did not like it.
        again = _in_fork(request, live, truth=False)
        answer = again if "summary" in again else answer
    if "summary" not in answer:
        off = optimizer is not None and not torch.is_grad_enabled()
        raise TargetError(f"{answer['failed']}\n{_NO_GRADIENTS}" if off else answer["failed"])
    return parse(answer["summary"].decode(), origin=request.target.label)._replace(name=request.target.label)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _off_gpu(tensor: Tensor) -> Tensor:
    """A tensor that a fork can use: of a real GPU it cannot use anything."""
    if tensor.device.type in ("cpu", "meta"):
        return tensor
    return tensor.detach().cpu() if small(tensor) else torch.empty_like(tensor, device="meta")


class _Live:
    """What is trained (`training.Material`): the model itself, in a fork that may change it."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        size: int,
        optimizer: optimizers.Given,
        loss: losses.Given,
        step: Optional[Step],
        scalable: bool,
    ) -> None:
        self._model, self._batch, self._size = model, batch, size
        self._optimizer, self._loss, self._step = optimizer, loss, step
        self.scalable, self.gradients = scalable, torch.is_grad_enabled()
        own = (*model.parameters(), *model.buffers())
        self._on_gpu = {id(tensor): (tensor, _off_gpu(tensor)) for tensor in own if tensor.is_cuda}

    def model(self, enter: Callable[[str], None], tracer: Tracer) -> Tuple[nn.Module, str]:
        """The model, as new: without gradients and states of steps that were made before."""
        enter("moving the model to the GPU")
        for parameter in self._model.parameters():
            parameter.grad = None
        if isinstance(self._optimizer, torch.optim.Optimizer):
            self._optimizer.state.clear()
            tracer.steps.made.add(self._optimizer)
        tracer.steps.makes_optimizers = self._optimizer is not None
        return self._model, "memory"

    def leave_gpu(self) -> None:
        """Before the trace: what is on a real GPU is not touched in a fork, not even freed."""

        def empty(tensor: Tensor) -> Tensor:
            if id(tensor) not in self._on_gpu:
                return tensor
            _kept.append(tensor.untyped_storage())
            found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            return self._with_value(found, tensor)

        if self._on_gpu:
            torch.__future__.set_swap_module_params_on_conversion(True)
            self._model._apply(empty)
            torch.__future__.set_swap_module_params_on_conversion(False)
        for parameter in self._model.parameters():  # the same objects as before
            self._with_value(parameter, parameter)

    def _with_value(self, tensor: Tensor, like: Tensor) -> Tensor:
        value = self._on_gpu[id(like)][1] if id(like) in self._on_gpu else None
        if value is not None and value.device.type == "cpu":
            give(tensor, value)
        return tensor

    def batches(
        self, model: nn.Module, floats: Optional[torch.dtype], tracer: Tracer
    ) -> Callable[[int], Inputs]:
        """A function that makes a batch of a size like the given one, on the GPU."""
        batch, recorder = self._batch, tracer.recorder

        def make(wanted: int) -> Inputs:
            if isinstance(batch, Inputs):
                found: Inputs = on_gpu(batch, recorder, floats, (self._size, wanted))
            else:
                found = on_gpu(as_inputs(batch(wanted)), recorder, floats)
            return found

        return make

    def loss(self) -> losses.Given:
        """Its name, or a function of output and target; None: by what the model returns."""
        return self._loss

    def optimizer(self) -> optimizers.Given:
        """The optimizer, its name, or a function that makes it of parameters."""
        return self._optimizer

    def step(self) -> Optional[Step]:
        """The user's own step, if there is one."""
        return self._step


_kept: List[torch.UntypedStorage] = []
"""Memory of a real GPU, in a fork."""


# -- The fork --------------------------------------------------------------------------------------


def _in_fork(request: TraceRequest, live: _Live, *, truth: bool) -> Dict[str, Any]:
    """What a fork that is traced has said; with its "summary" if there is one, else with why it "failed"."""
    importlib.import_module("torch._dynamo")  # here, so that the next fork has it
    folder = tempfile.mkdtemp(prefix="gpumem-trace-")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which a fork does not have
        pid = os.fork()
    if pid == 0:
        _trained(request, live, folder, truth)
    try:
        return _answer(pid, folder, request.target.label)
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended
        shutil.rmtree(folder, ignore_errors=True)


def _trained(request: TraceRequest, live: _Live, folder: str, truth: bool) -> None:
    """In the fork, which does not return."""
    leave = os._exit  # the tracer replaces it
    try:
        prctl(PDEATHSIG, int(signal.SIGKILL))
        os.environ.update(
            GPUMEM_TRACE_DIR=folder,
            GPUMEM_TRACE_GPU=ANY_GPU.to_json(),
            GPUMEM_TRACE_TRUTH=str(int(truth)),
            OMP_NUM_THREADS="1",  # a fork would wait for the threads of a pool that it does not have
            CUDA_VISIBLE_DEVICES="",
        )
        vars(sys)["gpumem_files_read"] = SimpleNamespace(write=lambda: None)
        if not _runs_backward():
            Report(folder).say(failed=f"{request.target.label}: {_NO_FORK}", kind=TOLD)
            return
        live.leave_gpu()
        sys.modules["torch._dynamo"].config.disable = True
        tracer.install()
        Training(request, live, tracer.tracer()).run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on
        Report(folder).say(failed=f"{request.target.label}: {own_words(error)}. {_OTHERWISE}", kind=TOLD)
    finally:
        leave(1)


def _runs_backward() -> bool:
    """Whether autograd runs here: it has threads for each GPU, which a fork does not have."""
    with torch.inference_mode(False), torch.enable_grad():
        number = torch.zeros((), device="cpu", requires_grad=True)
        try:
            (number * 1).backward()
        except RuntimeError:
            return False
    return True


def _answer(pid: int, folder: str, label: str) -> Dict[str, Any]:
    messages, said = Messages(folder), {"failed": "starting"}
    started = time.monotonic()
    while True:
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            ended = True  # this process lets others wait for its children, or nobody (SIGCHLD)
        for message in messages.new():
            said.update(message)
        if "done" in said:
            summary = read_file(folder, SUMMARY)
            return {**said, "summary": summary} if summary is not None else said
        if said.get("kind") == TOLD:
            return said
        if ended or time.monotonic() - started > _LONGEST_S:
            why = "the trace ended" if ended else f"not done after {_LONGEST_S:.0f} s"
            return {"failed": f"{label}: {why} while {said['failed']}. {_OTHERWISE}"}
        time.sleep(_POLL_S)
