"""Which calls of a model are run when training repeats itself."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, List

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch here")

from slurm_gpumem.tracing.follow.fast_forward import FastForward  # noqa: E402


def test_two_cycles_after_one_that_did_more_are_run_whole_as_the_second_may_reserve_more() -> None:
    recorder = SimpleNamespace(
        cycles=0, live_bytes=0, peak_bytes=0, blocks=[], phases=[], unnoted=nullcontext,
        kernels=SimpleNamespace(stop=lambda cycle: None), places=SimpleNamespace(),
    )  # fmt: skip
    steps = SimpleNamespace(fast_forward=True, counts={0: 3}, optimizers=[])
    left_out: List[Any] = []
    inference = SimpleNamespace(skipped=lambda module, given: left_out.append(module))
    skips = FastForward(recorder, steps, inference)  # type: ignore[arg-type]
    model, ran = torch.nn.Linear(4, 4), [0] * 7

    def real(module: Any, *args: Any) -> Any:
        ran[recorder.cycles] += 1
        return module.forward(*args)

    calls: List[int] = [1, 1, 2, 1, 1, 1, 1]
    for cycle, count in enumerate(calls):
        recorder.cycles = cycle
        skips.cycle_over()
        for _ in range(count):
            skips._root(real, model, (torch.zeros(2, 4),), {})
    assert ran == [1, 0, 1, 1, 1, 0, 0]
    assert len(left_out) == sum(calls) - sum(ran)
