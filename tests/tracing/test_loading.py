"""What a loader does on the CPU is its own; what it does on the GPU is noted as everywhere."""

from __future__ import annotations

from typing import Any, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


@pytest.fixture
def recorder() -> Any:
    from slurm_gpumem.tracing.autocast import Autocast
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder
    from slurm_gpumem.tracing.values import Guess

    return ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """The operators whose values were followed, which takes most of an operator's time."""
    from slurm_gpumem.tracing import recorder as module

    names: List[str] = []
    real = module.follow
    monkeypatch.setattr(
        module, "follow", lambda func, *rest: names.append(func._schema.name) or real(func, *rest)
    )
    return names


def test_only_the_gpu_counts_while_a_batch_is_loaded(recorder: Any, followed: List[str]) -> None:
    import torch

    image = torch.ones(3, 8, 8)
    with recorder:
        with recorder.loads():
            batch = torch.stack([image / 2, image + 1]).to(torch.float16)
            assert followed == []
            on_gpu = torch.zeros(2, 3, 8, 8, device="meta")
            on_gpu.copy_(batch)
        assert {"aten::zeros", "aten::copy_"} <= set(followed)
        assert recorder.live_bytes == on_gpu.numel() * 4
        assert float(batch[0, 0, 0, 0]) == 0.5
        followed.clear()
        image.exp()
    assert followed == ["aten::exp"]


def test_what_is_known_of_a_value_is_followed_while_loading(recorder: Any, followed: List[str]) -> None:
    import torch

    score = torch.ones(4)
    score.known = True  # as the trace marks values that it made up
    with recorder, recorder.loads():
        score.sum()
    assert followed == ["aten::sum"]
