"""What networks are fed: tensors described by texts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="batches are tensors")

import torch

from lab.networks.tasks import Feed, task_named


def _feed(inputs: object) -> Feed:
    return Feed(4, 32, torch.device("cpu"), torch.float32, {"inputs": inputs})


def test_kinds_of_numbers_stay_in_their_ranges() -> None:
    make, _ = task_named("squares")
    unit, true, whole = make(_feed(["unit 3 S", "bool S", "int:8..S/2 50"])).args
    assert (unit.shape, float(unit.min()) >= 0, float(unit.max()) <= 1) == ((4, 3, 32), True, True)
    assert (true.shape, true.dtype) == ((4, 32), torch.bool)
    assert (whole.shape, int(whole.min()) >= 8, int(whole.max()) < 16) == ((4, 50), True, True)


def test_packed_inputs_are_one_list() -> None:
    make, _ = task_named("packed")
    (packed,) = make(_feed(["float 3", "int:5"])).args
    assert [tuple(part.shape) for part in packed] == [(4, 3), (4,)]


def test_a_loss_for_each_sample_is_averaged() -> None:
    _, loss = task_named("second-loss")
    assert float(loss((torch.zeros(2, 3), torch.tensor([1.0, 3.0])), None)) == 2.0
