"""What a checkpoint computes again has the sizes that were guessed the first time."""

from __future__ import annotations

from typing import Any, List

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch here")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from slurm_gpumem.tracing.live_model.trace_model import summarize  # noqa: E402

ROWS: List[List[int]] = []
"""Rows of each expert, for each time that a block ran."""


class Experts(nn.Module):
    """Rows go to experts; some are chosen by a mask from outside, which is first asked for in a block."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(32, 32), nn.Linear(32, 4)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.reentrant = reentrant

    def forward(self, batch: Any) -> Any:
        batch = self.first(batch)
        outer = batch[:, :5].argmax(-1) == 0
        for _ in range(3):
            batch = checkpoint(self.block, batch, outer, use_reentrant=self.reentrant)
        return batch

    def block(self, batch: Any, outer: Any) -> Any:
        ROWS.append([])
        chosen, out = self.gate(batch).topk(2, -1)[1], batch
        for number, layer in enumerate(self.layers):
            for mask in (outer, (chosen == number).any(-1)):
                rows = mask.nonzero()[:, 0]
                ROWS[-1].append(len(rows))
                out = out.index_add(0, rows, layer(batch[rows]).relu() ** 2)
        return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_block_that_is_computed_again_has_as_many_rows_as_before(reentrant: bool) -> None:
    ROWS.clear()
    summarize(Experts(reentrant), torch.zeros(1000, 32))
    first, second, third, *again = ROWS[:6]
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    assert again == [third, second, first]
