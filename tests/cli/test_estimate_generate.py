"""`gpumem estimate hf:... --generate N`, with a stand-in for transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_gpumem.cli.commands import estimate
from slurm_gpumem.errors import GpumemError
from tests.support.generating_library import LIBRARY
from tests.support.needs import needs_torch


@needs_torch
def test_weights_and_cache_of_a_generating_model_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, code in LIBRARY.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = ["hf:Tiny", "--set", "width=1024", "--generate", "2000", "--input", "100", "--batch-size", "64"]
    assert estimate.main([*asked, "--gpu", "h200", "--json"]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    # The cache in bf16, once more while it grows, beside the context.
    cache_mib = 64 * 2100 * 1024 * 2 / 2**20
    assert answer["peak_mib"] > 742 + 2 * cache_mib


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["docs/examples/resnet50.txt", "--generate", "8"], "needs a Hugging Face model"),
        (["hf:llama", "--generate", "8"], "how long are the prompts"),
        (["hf:llama", "--generate", "0", "--input", "8"], "at least 1"),
        (["hf:llama", "--generate", "8", "--input", "8", "--optimizer", "adam"], "--optimizer: of training"),
        (["hf:llama", "--generate", "8", "--input", "8", "--precision", "amp-bf16"], "precision"),
    ],
)
def test_what_does_not_go_with_generate_is_refused(asked: list[str], words: str) -> None:
    with pytest.raises(GpumemError) as caught:
        estimate.main([*asked, "--gpu", "h200"])
    assert words in str(caught.value)
