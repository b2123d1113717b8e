"""A model in memory is traced in a fork: whatever it keeps, and nothing of it is changed."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from slurm_gpumem.errors import TargetError, UsageError
from tests.support.needs import needs_torch

pytestmark = needs_torch


def _model(**kept: Any) -> Any:
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for name, value in kept.items():
        setattr(model[1], name, value)
    return model


def _traced(model: Any, **how: Any) -> Any:
    import torch

    from slurm_gpumem.tracing.model.live import summarize

    return summarize(model, torch.empty(8, 4, device="meta"), **{"loss": lambda out, _: out.sum(), **how})


def test_a_model_that_keeps_what_cannot_be_copied_is_traced_as_without_it() -> None:
    plain = _traced(_model())
    kept = _traced(_model(config=math, locks=[threading.Lock(), {"inner": threading.RLock()}]))
    assert kept.trace is not None
    assert kept.trace.events == plain.trace.events
    assert kept.total_params == 23


def test_closures_over_layers_and_the_optimizer_train_the_traced_ones() -> None:
    import torch

    model = _model()
    optimizer = torch.optim.Adam(model.parameters())

    def step(_: Any, batch: Any, __: Any) -> None:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert _traced(model, loss=None, step=step, optimizer=optimizer).trace.events
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())


def test_an_optimizer_with_states_and_gradients_of_before_is_traced_as_a_new_one() -> None:
    import torch

    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    new = _traced(model, optimizer=optimizer)
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    assert _traced(model, optimizer=optimizer).trace.events == new.trace.events
    assert len(optimizer.state) == len(list(model.parameters()))


def test_an_optimizer_of_another_model_is_refused() -> None:
    import torch

    with pytest.raises(UsageError, match="not the model's"):
        _traced(_model(), optimizer=torch.optim.Adam(_model().parameters()))


def test_an_error_of_the_model_is_told_with_its_line() -> None:
    def step(*_: Any) -> None:
        raise KeyError("no such batch")

    with pytest.raises(TargetError, match=r"KeyError: 'no such batch'") as caught:
        _traced(_model(), step=step)
    assert "test_copies.py, line" in str(caught.value)


def test_a_process_that_ends_in_the_step_is_told_with_what_to_do() -> None:
    import os
    import signal

    with pytest.raises(TargetError, match=r"ended while tracing the model.* gpumem summarize FILE:NAME"):
        _traced(_model(), step=lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def test_so_it_is_where_nobody_waits_for_children() -> None:
    import os
    import signal

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(TargetError, match="ended while tracing the model"):
            _traced(_model(), step=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("off", ["no_grad", "inference_mode"])
def test_where_gradients_are_off_training_is_refused_with_the_reason(off: str) -> None:
    import torch

    with getattr(torch, off)():
        with pytest.raises(TargetError, match="gradients are off where summarize is called"):
            _traced(_model())
        assert _traced(_model(), optimizer=None).trace.events


def test_a_fork_does_not_wait_for_threads_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP's pool, which large tensors were computed by, is not in the fork."""
    import torch
    from torch import nn

    from slurm_gpumem.tracing.model import live

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(live, "_LONGEST_S", 60.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(4_000_000).mul_(2).sum()
        batch = torch.randn(16, 3, 128, 128)
        assert live.summarize(nn.Conv2d(3, 4, 3), batch, loss=lambda out, _: out.sum()).trace
    finally:
        torch.set_num_threads(threads)


def test_a_recurrent_model_leaves_its_gpu_as_the_same_parameters() -> None:
    """Its layers hold weak references to them, which torch does not swap."""
    import torch
    from torch import nn

    from slurm_gpumem.tracing.engine.values import value_of
    from slurm_gpumem.tracing.model import live

    model = nn.Sequential(nn.LSTM(4, 3), nn.BatchNorm1d(3))
    parameters = list(model.parameters())
    kept = live._Live(model, None, 1, None, None, None, True)
    kept._on_gpu = {id(t): (t, t.detach().clone()) for t in (*parameters, *model.buffers())}
    kept.leave_gpu()
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert torch.equal(value_of(model[1].weight), torch.ones(3))
    assert torch.equal(value_of(model[1].running_var), torch.ones(3))
