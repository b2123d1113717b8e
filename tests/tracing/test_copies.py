"""Copies of models that keep what Python cannot copy."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _model(**kept: Any) -> Any:
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    for name, value in kept.items():
        setattr(model[1], name, value)
    return model


def _traced(model: Any) -> Any:
    import torch

    from slurm_gpumem.tracing.live_model.trace_model import summarize

    return summarize(model, torch.empty(8, 4, device="meta"), loss=lambda out, _: out.sum())


def test_a_model_that_keeps_a_module_and_locks_is_traced_as_without_them() -> None:
    plain = _traced(_model())
    kept = _traced(_model(config=math, locks=[threading.Lock(), {"inner": threading.RLock()}]))
    assert kept.trace is not None
    assert kept.trace.events == plain.trace.events
    assert kept.total_params == 23


def test_the_copy_shares_what_cannot_be_copied_and_nothing_else() -> None:
    from slurm_gpumem.tracing.live_model.meta_model import meta_twin

    lock, names = threading.Lock(), ["a"]
    model = _model(config=math, lock=lock, names=names)
    twin: Any = meta_twin(model)
    assert twin[1].config is math
    assert twin[1].lock is lock
    assert twin[1].names == names
    assert twin[1].names is not names
    assert {p.device.type for p in twin.parameters()} == {"meta"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_results_of_computations_in_lists_have_no_values_in_the_copy() -> None:
    from slurm_gpumem.tracing.live_model.meta_model import meta_twin

    model = _model()
    model[1].seen = [model[0].weight * 2]
    twin: Any = meta_twin(model)
    assert twin[1].seen[0].device.type == "meta"
    assert twin[1].seen[0].shape == (3, 4)


def test_a_layer_that_refuses_to_be_copied_is_not_shared() -> None:
    from torch import nn

    from slurm_gpumem.tracing.live_model.meta_model import meta_twin

    class Single(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one of me")

    with pytest.raises(TypeError, match="one of me"):
        meta_twin(nn.Sequential(Single(2, 2)))
