"""Training steps that nobody had in mind: each is traced, and what data decides is counted plausibly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch
_KEPT: Dict[str, Dict[str, str]] = json.loads((Path(__file__).parent / "fresh" / "expected.json").read_text())


@pytest.fixture(scope="module")
def found() -> Dict[str, Any]:
    """All checks in one process: starting torch is most of their time."""
    return _checked(
        "few_steps",
        "operators",
        "experts",
        "phases",
        "numbers",
        "read_sizes",
        "fourier",
        "sums_at_indices",
        "one_hot",
        "half",
        "cells",
        "losses",
        "saved",
        "graphs",
        "libraries",
        "sparse_states",
        "layers_in_functions",
    )


def _checked(*names: str) -> Dict[str, Any]:
    command = [sys.executable, "-m", "tests.tracing.fresh.checks", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_step_is_traced_and_estimated_as_it_was(found: Dict[str, Any]) -> None:
    assert found["few_steps"] == _KEPT["few_steps"]


def test_an_operator_takes_the_blocks_that_it_took(found: Dict[str, Any]) -> None:
    assert found["operators"] == _KEPT["operators"]


def test_other_steps_are_traced_and_estimated_as_they_were() -> None:
    assert _checked("other_steps")["other_steps"] == _KEPT["other_steps"]


def test_a_sparse_graph_takes_what_its_entries_take(found: Dict[str, Any]) -> None:
    assert found["graphs"]["buffers"] == 20 * (2 * 8 + 4)
    assert found["graphs"]["product"] == 600 * 8 * 4
    assert not found["graphs"]["scalable"], "another number of rows does not fit the graph"


@pytest.mark.parametrize("router", ["moe_where", "moe_mask", "moe_unique", "moe_sort"])
def test_experts_together_get_each_token_as_often_as_it_is_routed(found: Dict[str, Any], router: str) -> None:
    steps, layers, tokens, each = 3, 2, 32, 2
    assert found["experts"][router]["rows"] == steps * layers * tokens * each
    assert "out of balance" in found["experts"][router]["warnings"][0]


def test_what_follows_the_optimizers_step_is_not_the_optimizers(found: Dict[str, Any]) -> None:
    assert found["phases"] == {"after": ["evaluate"], "categories": ["activations"], "scalable": True}


def test_fourier_transforms_take_the_blocks_that_were_measured(found: Dict[str, Any]) -> None:
    """As an H200 took them: results, copies of inputs that lie apart, plans of odd and of long lengths."""
    real, half = 4 * 96 * 4, 4 * 49 * 8
    assert found["fourier"]["(4, 96)"] == [half, real, half]
    assert found["fourier"]["(4, 96, 8)"] == [8 * half, 8 * real, 8 * real, 8 * half, 8 * half]
    real, half, whole = 4 * 509 * 4, 4 * 255 * 8, 4 * 509 * 8
    assert found["fourier"]["(4, 509)"] == [half, whole, real, half, whole]
    real, half = 4 * (1 << 20) * 4, 4 * ((1 << 19) + 1) * 8
    assert found["fourier"]["(4, 1048576)"] == [half, half, real, half, half]


def test_a_gradient_at_indices_is_sorted_and_in_one_piece(found: Dict[str, Any]) -> None:
    assert found["sums_at_indices"] == {"straight": [3200] * 3, "turned": [400 * 16 * 4, *[3200] * 3]}


def test_one_hot_rows_have_one_place_each_whatever_their_index_is(found: Dict[str, Any]) -> None:
    assert found["one_hot"]
    assert all(80 <= rows <= 120 for rows in found["one_hot"]), found["one_hot"]


def test_whole_numbers_that_a_model_reads_from_the_gpu_draw_a_warning(found: Dict[str, Any]) -> None:
    (said,) = found["read_sizes"]["periods"]
    assert said.startswith("the model reads whole numbers that it computed on the GPU")
    assert found["read_sizes"]["counting"] == []


def test_numbers_of_the_cpu_names_from_tensors_and_numbers_in_buffers_are_read(found: Dict[str, Any]) -> None:
    assert found["numbers"]["way"] == "meta"
    assert found["numbers"]["fills"] == 3 * 3, "three steps of a depth that is a buffer"


def test_a_pure_bf16_model_is_fed_bf16(found: Dict[str, Any]) -> None:
    assert found["half"] == {"loop": 16 * 64 * 2, "step": 16 * 64 * 2}


def test_recurrent_cells_are_fused_as_on_cuda(found: Dict[str, Any]) -> None:
    rows, hidden = 16, 32
    assert 4 * rows * 4 * hidden in found["cells"]["LSTMCell"], "both products and a workspace of four gates"
    assert 4 * rows * 5 * hidden in found["cells"]["GRUCell"], "a workspace of five numbers a hidden one"


def test_the_loss_is_the_models_own_or_said(found: Dict[str, Any]) -> None:
    losses = found["losses"]
    own = "the single number in the model's output"
    assert losses["unfilled"] == [
        own,
        "forward's targets was not given: one label per token, for the model's own loss",
    ]
    assert losses["filled"] == [own]
    assert losses["pair"] == ["cross-entropy over [4, 3]"]
    assert losses["regression"] == ["mse over [4, 3]"]
    assert "forward takes labels, which was not given" in losses["unused"][1]


def test_a_summary_is_saved_and_estimated(found: Dict[str, Any]) -> None:
    assert found["saved"]["live"] == found["saved"]["saved"] > 0


def test_first_uses_of_cublas_and_cusolver_leave_what_they_leave_on_a_gpu(found: Dict[str, Any]) -> None:
    assert found["libraries"] == {
        "mv": ["cublas"],
        "dot": ["cublas"],
        "triangular": ["cublas"],
        "cholesky": ["cusolver"],
        "solve": ["cublas", "cusolver"],
        "solves": ["cublas"],
        "product": [],
    }


def test_sparse_gradients_keep_their_entries_through_the_optimizer(found: Dict[str, Any]) -> None:
    tokens, width = 30, 4
    assert found["sparse_states"] == {"way": "meta", "masked": [8 * tokens, 4 * tokens * width]}


def test_functions_that_hold_layers_use_those_of_the_copy(found: Dict[str, Any]) -> None:
    assert found["layers_in_functions"]["way"] == "meta"
    assert found["layers_in_functions"]["kept"], "the user's own model was changed"
