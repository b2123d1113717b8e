"""In the user's process, right after torch was imported: make "cuda" the traced device and watch training.

What is installed here stays until the process ends.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
import traceback
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, NoReturn, Tuple

import torch

from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta
from slurm_gpumem.tracing.cuda.substitutes import cuda_substitutes
from slurm_gpumem.tracing.engine.constants import known_constants
from slurm_gpumem.tracing.engine.values import Guess
from slurm_gpumem.tracing.fake_cuda import streams, torch_patches
from slurm_gpumem.tracing.fake_cuda.cuda_answers import install_answers
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.fake_cuda.world import CudaWorld
from slurm_gpumem.tracing.follow.fast_forward import FastForward
from slurm_gpumem.tracing.follow.generation import Generation
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.follow.steps import ENOUGH_STEPS, Steps
from slurm_gpumem.tracing.follow.unwritten import Unwritten
from slurm_gpumem.tracing.model import optimizers
from slurm_gpumem.tracing.script import foreign_files
from slurm_gpumem.tracing.script.hints import PHASE, TOLD
from slurm_gpumem.tracing.script.inference import Inference
from slurm_gpumem.tracing.script.report_folder import LAUNCHED, Report
from slurm_gpumem.tracing.script.script_places import ScriptPlaces
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
from slurm_gpumem.tracing.script.summary import name_parameters, summary_of
from slurm_gpumem.tracing.user_line import from_stack, own_words, user_line

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
        self._report = report
        self._gpu = gpu
        self._owner = os.getpid()
        self._finished = False
        self._finisher = 0
        """The thread that writes down what was seen."""
        self._first_seed = torch.initial_seed()
        self.came_to_its_end = False
        """The script has ended by itself."""
        self._claimed = False
        self._failure = self._onward_failure = ""
        self._exit_code: Any = None
        self._summary: Callable[[], Tuple[ModelSummary, Dict[str, Any]]] = lambda: summary_of(self)
        self.ranks = 1
        """Processes that train together, of which this is the first."""
        self.world = CudaWorld()
        autocast = _kept.enter_context(autocast_on_meta())
        self.places = ScriptPlaces(self._called)
        self.recorder = ScriptRecorder(self.places, autocast, Guess(truth=truth))
        self.recorder.gpu_bytes = gpu.memory_bytes
        self.places.turns = self._turns
        self.world.elsewhere = self.recorder.elsewhere
        self.steps = Steps(self.recorder, deadline, onward_s, self.finish)
        self.steps.started = self._claim
        self.skips = FastForward(self.recorder, self.places, lambda: self.steps.fast_forward)
        self.steps.after_backward = lambda: self.skips.after_backward(self.steps.optimizers)
        self.steps.skipped = self._skipped
        self.steps.many_shapes = lambda: self.skips.varies
        self.steps.of_weights = self._run_whole
        self.unwritten = Unwritten(self.recorder)
        self.rounds = Rounds(self)
        self.steps.after_cycle = self.rounds.stepped
        self.inference = Inference(self.recorder, self.steps, deadline, min(onward_s, _CALM_S))
        self.generation = Generation(self)
        self.skips.skipped = self.inference.skipped
        self.skips.keeps_answers = lambda: not self.steps.counts
        self.recorder.every_few = self._check_time

    def install(self) -> None:
        """Put all of it into force."""
        if hasattr(torch, "compile"):
            # By the first optimizer at the latest: before a script has put something in Triton's place.
            importlib.import_module("torch._dynamo")
        torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1") or 1)))
        recorder = self.recorder
        recorder.enter("setup", 0)
        _kept.enter_context(optimizers.foreach_on_meta())
        _kept.enter_context(cuda_substitutes(recorder))
        _kept.enter_context(known_constants())
        _kept.enter_context(self.places)
        install_answers(self.world, self._gpu, recorder)
        streams.install(self)
        torch_patches.install(self)
        self.steps.install()
        self.skips.install()
        self.generation.install()
        self.unwritten.install()
        foreign_files.install()
        self._in_every_thread()
        self.world.__enter__()
        recorder.__enter__()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._at_exit)
        self._hook_exits()
        self._hook_exceptions()
        threading.Thread(target=self._heartbeat, daemon=True).start()
        self._report.say(torch=str(torch.__version__), python=sys.executable, argv=sys.argv[:40])

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self._report.say(note=text)

    def asked_ranks(self, ranks: int) -> None:
        """The script is to train with other processes, which are not there."""
        self.ranks = max(self.ranks, ranks)
        if ranks > 1:
            self._report.say(ranks=ranks)

    def used_gpus(self, gpus: int) -> None:
        """One process works on several GPUs."""
        self._report.say(ranks=gpus)

    def not_estimated(self, why: str) -> None:
        """What the script does next is nothing that a trace of one process shows: end here."""
        self._report.say(not_estimated=why)
        _wait_for_the_end()

    def finish(self) -> None:
        """Enough was seen: write the summary and wait for the end, so that nothing after it runs."""
        if self._finished or os.getpid() != self._owner:
            return
        self._finished, self._finisher = True, threading.get_ident()
        self._report.say(finishing=True)
        if not self._failure and not self._onward_failure:  # an error ends loops, too
            for text in self.rounds.early_ends:
                self.note(text)
        self.recorder.off = True
        with torch._C.DisableTorchFunction():
            summary, facts = self._summary()
        self._report.put_summary(to_json(summary))
        for name, text in (("failure", self._failure), ("onward_failure", self._onward_failure)):
            if text:
                facts[name] = text
        sys.gpumem_files_read.write()  # type: ignore[attr-defined]
        self._report.say(done=facts)
        _wait_for_the_end()

    # -- Scripts of ours (`model.training`) --------------------------------------------------------

    def now_at(self, phase: str) -> None:
        """If the process ends without another word, this is what it was doing."""
        self._report.say(failed=phase, kind=PHASE)

    def lead(self, summary: Callable[[], Tuple[ModelSummary, Dict[str, Any]]], *, trains: bool) -> None:
        """The script says itself where steps begin and end, and what was seen."""
        self._summary, self.recorder.drops = summary, False
        self.steps.led, self.steps.forward_only = 0, not trains

    def begin_step(self, number: int) -> None:
        """From here on is this step."""
        self.steps.led = number
        self.recorder.enter("forward", number)

    def end(self) -> None:
        """All was seen."""
        if not self._claimed:
            self._report.claim()
        self.finish()

    def fail(self, message: str, *, may_guess_again: bool) -> NoReturn:
        """It cannot be traced; the message says all that there is to say."""
        self._finished, self._finisher = True, threading.get_ident()
        guessed = may_guess_again and self.recorder.guess.used
        self._report.say(failed=message, kind=TOLD, guessed=guessed)
        os._exit(1)

    @property
    def failure(self) -> str:
        """The script's own error, and its line, if one has ended it."""
        return self._failure or self._onward_failure

    @property
    def seeded(self) -> bool:
        """Whether the script has set PyTorch's seed: on a GPU it has the same batches in the same order."""
        return torch.initial_seed() != self._first_seed

    def fast_forward(self) -> bool:
        """Whether loaders may end their epoch: what they feed has nothing new to show."""
        return self.steps.fast_forward or self.inference.fast_forward

    # -- What happens around it --------------------------------------------------------------------

    def _called(self, root: Any, args: Any) -> None:
        trains = torch.is_grad_enabled() and root.module.training
        self.skips.before_call(trains, self.steps.optimizers)
        self.inference.called(root.module, args)
        self.steps.called(root, args)
        if trains and self.recorder.cycles <= ENOUGH_STEPS:
            name_parameters(self.recorder, root)  # while it is there: a script may drop it
        self._check_time()

    def _turns(self, smaller: bool) -> None:
        """A trace has no scores: a search that goes on with the best of its models takes the largest."""
        self.recorder.guess.worse = smaller

    def _check_time(self) -> None:
        self.steps.check_time()
        if self.steps.led is None and self.inference.is_over() and self._report.claim():
            self.finish()

    def _skipped(self) -> bool:
        was, self.skips.skipping = self.skips.skipping and not self.skips.does_more, False
        return was

    def _run_whole(self) -> None:
        self.skips.whole = True

    def _claim(self) -> bool:
        self._claimed = self._report.claim()
        if self._claimed:
            launched = os.environ.get(LAUNCHED, "")
            ranks = {"ranks": int(launched)} if launched.isdigit() else {}
            self._report.say(training=True, **ranks)
        else:
            self.recorder.off = True
        return self._claimed

    def _forked(self) -> None:
        self.recorder.off = True

    def _at_exit(self) -> None:
        if os.getpid() != self._owner:
            return
        if self._finished:
            if threading.get_ident() != self._finisher:
                _wait_for_the_end()  # another thread is writing down what was seen
            return
        if self._claimed:
            self.came_to_its_end = not self._failure
            self.finish()
        elif self.inference.was_all() and self._exit_code:
            caught = f" after {self._failure}" if self._failure else ""
            self._report.say(
                failed=f"it ended by sys.exit({self._exit_code!r}){caught}",
                guessed=self.recorder.guess.used,
                passes=self.skips.completed,
            )
        elif self.inference.was_all() and not self._failure:
            # Another process may train later, or need more: the command goes on, and the largest counts.
            self.recorder.off = True
            with torch._C.DisableTorchFunction():
                summary, facts = summary_of(self)
            self._report.put_inference(to_json(summary))
            self._report.say(inference=facts)
        else:
            models = [root.kind for root in self.places.all_roots()]
            self._report.say(ended=True, models=models, guessed=self.recorder.guess.used)

    def _hook_exits(self) -> None:
        """`os._exit` after training: what was seen until then holds. The code of `sys.exit` is kept."""
        real = os._exit

        def hard_exit(status: int) -> NoReturn:
            self._at_exit()
            real(status)

        os._exit = hard_exit
        leave = sys.exit

        def noting_exit(code: Any = None) -> NoReturn:
            self._exit_code = code
            caught = sys.exc_info()[1]
            if code and caught is not None:  # frameworks print it and leave
                self._failed_by(caught)
            leave(code)

        sys.exit = noting_exit

    def _hook_exceptions(self) -> None:
        real = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            self._failed_by(error)
            if os.getpid() == self._owner:
                self._report.say(
                    failed=self._failure,
                    guessed=self.recorder.guess.used,
                    kind=kind.__name__,
                    passes=self.skips.completed,
                )
            if os.environ.get("GPUMEM_TRACE_DEBUG"):
                self._report.say(note="".join(traceback.format_exception(kind, error, trace)[-8:]))
            real(kind, error, trace)

        sys.excepthook = hook

    def _failed_by(self, error: BaseException) -> None:
        """The script's own exception; past what was worth running, what was seen until then holds."""
        if self._finished and threading.get_ident() != self._finisher:
            _wait_for_the_end()  # another thread is writing down what was seen, and nothing has values
        self._failure = f"{own_words(error)}\n{user_line(error)}"
        if not self.steps.counts:
            self._claimed = False  # in its first optimizer step: there is no training to tell of
        if self._claimed and self.steps.fast_forward:
            self._onward_failure, self._failure = self._failure, ""
            self.finish()

    def _in_every_thread(self) -> None:
        """Modes belong to a thread; loaders and prefetchers start their own."""
        tracer = self
        real = threading.Thread.run

        def run(self: threading.Thread) -> None:
            with tracer.world, tracer.recorder:
                return real(self)

        threading.Thread.run = run  # type: ignore[method-assign]

    def _heartbeat(self) -> None:
        """Where the script is, once a second, until training is seen; then how far it is."""
        while not self._finished:
            time.sleep(1.0)
            self.recorder.due = True
            # No look at frames while models are called: they would keep the script's tensors alive.
            if self._claimed:
                self._report.say(cycles=self.recorder.cycles)
                if self.steps.is_late():
                    self.finish()
            elif self.inference.at_work:
                self._report.say(at="", passes=self.skips.completed)
            else:
                self._report.say(at=_line_of_main_thread())


def _wait_for_the_end() -> NoReturn:
    """Who has started the script ends its processes."""
    while True:
        time.sleep(3600)


def _line_of_main_thread() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else from_stack(traceback.extract_stack(frame))
