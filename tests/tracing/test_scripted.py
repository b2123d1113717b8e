"""Functions that torch.jit.script compiled: under autocast they compute sums and products in fp32."""

from __future__ import annotations

from typing import Any, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _gate(a: Any, b: Any) -> Any:
    return a * b


def _types(function: Any, device: str, enabled: bool = True) -> List[str]:
    """Of a product of two tensors in bfloat16, and of one in which a tensor is in single precision."""
    import torch

    half = torch.ones(2, 3, dtype=torch.bfloat16, device=device, requires_grad=True)
    with torch.autocast("cpu" if device == "cpu" else "cuda", dtype=torch.bfloat16, enabled=enabled):
        return [str(function(half, other).dtype) for other in (half, half.float())]


@pytest.mark.parametrize("enabled", [True, False])
def test_compiled_products_have_the_types_that_pytorch_gives_them_on_real_tensors(enabled: bool) -> None:
    import torch

    from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta

    source = torch.jit.CompilationUnit("def gate(a, b):\n    return a * b\n")
    real = _types(source.gate, "cpu", enabled)
    with autocast_on_meta():
        assert _types(source.gate, "meta", enabled) == real
        assert _types(_gate, "meta", enabled) == ["torch.bfloat16", "torch.float32"]
    assert real == (["torch.float32"] * 2 if enabled else ["torch.bfloat16", "torch.float32"])


def test_compiled_code_that_trains_under_autocast_draws_a_warning() -> None:
    import torch
    from torch import nn

    from slurm_gpumem.tracing.model.live import summarize

    source = torch.jit.CompilationUnit("def gate(a, b):\n    return a * b\n")

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.layer(x)
            return source.gate(x, x)

    batch = torch.empty(8, 4, device="meta")
    amp, plain = (summarize(Gated(), batch, precision=p).warnings for p in ("amp-bf16", "fp32"))
    assert [text for text in amp if "torch.jit.script" in text and "gpusbatch without --trace" in text]
    assert not [text for text in plain if "torch.jit.script" in text]


def test_what_pytorch_knows_of_functions_to_compile_is_the_same_after_a_trace() -> None:
    """It knows them by their ids: one that is gone and still known would be taken for another function."""
    import torch
    from torch import nn

    from slurm_gpumem.tracing.engine.values import known_constants
    from slurm_gpumem.tracing.model.live import summarize

    known = torch.jit._builtins._get_builtin_table()
    before = dict(known)
    with known_constants():
        source = "def two(x):\n    return torch.as_tensor(2.0) + torch.tensor(0.0) + x\n"
        compiled = torch.jit.CompilationUnit(source)
        assert torch.jit._builtins._find_builtin(torch.as_tensor) == "aten::as_tensor"
        assert float(compiled.two(torch.zeros(()))) == 2.0
    summarize(nn.Linear(4, 4), torch.empty(8, 4, device="meta"))
    assert known == before
