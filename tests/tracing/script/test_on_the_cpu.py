"""What a script does with tensors of the CPU: real numbers, quickly, and nothing of it is on the GPU."""

from __future__ import annotations

from typing import Any, Tuple

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _world() -> Tuple[Any, Any]:
    from slurm_gpumem.tracing.autocast import Autocast
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
    from slurm_gpumem.tracing.script.world import CudaWorld
    from slurm_gpumem.tracing.values import Guess

    recorder = ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))
    return CudaWorld(), recorder


def test_numbers_written_and_read_one_by_one_do_not_pass_by_the_recorder() -> None:
    import torch

    world, recorder = _world()
    batch = torch.zeros(4, 3)
    with world, recorder:
        batch[2] = 7
        batch[1, 2] = 5.0
        batch[0:2][1][0] = True
        last = batch[-1]
    assert batch.tolist() == [[0, 0, 0], [1, 0, 5], [7, 7, 7], [0, 0, 0]]
    assert last.tolist() == [0, 0, 0]
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
