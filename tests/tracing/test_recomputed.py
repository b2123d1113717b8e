"""What a checkpoint computes again has the sizes that were guessed the first time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch here")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from slurm_gpumem.tracing.model.live import summarize  # noqa: E402


class Experts(nn.Module):
    """Rows go to experts; some are chosen by a mask from outside, which is first asked for in a block."""

    def __init__(self, reentrant: bool, told: Path) -> None:
        super().__init__()
        self.told = told
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
        self.tell("\n")
        chosen, out = self.gate(batch).topk(2, -1)[1], batch
        for number, layer in enumerate(self.layers):
            for mask in (outer, (chosen == number).any(-1)):
                rows = mask.nonzero()[:, 0]
                self.tell(f"{len(rows)} ")
                out = out.index_add(0, rows, layer(batch[rows]).relu() ** 2)
        return out

    def tell(self, text: str) -> None:
        with self.told.open("a") as file:  # of a fork
            file.write(text)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_block_that_is_computed_again_has_as_many_rows_as_before(reentrant: bool, tmp_path: Path) -> None:
    """Rows of each expert, for each time that a block ran."""
    told = tmp_path / "rows"
    summarize(Experts(reentrant, told), torch.zeros(1000, 32))
    first, second, third, *again = told.read_text().splitlines()[1:7]
    assert len({first, second, third}) == 3
    assert again == [third, second, first]
