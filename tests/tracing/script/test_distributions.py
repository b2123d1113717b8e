"""Distributions of a rollout check their parameters while that shows something new."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def test_without_gradients_a_few_of_one_shape_are_checked_and_again_beside_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from slurm_gpumem.tracing.cuda.autocast import Autocast
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.fake_cuda.device import FakeCuda
    from slurm_gpumem.tracing.fake_cuda.torch_patches import _few_checks
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    kind: Any = torch.distributions.Distribution
    monkeypatch.setattr(kind, "__init__", kind.__init__)
    monkeypatch.setattr(kind, "_validate_args", True)  # PyTorch's compiler, once loaded, has it off
    recorder = ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))
    _few_checks(recorder)
    with torch.enable_grad(), FakeCuda(), recorder:
        mean, spread = torch.zeros(64, 8, device="cuda"), torch.ones(64, 8, device="cuda")

        def checks(rows: int = 64) -> bool:
            before = recorder.calls
            made = torch.distributions.Normal(mean[:rows], spread[:rows])
            return recorder.calls - before > 4 and made._validate_args

        assert all(checks() for _ in range(8)), "with gradients: training does the same in each step"
        with torch.no_grad():
            assert [checks() for _ in range(8)] == [True] * 4 + [False] * 4
            assert checks(32), "another shape"
            kept = torch.zeros(1 << 20, device="cuda")
            assert [checks() for _ in range(3)] == [True, False, False], "beside much more"
            del kept
    with torch.no_grad():
        for _ in range(9):
            torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        with pytest.raises(ValueError, match="scale"):
            torch.distributions.Normal(torch.zeros(3), -torch.ones(3))


def test_matrices_that_nobody_knows_may_be_symmetric() -> None:
    """`isclose` begins with what is equal: of that hardly a whole row is, and a distribution would raise."""
    import torch

    from slurm_gpumem.tracing.cuda.autocast import Autocast
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.fake_cuda.device import FakeCuda
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    recorder = ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))
    with FakeCuda(), recorder:
        matrices = torch.randn(5000, 4, 4, device="cuda")
        made = torch.distributions.MultivariateNormal(torch.zeros(5000, 4, device="cuda"), matrices)
        assert made.rsample().shape == (5000, 4)
        right = torch.randint(9, (50, 4), device="cuda") == torch.randn(50, 9, 4, device="cuda").argmax(1)
        assert not right.all(1).any(), "a model is not right in all of a row"
