"""One architecture, one fingerprint."""

from __future__ import annotations

import pytest

from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import one, select


def fingerprint(stem: str) -> str:
    return parse(one(stem), origin=stem).fingerprint


@pytest.mark.parametrize("model", ["resnet18", "bert", "swin", "lstm", "lstm-time-first"])
def test_the_batch_does_not_change_it(model: str) -> None:
    assert fingerprint(f"torchinfo-1.8.0-depth20-{model}") == fingerprint(f"torchinfo-1.8.0-batch9-{model}")


@pytest.mark.parametrize("label", ["full", "percent", "ascii", "bare", "verbose"])
def test_columns_and_drawing_do_not_change_it(label: str) -> None:
    assert fingerprint(f"torchinfo-1.8.0-{label}-resnet18") == fingerprint("torchinfo-1.8.0-depth20-resnet18")


@pytest.mark.parametrize("model", ["resnet18", "resnet50", "unet", "audio", "vgg", "regnet", "generator"])
def test_torchsummary_and_torchinfo_agree_on_it(model: str) -> None:
    assert fingerprint(f"torchsummary-1.5.1-open-{model}") == fingerprint(f"torchinfo-1.8.0-depth20-{model}")


def test_every_model_has_its_own() -> None:
    stems = [saved.stem for saved in select(tool="torchinfo", version="1.8.0", label="depth20")]
    by_fingerprint = {fingerprint(stem) for stem in stems}
    # Apart from the two LSTMs, which differ only in the order of their input's sizes.
    assert len(by_fingerprint) == len(stems) - 1


def test_a_summary_is_the_same_whatever_text_it_was_read_from() -> None:
    summary = parse(one("torchinfo-1.8.0-depth20-resnet18"), origin="test")
    other = summary._replace(digest="of another text")
    assert summary == other
    assert not summary != other  # noqa: SIM202  a tuple has its own answer
    assert hash(summary) == hash(other)
    assert summary != summary._replace(batch=1)
    assert summary.fingerprint == other.fingerprint
