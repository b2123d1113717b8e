"""Messages that ask for an input show how one is written."""

from __future__ import annotations

import pytest

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.stated_input import with_input
from slurm_gpumem.summaries.reader import read_summary

NET = """Net(
  (first): {first}
  (head): Linear(in_features=12, out_features=4, bias=True)
)
"""


@pytest.mark.parametrize(
    ("first", "stated", "call"),
    [
        ("Embedding(8000, 512)", "512,", "input_data=torch.zeros(1, 512, dtype=torch.long)"),
        ("Linear(in_features=784, out_features=12, bias=True)", "3x224x224,", "input_size=(1, 3, 224, 224)"),
        ("LayerNorm((12,), eps=1e-05)", "3x224x224,", "input_size=(1, 3, 224, 224)"),
    ],
)
def test_the_example_is_tokens_for_an_embedding_else_an_image(first: str, stated: str, call: str) -> None:
    with pytest.raises(SummaryError) as raised:
        registry.refuse_guess(read_summary(NET.format(first=first)), "auto")
    assert f"--input {stated}" in str(raised.value)
    assert f"torchinfo.summary(model, {call}, depth=20)" in str(raised.value)


def test_an_input_that_does_not_fit_comes_back_in_the_call_that_prints_shapes() -> None:
    summary = read_summary(NET.format(first="Conv1d(2, 32, kernel_size=(3,), stride=(1,))"))
    with pytest.raises(SummaryError, match=r"input_size=\(1, 2, 77\)"):
        with_input(summary, "2x77")
