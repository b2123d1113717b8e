"""What a script does with tensors of the CPU: real numbers, quickly, and nothing of it is on the GPU."""

from __future__ import annotations

import math
from typing import Any, Tuple

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _world() -> Tuple[Any, Any]:
    from slurm_gpumem.tracing.cuda.autocast import Autocast
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.fake_cuda.device import FakeCuda
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    recorder = ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))
    return FakeCuda(), recorder


def test_numbers_written_and_read_one_by_one_do_not_pass_by_the_recorder() -> None:
    import torch

    world, recorder = _world()
    batch, words = torch.zeros(4, 3), torch.tensor([1, 2])
    with world, recorder:
        batch[2] = 7
        batch[3, words[1]] = words[0]
        batch[[0, 0], words] = batch[2, words]
        batch[0] = 0 if words[0].item() == int(words[0]) == 1 and words[1] else 1
        batch[1, 2] = 5.0
        batch[0:2][1][0] = True
        last = batch[-1]
    assert batch.tolist() == [[0, 0, 0], [1, 0, 5], [7, 7, 7], [0, 0, 1]]
    assert last.tolist() == [0, 0, 1]
    assert recorder.calls == 0


def test_operators_on_the_cpu_need_nothing_on_the_gpu() -> None:
    import torch

    world, recorder = _world()
    with world, recorder:
        square = torch.eye(3)
        both = torch.stack([square @ square, square + 1])
        taken = both.index_select(0, torch.tensor([1]))
    assert taken.sum().item() == 12
    assert not recorder.uses_matmul
    assert not recorder.blocks


def test_what_goes_to_the_gpu_is_noted() -> None:
    import torch

    world, recorder = _world()
    numbers = torch.arange(256.0)
    with world, recorder:
        there = numbers.to("cuda")
        first = torch.arange(3, device="cuda")[1]
        assert numbers[first : first + 2].tolist() == [1, 2]
        there[3] = numbers[4]
        summed = there + numbers[5]
        made = torch.zeros(64, device="cuda")
    assert [block.nbytes for block in recorder.blocks] == [1024, 24, 8, 1024, 256]
    assert summed.shape == there.shape
    assert made.device.type == "meta"


def test_what_is_known_of_a_value_of_the_gpu_is_followed_on_the_cpu() -> None:
    import torch

    from slurm_gpumem.tracing.engine.unknown_values import mark_index, share_of

    world, recorder = _world()
    labels = torch.zeros(8, dtype=torch.int64)
    mark_index(labels, 4)
    with world, recorder:
        mask = labels[2:] == 1
    assert share_of(mask) == 0.25


def test_a_transform_that_a_loader_calls_is_no_model() -> None:
    import torch

    from slurm_gpumem.tracing.follow.enough_steps import Steps
    from slurm_gpumem.tracing.follow.fast_forward import FastForward
    from slurm_gpumem.tracing.script.inference import Inference

    class Halved(torch.nn.Module):
        def forward(self, image: Any) -> Any:
            return image / 2

    world, recorder = _world()
    called = torch.nn.Module.__call__
    places = recorder.places
    steps = Steps(recorder, math.inf, 8.0)
    try:
        FastForward(recorder, steps, Inference(recorder, steps, math.inf, 6.0)).install()
        with world, recorder, places, recorder.loads():
            assert float(Halved()(torch.ones(3)).sum()) == 1.5
            torch.nn.Linear(3, 3)(torch.ones(3))
    finally:
        torch.nn.Module.__call__ = called
    assert [root.kind for root in places.all_roots()] == ["Linear"]


def test_made_up_numbers_differ_from_place_to_place_but_not_those_that_may_be_whole() -> None:
    import torch

    world, recorder = _world()
    with world, recorder:
        scores = torch.randn(5, 64, 64, device="cuda").sigmoid()
        found = scores.cpu()
        lines = scores.half().flatten(1).float().cpu()
        truths = (scores > 0.5).float()
        marks = [truths, 1 - truths, scores.round().view(-1), torch.cat([truths, truths]), truths * truths,
                 truths.clamp(0, 1).sum(0), torch.zeros_like(scores)]  # fmt: skip
        whole = [mark.cpu() for mark in marks]
        again = torch.randn(5, 64, 64, device="cuda").sigmoid().cpu()
    for made in (found, lines):
        assert made.max() == made.flatten()[0] == 1
        assert 0.5 <= made.min() < made.median() < 0.9
        assert not torch.equal(made[0], made[1])
    assert torch.equal(found, again)
    assert [bool((one == one.round()).all()) for one in whole] == [True] * len(whole)


def test_a_module_goes_to_a_gpu_by_its_number_and_keeps_every_other_word() -> None:
    import torch

    from slurm_gpumem.tracing.fake_cuda.cuda_answers import _module_to

    def seen(*words: Any, **named: Any) -> Any:
        return words, named

    to, gpu = _module_to(lambda module, *args, **kwargs: (args, kwargs)), torch.device("cuda", 0)
    assert [to(None, *args, **kwargs) for args, kwargs in (
        seen(0), seen(1, torch.half), seen(torch.half), seen("cpu"), seen(True), seen(device=0),
        seen(device="cpu", dtype=torch.half), seen(dtype=torch.half), seen(),
    )] == [
        seen(gpu), seen(gpu, torch.half), seen(torch.half), seen("cpu"), seen(True), seen(device=gpu),
        seen(device="cpu", dtype=torch.half), seen(dtype=torch.half), seen(),
    ]  # fmt: skip
