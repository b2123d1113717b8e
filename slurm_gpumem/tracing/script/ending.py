"""How the traced process ends: with one answer, however its script leaves.

It ends by itself where enough was seen; before that by its script's end, `sys.exit`, `os._exit` or an error.
What was seen until then holds in all of them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple, Type

import torch

from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.follow.enough_steps import Steps
from slurm_gpumem.tracing.follow.fast_forward import FastForward
from slurm_gpumem.tracing.script.hints import TOLD
from slurm_gpumem.tracing.script.inference import Inference
from slurm_gpumem.tracing.script.report_folder import LAUNCHED, Report, wait_for_the_end
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
from slurm_gpumem.tracing.user_line import from_stack, own_words, user_line

Summed = Tuple[ModelSummary, Dict[str, Any]]
"""What was seen, and facts about how it came to be."""


class Ending:
    """Whether this is the traced process, and how it comes to its end."""

    def __init__(
        self,
        report: Report,
        recorder: ScriptRecorder,
        steps: Steps,
        skips: FastForward,
        inference: Inference,
        summary: Callable[[], Summed],
    ) -> None:
        self._report = report
        self._recorder = recorder
        self._steps = steps
        self._skips = skips
        self._inference = inference
        self.summary = summary
        self._owner = os.getpid()
        self._finished = False
        self._finisher = 0
        """The thread that writes down what was seen."""
        self.came_to_its_end = False
        """The script has ended by itself."""
        self._claimed = False
        self._failure = self._onward_failure = ""
        self._exit_code: object = None

    def install(self) -> None:
        """Wait for whatever ends the process."""
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._at_exit)
        self._hook_exits()
        self._hook_exceptions()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    @property
    def failure(self) -> str:
        """The script's own error, and its line, if one has ended it."""
        return self._failure or self._onward_failure

    def claim(self) -> bool:
        """Be the traced process, at its first optimizer step; False where another one is."""
        self._claimed = self._report.claim()
        if self._claimed:
            launched = os.environ.get(LAUNCHED, "")
            ranks = {"ranks": int(launched)} if launched.isdigit() else {}
            self._report.say(training=True, **ranks)
        else:
            self._recorder.off = True
        return self._claimed

    def finish(self) -> None:
        """Enough was seen: write the summary and wait for the end, so that nothing after it runs."""
        if self._finished or os.getpid() != self._owner:
            return
        self._finished, self._finisher = True, threading.get_ident()
        self._report.say(finishing=True)
        summary, facts = self._summed()
        self._report.put_summary(to_json(summary))
        for name, text in (("failure", self._failure), ("onward_failure", self._onward_failure)):
            if text:
                facts[name] = text
        sys.gpumem_files_read.write()  # type: ignore[attr-defined]
        self._report.say(done=facts)
        wait_for_the_end()

    def finish_as_told(self) -> None:
        """A script of ours says that all was seen."""
        if not self._claimed:
            self._report.claim()
        self.finish()

    def fail(self, message: str, *, may_guess_again: bool) -> NoReturn:
        """It cannot be traced; the message says all that there is to say."""
        self._finished, self._finisher = True, threading.get_ident()
        guessed = may_guess_again and self._recorder.guess.used
        self._report.say(failed=message, kind=TOLD, guessed=guessed)
        os._exit(1)

    def _summed(self) -> Summed:
        self._recorder.off = True
        with torch._C.DisableTorchFunction():
            return self.summary()

    def _forked(self) -> None:
        self._recorder.off = True

    def _at_exit(self) -> None:
        if os.getpid() != self._owner:
            return
        guessed = self._recorder.guess.used
        if self._finished:
            if threading.get_ident() != self._finisher:
                wait_for_the_end()  # another thread is writing down what was seen
        elif self._claimed:
            self.came_to_its_end = not self._failure
            self.finish()
        elif self._inference.was_all() and self._exit_code:
            caught = f" after {self._failure}" if self._failure else ""
            self._report.say(
                failed=f"it ended by sys.exit({self._exit_code!r}){caught}",
                guessed=guessed,
                passes=self._skips.completed,
            )
        elif self._inference.was_all() and not self._failure:
            # Another process may train later, or need more: the command goes on, and the largest counts.
            summary, facts = self._summed()
            self._report.put_inference(to_json(summary))
            self._report.say(inference=facts)
        else:
            models = [root.kind for root in self._recorder.places.all_roots()]
            self._report.say(ended=True, models=models, guessed=guessed)

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
                self.failed_by(caught)
            leave(code)

        sys.exit = noting_exit

    def _hook_exceptions(self) -> None:
        real = sys.excepthook

        def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
            self.failed_by(error)
            if os.getpid() == self._owner:
                self._report.say(
                    failed=self._failure,
                    guessed=self._recorder.guess.used,
                    kind=kind.__name__,
                    passes=self._skips.completed,
                )
            if os.environ.get("GPUMEM_TRACE_DEBUG"):
                self._report.note("".join(traceback.format_exception(kind, error, trace)[-8:]))
            real(kind, error, trace)

        sys.excepthook = hook

    def failed_by(self, error: BaseException) -> None:
        """The script's own exception; past what was worth running, what was seen until then holds."""
        if self._finished and threading.get_ident() != self._finisher:
            wait_for_the_end()  # another thread is writing down what was seen, and nothing has values
        self._failure = f"{own_words(error)}\n{user_line(error)}"
        if not self._steps.counts:
            self._claimed = False  # in its first optimizer step: there is no training to tell of
        if self._claimed and self._steps.fast_forward:
            self._onward_failure, self._failure = self._failure, ""
            self.finish()

    def _heartbeat(self) -> None:
        """Where the script is, once a second, until training is seen; then how far it is."""
        while not self._finished:
            time.sleep(1.0)
            self._recorder.due = True
            # No look at frames while models are called: they would keep the script's tensors alive.
            if self._claimed:
                self._report.say(cycles=self._recorder.cycles)
                if self._steps.is_late():
                    self.finish()
            elif self._inference.at_work:
                self._report.say(at="", passes=self._skips.completed)
            else:
                self._report.say(at=_line_of_main_thread())


def _line_of_main_thread() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "" if frame is None else from_stack(traceback.extract_stack(frame))
