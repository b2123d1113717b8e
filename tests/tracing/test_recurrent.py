"""What cuDNN's recurrent layers keep and need: the rules for every kind, as measured on the H200."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.kept import assert_kept
from tests.support.needs import needs_torch

pytestmark = needs_torch


@pytest.mark.parametrize("mode", ["gru", "lstm", "rnn_relu", "rnn_tanh"])
def test_every_kind_of_layer_takes_what_it_did(mode: str) -> None:
    from slurm_gpumem.tracing.cuda.recurrent import Network

    shown = []
    kinds = itertools.product((1, 3), (1, 2), (48, 96, 640, 1536), (0.0, 0.3), (24, 700), (False, True))
    for layers, directions, hidden, dropout, features, odd in kinds:
        layer = Network(mode, layers, directions, hidden, dropout, not odd, 7, 91, features, 4)
        for one in (layer, replace(layer, train=True, packed=odd, itemsize=2), replace(layer, flat=False)):
            sizes = [one.workspace_bytes(backward=backward) for backward in (False, True)]
            shown.append((one.reserve_bytes(), *sizes))
    assert_kept(Path(__file__).with_name("recurrent.json"), {mode: repr(shown)})
