"""The tracer on small real models: what CUDA would allocate is what the trace says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


@pytest.fixture(scope="module")
def found() -> Dict[str, Any]:
    """All checks in one process: starting torch is most of their time."""
    names = (
        "small_cnn",
        "attention",
        "autocast",
        "scaling",
        "reader",
        "guarded",
        "recurrent",
        "frozen",
        "kernels",
        "constants",
        "ctc",
        "detector",
        "sparse",
        "layouts",
        "scripted",
        "buffers",
        "as_on_cuda",
    )
    command = [sys.executable, "-m", "tests.tracing.tracing_checks", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_tensors_have_the_sizes_that_a_gpu_gives_them(found: Dict[str, Any]) -> None:
    cnn = found["small_cnn"]
    assert cnn["output"] == 16 * 32 * 32 * 32 * 4
    assert cnn["gradient"] == 32 * 3 * 3 * 3 * 4
    assert cnn["mask"] == 16 * 32 * 32 * 32, "a dropout mask has one byte an element on CUDA"
    assert cnn["optimizer_at_rest"] >= 2 * 4 * cnn["params"]
    assert cnn["convolutions"] == ["forward", "weight"], "the first layer's input needs no gradient"
    assert cnn["conv"]
    assert cnn["matmul"]


def test_the_summary_shows_the_layers_in_order(found: Dict[str, Any]) -> None:
    kinds = [
        "Sequential",
        "Conv2d",
        "BatchNorm2d",
        "ReLU",
        "Dropout",
        "AdaptiveAvgPool2d",
        "Flatten",
        "Linear",
    ]
    assert found["small_cnn"]["layers"] == kinds


def test_the_file_tells_no_paths_and_no_code(found: Dict[str, Any]) -> None:
    text = found["small_cnn"]["text"]
    assert ".py" not in text
    assert sys.prefix not in text


def test_attention_takes_the_kernel_that_cuda_would_take(found: Dict[str, Any]) -> None:
    attention = found["attention"]
    assert any("efficient" in name for name in attention["fp32"])
    assert any("cudnn" in name or "flash" in name for name in attention["amp-bf16"])
    assert not attention["fp32 scores"], "no kernel keeps the matrix of scores"


def test_autocast_halves_what_convolutions_write(found: Dict[str, Any]) -> None:
    assert found["autocast"]["fp32"] == 2 * found["autocast"]["amp-bf16"]
    assert found["autocast"]["outside"], "nothing stays changed after a trace"


def test_another_batch_size_is_within_a_percent_of_a_fresh_trace(found: Dict[str, Any]) -> None:
    assert found["scaling"]["worst"] <= 0.01


def test_values_that_come_from_constants_are_read_and_others_are_said_to_be_made_up(
    found: Dict[str, Any],
) -> None:
    assert len(found["reader"]["remarks"]) == 1
    assert "took 1" in found["reader"]["remarks"][0]


def test_a_model_that_stops_at_a_made_up_truth_gets_the_opposite(found: Dict[str, Any]) -> None:
    seen, unseen = found["guarded"]["remarks"]
    assert ["taken as passed" in remark for remark in seen] == [True]
    assert ["took 0" in remark for remark in unseen] == [True]


def test_a_recurrent_layer_is_one_operator(found: Dict[str, Any]) -> None:
    assert found["recurrent"]["events"] < 1000
    assert "LSTM" in found["recurrent"]["kinds"]


def test_frozen_parameters_have_no_gradients_and_the_users_optimizer_is_taken(found: Dict[str, Any]) -> None:
    frozen = found["frozen"]
    assert "0" not in frozen["gradients"]
    assert "6" in frozen["gradients"]
    assert frozen["optimizer"] == "sgd-momentum"
    assert frozen["trainable"] == 32 * 2 + 32 * 10 + 10
    assert frozen["untouched"]


def test_a_step_is_told_kernel_by_kernel(found: Dict[str, Any]) -> None:
    rows = found["kernels"]["cnn"]
    # 32 channels from 3 by 3 x 3 x 3 weights, at 32 x 32 places of each picture; and as much for the weights.
    assert rows["conv forward"] == [[1, [16 * 1024, 32, 27, 1, 9, 1, 0], [32 * 1024, 32, 27, 1, 9, 1, 0]]]
    assert rows["conv backward"][0][1][:4] == [27, 32, 16 * 1024, 1]
    assert len(rows["conv backward"]) == 1, "the first layer's input needs no gradient"
    assert rows["gemm forward"] == [[1, [16, 10, 32, 1], [32, 10, 32, 1]]]
    assert sum(row[0] for row in rows["gemm backward"]) == 2
    assert rows["norm forward"] == [[1, [16 * 32 * 1024, 32], [32 * 32 * 1024, 32]]]
    assert rows["foreach optimizer"][0][1][0] == 6, "six tensors of parameters"


def test_attention_and_recurrent_layers_have_kernels_of_their_own(found: Dict[str, Any]) -> None:
    seen = found["kernels"]["attention"]
    # Two products of 12 x 12 x 16 for each of four heads; queries of all heads.
    assert seen["attention forward"] == [
        [1, [2 * 16 * 4 * 12 * 12 * 32, 16 * 4 * 12], [2 * 32 * 4 * 12 * 12 * 32, 32 * 4 * 12]]
    ]
    assert seen["attention backward"][0][1][0] == 5 * 16 * 4 * 12 * 12 * 32
    cells = found["kernels"]["recurrent"]["rnn forward"]
    assert sum(row[0] for row in cells) == 2 * 7, "one for each layer and moment"
    assert "foreach optimizer" in found["kernels"]["recurrent"], "and what else the step does"


def test_numbers_that_a_model_puts_on_its_inputs_device_are_known(found: Dict[str, Any]) -> None:
    assert found["constants"]["widest"] == 2 * 4 * 6 * 4
    assert found["constants"]["remarks"] == []


def test_ctc_is_traced_though_meta_tensors_do_not_know_it(found: Dict[str, Any]) -> None:
    assert found["ctc"]["way"] == "meta"
    assert 4 * 30 * 11 * 4 in found["ctc"]["sizes"], "the table of all ways through five words"


def test_boxes_that_do_not_overlap_are_counted_as_all_of_them(found: Dict[str, Any]) -> None:
    assert found["detector"]["way"] == "meta"
    assert 100 * 4 * 4 in found["detector"]["sizes"]
    assert any("nms" in remark for remark in found["detector"]["remarks"])


def test_sparse_gradients_are_traced(found: Dict[str, Any]) -> None:
    assert found["sparse"]["way"] == "meta"


def test_convolutions_copy_what_lies_otherwise_than_cuda_wants_it(found: Dict[str, Any]) -> None:
    layouts = found["layouts"]
    assert layouts["sequence"] == 1, "the input, for as long as the convolution runs"
    assert layouts["sequence back"] == 2, "the gradient of the input, and the input once more"
    assert layouts["gradient of a part"] == 2, "a copy of it, and the gradient of the shallow tensor"


def test_a_picture_made_of_tokens_stays_channels_last_until_a_group_norm(found: Dict[str, Any]) -> None:
    layouts = found["layouts"]
    assert layouts["plain"] == 0, "the convolution's output is tokens again without a copy"
    assert layouts["group norm"] >= 1


def test_a_scripted_model_takes_what_the_plain_one_does(found: Dict[str, Any]) -> None:
    plain, whole = found["scripted"]["peaks"]
    assert whole == pytest.approx(plain, rel=0.02)
    assert found["scripted"]["way"] == "meta"
    assert found["scripted"]["untouched"] == "cpu"


def bytes_of(taken: List[Any], operator: str) -> List[int]:
    return [size for name, size in taken if name == f"aten::{operator}"]


@pytest.mark.parametrize(
    ("case", "operator", "buffer"),
    [
        ("bias", "convolution_backward", 51_380_224),
        ("squeeze", "mean", 51_380_224),
        ("channels", "mean", 134_217_728),
        ("norm", "linalg_vector_norm", 141_557_760),
        ("tall layer norm", "native_layer_norm_backward", 1_204_224),
        ("taller layer norm", "native_layer_norm_backward", 2_113_536),
    ],
)
def test_long_sums_meet_in_the_buffers_that_a_gpu_was_seen_to_take(
    found: Dict[str, Any], case: str, operator: str, buffer: int
) -> None:
    assert buffer in bytes_of(found["buffers"][case], operator)


def test_sums_along_numbers_side_by_side_need_no_buffer(found: Dict[str, Any]) -> None:
    buffers = found["buffers"]
    # Of the weight, the bias, and a workspace of cuDNN's: nothing of the size of that buffer.
    assert 51_380_224 not in bytes_of(buffers["bias side by side"], "convolution_backward")
    assert max(bytes_of(buffers["squeeze side by side"], "mean")) == 8 * 64 * 4


def test_gradients_of_a_tall_layer_norm_are_summed_in_blocks(found: Dict[str, Any]) -> None:
    for case, part in (("tall layer norm", 2_408_448), ("taller layer norm", 10_922 * 96 * 4)):
        assert bytes_of(found["buffers"][case], "native_layer_norm_backward").count(part) == 2


def test_softmax_widens_fp16_in_place_and_copies_bf16(found: Dict[str, Any]) -> None:
    scores = 8 * 50 * 50 * 4
    assert scores in bytes_of(found["as_on_cuda"]["softmax bf16"], "_to_copy")
    assert scores not in bytes_of(found["as_on_cuda"]["softmax fp16"], "_to_copy")


def test_heads_to_be_spread_keep_fused_attention_away(found: Dict[str, Any]) -> None:
    names = {name for name, _ in found["as_on_cuda"]["shared heads"]}
    assert not [name for name in names if "attention" in name]
    assert "aten::_safe_softmax" in names


def test_rolling_three_dimensions_takes_two_tensors_more(found: Dict[str, Any]) -> None:
    assert bytes_of(found["as_on_cuda"]["rolled"], "roll")[:3] == 3 * [8 * 50 * 64 * 4]


def test_the_gradient_of_a_bilinear_layers_first_input_is_a_matrix_for_each_row_first(
    found: Dict[str, Any],
) -> None:
    """As on an H200: 19,717 rows of 512 by 512 numbers took 19.3 GiB."""
    taken = bytes_of(found["as_on_cuda"]["scored"], "_trilinear")
    assert taken.count(8 * 50 * 32 * 64 * 4) == 1


@pytest.mark.parametrize(
    ("rows", "beside"), [(1, [8, 12]), (100, [8, 8, 4, 12]), (200, [8, 12])], ids=["one", "few", "many"]
)
def test_long_rows_are_sorted_beside_their_results(
    found: Dict[str, Any], rows: int, beside: List[int]
) -> None:
    """Bytes for each number: values, their places, both before the sort, and what CUB needs."""
    taken = bytes_of(found["as_on_cuda"]["ordered"][str(rows)], "sort")
    assert taken[: 2 + len(beside)] == [rows * 5000 * each for each in (4, 8, *beside)]


def test_where_a_library_switches_autocast_off_it_is_off(found: Dict[str, Any]) -> None:
    assert 8 * 50 * 50 * 4 in bytes_of(found["as_on_cuda"]["switched off"], "bmm")
