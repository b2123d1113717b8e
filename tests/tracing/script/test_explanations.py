"""Why a trace gave no answer is explained as it was; WRITE=1 keeps a wanted change."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.tracing.guard.refusals import not_safe, only_refused
from slurm_gpumem.tracing.script.hints import _CAUSES, _OFFLINE, _RANKS, PHASE, TOLD, advice_on
from slurm_gpumem.tracing.script.inference import INFERENCE
from slurm_gpumem.tracing.script.messages import Advice, State, explain, inference_notes, nothing_on_gpu
from tests.support.kept import assert_kept

KEPT = Path(__file__).with_name("explanations.json")
OUTPUTS = (
    "",
    "loading\n  epoch 0  \n\n",
    "python: can't open file 'x.py'\n",
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in <module>\n    main()\n'
    '  File "/home/ada/train.py", line 9, in main\n    model(x)\n'
    '  File "/usr/lib/python3/dist-packages/torch/nn.py", line 7, in call\n    return f(x)\n'
    "torch.cuda.OutOfMemoryError: CUDA out of memory\nwandb: synced\n",
    'Traceback (most recent call last):\n  File "/usr/lib64/python3.9/site.py", line 7\nKeyboardInterrupt\n',
    'Traceback (most recent call last):\n  File "/home/ada/a.py", line 1\n'
    '  File "/home/ada/b.py", line 2, in f\n'
    "KeyError: 'RANK'\n",
    "ValueError: printed by hand\n",
)


def _states() -> Dict[str, State]:
    found: Dict[str, State] = {}

    def add(**facts: Any) -> None:
        found[repr(facts)] = State(**facts)

    for torch_processes, training, passes, at in product(
        (0, 1), (False, True), (0, 1, 2), ("", "a.py, line 3")
    ):
        seen = {"torch_processes": torch_processes, "training": training, "passes": passes, "at": at}
        add(stopped="time", **seen)
        add(stopped="time", kind=PHASE, failed="the call of build", **seen)
        add(failed="ValueError: 3\ntrain.py, line 3", kind="ValueError", **seen)
    for stopped, at in product(("processes", "disk: 3 GiB", "memory: 17 GiB"), ("", "a.py, line 3")):
        add(stopped=stopped, at=at)
    for code, output, torch_processes in product(
        (None, 0, 1, 2, 126, 127, 128, 137, -9, 255), OUTPUTS, (0, 1)
    ):
        add(exit_code=code, output=output, torch_processes=torch_processes)
    for models, inference in product(([], ["A", "B", "A"]), (False, True)):
        inferences = [(1, {"kind": INFERENCE})] if inference else []
        add(torch_processes=1, exit_code=1, models=models, inferences=inferences, notes=["last"])
    add(kind=TOLD, failed="as we said it")
    add(kind=PHASE, failed="the call of build", exit_code=-11, output=OUTPUTS[1])
    words = "Permission denied", "Read-only file system", "Too many levels of symbolic links", "another"
    for files, text in product(("", "overlay", "landlock"), words):
        add(private={"files": files}, failed=f"OSError: {text}: '/tmp/x'", kind="OSError")
    return found


def test_a_trace_without_an_answer_is_explained_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {name: explain("python train.py", state, 119.6, Advice()) for name, state in _states().items()}
    said["long label"] = explain("x" * 61, State(), 1.0, Advice("a", "b")) + explain(
        "x" * 60, State(), 1.0, Advice()
    )
    monkeypatch.setenv("GPUMEM_TRACE_DEBUG", "1")
    said["debug"] = explain("x", State(notes=["a", "b"]), 1.0, Advice())
    said["on the CPU"] = nothing_on_gpu("x")
    said["not safe"] = not_safe({"why": "no user namespaces"}) + not_safe({})
    said["refused"] = only_refused({"files": "landlock"}) + only_refused({"files": "overlay"})
    assert_kept(KEPT, said)


def test_each_cause_has_its_advice() -> None:
    said = {}
    for cause in _CAUSES:
        for kind, words in product((*cause.kinds, "RuntimeError"), ("of its own", *cause.words)):
            said[f"{kind}: {words}"] = advice_on(kind, f"{kind}: {words}\nline 3")
    for words, kind in product((*_OFFLINE, *_RANKS), ("KeyError", "OSError")):
        said[f"{kind}: {words}"] = advice_on(kind, f"{kind}: {words}\nline 3")
        said[f"below, {kind}: {words}"] = advice_on(kind, f"{kind}: x\n{words}")
    assert_kept(KEPT, said)


def test_what_is_said_of_a_trace_without_training() -> None:
    said = {}
    for passes, unused, tokens, cut_off, growing in product(
        (1, 2), ("", "Adam"), (0, 2048), (False, True), (False, True)
    ):
        facts = {
            "kind": INFERENCE, "passes": passes, "unused": unused, "new_tokens": tokens, "cut_off": cut_off,
            "growing": growing,
        }  # fmt: skip
        said[repr(facts)] = "\n".join(inference_notes(facts))
    assert inference_notes({"kind": "training"}) == []
    assert_kept(KEPT, said)
