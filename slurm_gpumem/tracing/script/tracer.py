"""In the user's process, right after torch was imported: make "cuda" the traced device and watch training.

What is installed here stays until the process ends.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import ExitStack
from typing import Any, Callable, List, NoReturn

import torch

from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta
from slurm_gpumem.tracing.cuda.substitutes import cuda_substitutes
from slurm_gpumem.tracing.engine.recording import Guess
from slurm_gpumem.tracing.engine.values import known_constants
from slurm_gpumem.tracing.fake_cuda import torch_patches
from slurm_gpumem.tracing.fake_cuda.cuda_answers import install_answers, install_streams
from slurm_gpumem.tracing.fake_cuda.device import FakeCuda
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.follow import largest_batches, loop_skipper
from slurm_gpumem.tracing.follow.checkpoints import follow_checkpoints
from slurm_gpumem.tracing.follow.enough_steps import ENOUGH_STEPS, Steps
from slurm_gpumem.tracing.follow.epochs import Epochs
from slurm_gpumem.tracing.follow.fast_forward import FastForward
from slurm_gpumem.tracing.follow.generation import Generation
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.follow.training_hooks import TrainingHooks
from slurm_gpumem.tracing.follow.written_files import Unwritten, copy_foreign_files
from slurm_gpumem.tracing.model import optimizers
from slurm_gpumem.tracing.script.ending import Ending, Summed
from slurm_gpumem.tracing.script.hints import PHASE
from slurm_gpumem.tracing.script.inference import Inference
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_places import Root, ScriptPlaces
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
from slurm_gpumem.tracing.script.summary import name_parameters, summary_of

_kept = ExitStack()
"""Contexts that are never left."""
_installed: List[Tracer] = []
_CALM_S = 6.0
"""Without a new peak, after which forward passes have nothing new to show."""


def tracer() -> Tracer:
    """The tracer of this process, for scripts of ours."""
    return _installed[0]


def install() -> None:
    """Called once, when torch has been imported."""
    env = os.environ
    report = Report(env["GPUMEM_TRACE_DIR"])
    made = Tracer(
        report,
        GpuFacts.from_json(env.get("GPUMEM_TRACE_GPU", "")),
        float(env.get("GPUMEM_TRACE_DEADLINE", "inf")),
        float(env.get("GPUMEM_TRACE_ONWARD", "8")),
        truth=env.get("GPUMEM_TRACE_TRUTH", "1") == "1",
    )
    made.install()
    _installed.append(made)


class Tracer:
    """Everything that is at work in the traced process."""

    def __init__(
        self, report: Report, gpu: GpuFacts, deadline: float, onward_s: float, *, truth: bool
    ) -> None:
        self.report = report
        self._gpu = gpu
        self._first_seed = torch.initial_seed()
        guess = Guess(truth=truth)
        self.places = ScriptPlaces(self._called, guess.turn)
        self.recorder = ScriptRecorder(
            self.places,
            _kept.enter_context(autocast_on_meta()),
            guess,
            gpu_bytes=gpu.memory_bytes,
            every_few=self._check_time,
        )
        self.fake = FakeCuda(self.recorder.elsewhere)
        self.steps = Steps(self.recorder, deadline, onward_s)
        self.inference = Inference(self.recorder, self.steps, deadline, min(onward_s, _CALM_S))
        self.skips = FastForward(self.recorder, self.steps, self.inference)
        self.unwritten = Unwritten(self.recorder)
        self.rounds = Rounds(self.recorder, self.steps, self.unwritten, self.note)
        self.ending = Ending(report, self.recorder, self.steps, self.skips, self.inference, self._summary)

    def install(self) -> None:
        """Put all of it into force."""
        # By the first optimizer at the latest: before a script has put something in Triton's place.
        importlib.import_module("torch._dynamo")
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1") or 1)))
        recorder, steps, rounds, unwritten = self.recorder, self.steps, self.rounds, self.unwritten
        recorder.enter("setup", 0)
        optimizers.foreach_on_meta()
        _kept.enter_context(cuda_substitutes(recorder))
        _kept.enter_context(known_constants())
        _kept.enter_context(self.places)
        install_answers(self.fake, self._gpu, recorder)
        install_streams(recorder, self.report)
        torch_patches.install(recorder, self.fake, self.report)
        follow_checkpoints(recorder, steps, unwritten, self._repeats)
        largest_batches.install_random(recorder, self._repeats, self.note)
        Epochs(recorder, steps, rounds, unwritten, self._repeats, self.note).install()
        largest_batches.install_longest(recorder, self._repeats, self.note)
        loop_skipper.install(rounds)
        TrainingHooks(recorder, steps, self.skips, rounds, self.ending).install()
        self.skips.install()
        Generation(recorder, self.inference).install()
        unwritten.install()
        copy_foreign_files()
        _in_every_thread(self.fake, recorder)
        self.fake.__enter__()
        recorder.__enter__()
        self.ending.install()
        self.report.say(torch=str(torch.__version__), python=sys.executable, argv=sys.argv[:40])

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.report.note(text)

    # -- Scripts of ours (`model.training`) --------------------------------------------------------

    def now_at(self, phase: str) -> None:
        """If the process ends without another word, this is what it was doing."""
        self.report.say(failed=phase, kind=PHASE)

    def lead(self, summary: Callable[[], Summed], *, trains: bool) -> None:
        """The script says itself where steps begin and end, and what was seen."""
        self.ending.summary, self.recorder.drops = summary, False
        self.steps.led, self.steps.forward_only = 0, not trains

    def begin_step(self, number: int) -> None:
        """From here on is this step."""
        self.steps.led = number
        self.recorder.enter("forward", number)

    def end(self) -> None:
        """All was seen."""
        self.ending.finish_as_told()

    def fail(self, message: str, *, may_guess_again: bool) -> NoReturn:
        """It cannot be traced; the message says all that there is to say."""
        self.ending.fail(message, may_guess_again=may_guess_again)

    # -- What happens around it --------------------------------------------------------------------

    @property
    def seeded(self) -> bool:
        """Whether the script has set PyTorch's seed: on a GPU it has the same batches in the same order."""
        return torch.initial_seed() != self._first_seed

    def _repeats(self) -> bool:
        """Whether loaders may end their epoch: what they feed has nothing new to show."""
        return self.steps.fast_forward or self.inference.fast_forward

    def _called(self, root: Root, args: Any) -> None:
        module = root.module
        if module is None:
            return
        trains = torch.is_grad_enabled() and module.training
        self.skips.before_call(trains)
        self.inference.called(module, args)
        self.steps.called(root, args)
        if trains and self.recorder.cycles <= ENOUGH_STEPS:
            name_parameters(self.recorder, root)  # while it is there: a script may drop it
        self._check_time()

    def _check_time(self) -> None:
        if self.steps.time_is_over():
            self.ending.finish()
        if self.steps.led is None and self.inference.is_over() and self.report.claim():
            self.ending.finish()

    def _summary(self) -> Summed:
        if not self.ending.failure:  # an error ends loops, too
            for text in self.rounds.early_ends:
                self.note(text)
        return summary_of(self)


def _in_every_thread(fake: FakeCuda, recorder: ScriptRecorder) -> None:
    """Modes belong to a thread; loaders and prefetchers start their own."""
    real = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with fake, recorder:
            return real(self)

    threading.Thread.run = run  # type: ignore[method-assign]
