"""cuDNN's workspaces by the fitted trees, held against convolutions measured on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from lab.fit.workspaces import to_bytes
from lab.places import NARROW_CHECK, OPERATORS
from lab.probe.measured_calls import MeasuredCall, load_calls
from slurm_gpumem import estimate
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.estimators.workspaces import convolutions
from slurm_gpumem.estimators.workspaces import convolutions as workspace
from slurm_gpumem.estimators.workspaces.benchmark import skipped_bytes, tried_bytes
from slurm_gpumem.estimators.workspaces.convolutions import (
    from_columns,
    read_columns,
    usual_bytes,
    workspace_bytes,
)
from slurm_gpumem.summaries.parsers.own import parse, to_json
from slurm_gpumem.summaries.trace_types import Convolution
from slurm_gpumem.units import MIB


def convolution(**changes: Any) -> Convolution:
    fields: Dict[str, Any] = {
        "call": "forward", "dtype": "fp32", "batch": (0, 1), "channels": 64, "outputs": 64, "size": (56, 56),
        "out_size": (56, 56), "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1),
    }  # fmt: skip
    return Convolution(**{**fields, **changes})


@pytest.fixture(scope="module")
def measured() -> List[MeasuredCall]:
    """Every 33rd measured convolution: unpacking the file takes seconds."""
    return load_calls(OPERATORS, every=33)


def test_most_measured_convolutions_get_the_workspace_that_they_took(measured: List[MeasuredCall]) -> None:
    large = [case for case in measured if case.call.data + case.call.output > 50 * MIB]
    assert len(large) > 160

    def right(case: MeasuredCall) -> bool:
        found = workspace_bytes(case.call.convolution, case.call.rows)
        return abs(found - case.bytes) <= 0.1 * (case.call.data + case.call.output)

    share = sum(map(right, large)) / len(large)
    assert share > 0.9, f"{share:.1%} of {len(large)}"


def test_a_plain_convolution_is_copied_and_a_depthwise_one_is_not() -> None:
    one = 32 * 64 * 56 * 56 * 4
    weight = 128 * 128 * 9 * 4
    plain = convolution(channels=128, outputs=128)
    assert workspace_bytes(plain, 32) == pytest.approx(4 * one + weight, rel=0.001)  # input and output
    assert workspace_bytes(convolution(channels=63, outputs=63), 32) == pytest.approx(2 * one, rel=0.05)
    assert workspace_bytes(convolution(groups=64), 32) < MIB
    assert workspace_bytes(convolution(channels_last=True), 32) < one / 2


def test_the_gradient_of_a_wide_kernel_of_one_tap_is_a_product_for_each_sample(
    measured: List[MeasuredCall],
) -> None:
    """A transformer's feed-forward layers as 1-D convolutions: 4 GiB at a batch size of 512."""
    one_tap = {"size": (25,), "out_size": (25,), "kernel": (1,), "stride": (1,), "padding": (0,)}
    asked = convolution(call="weight", channels=1024, outputs=2048, dilation=(1,), **one_tap)
    assert workspace_bytes(asked, 512) == 512 * 1024 * 2048 * 4
    assert workspace_bytes(asked._replace(dtype="bf16"), 512) < 512 * MIB
    cases = [case for case in measured if is_such(case.call.convolution)]
    assert len(cases) > 3
    for case in cases:
        assert case.bytes == pytest.approx(case.call.rows * case.call.weight, rel=0.02)


@pytest.mark.parametrize("size", [(7,), (14, 14), (4, 6, 6)])
def test_in_double_precision_only_gradients_of_kernels_of_one_tap_have_a_workspace(
    size: Tuple[int, ...],
) -> None:
    ones, zeros = (1,) * len(size), (0,) * len(size)
    sizes = {"size": size, "out_size": size, "kernel": ones, "stride": ones, "padding": zeros}
    asked = convolution(call="weight", dtype="fp64", channels=736, outputs=720, dilation=ones, **sizes)
    assert workspace_bytes(asked, 256) == 256 * 736 * 720 * 8  # measured: 1,036 MiB
    other = {"kernel": (3,) * len(size)}, {"stride": (2,) * len(size)}, {"padding": ones}, {"groups": 2}
    others: Sequence[Dict[str, Any]] = (*other, {"call": "forward"}, {"call": "input"})
    assert not any(workspace_bytes(asked._replace(**changes), 256) for changes in others)


def test_products_for_each_sample_have_single_precision_where_the_gradient_has_half() -> None:
    """A point transformer's layers at 32,768 groups of points: 8 GiB, where half of it was expected."""
    one_tap = {"size": (32,), "out_size": (32,), "kernel": (1,), "stride": (1,), "padding": (0,)}
    asked = convolution(call="weight", dtype="bf16", channels=256, outputs=256, dilation=(1,), **one_tap)
    assert workspace_bytes(asked, 32768) == 8 << 30
    short = asked._replace(size=(21,), out_size=(21,))
    assert workspace_bytes(short, 256) < 16 * MIB  # measured as a copy of both tensors
    assert (
        workspace_bytes(asked._replace(dtype="fp32", channels=1280, outputs=64), 5838) == 5838 * 1280 * 64 * 4
    )


def test_nine_in_ten_measured_gradients_of_narrow_kernels_of_one_tap_are_such_products() -> None:
    cases = [case for case in load_calls(OPERATORS, every=5) if _is_product(case)]
    assert len(cases) > 50
    right = [case for case in cases if case.bytes == pytest.approx(_products(case), rel=0.02)]
    assert len(right) >= 0.9 * len(cases)


def _products(case: MeasuredCall) -> int:
    c = case.call.convolution
    return case.call.rows * c.channels * c.outputs * 4


def _is_product(case: MeasuredCall) -> bool:
    c = case.call.convolution
    return workspace._sums_products(c.call, c, case.call.rows)


def is_such(c: Convolution) -> bool:
    plain = (c.call, c.dtype, c.kernel, c.stride, c.groups) == ("weight", "fp32", (1,), (1,), 1)
    return plain and not c.transposed and min(c.channels, c.outputs) >= 256


NARROW: Dict[str, Any] = {
    "call": "weight",
    "channels": 24,
    "outputs": 24,
    "size": (32, 32),
    "out_size": (32, 32),
}


def test_a_narrow_gradient_of_a_weight_takes_fourier_transforms() -> None:
    """24 channels of 32 x 32 at a batch size of 1024: planes of 64 x 33 complex numbers, held twice."""
    planes = 2 * 1024 * 24
    transforms = 2 * 64 * 33 * 8 * planes + 1024 * 24 * 32 * 32 * 4
    assert workspace_bytes(convolution(**NARROW), 1024) == transforms
    wide = convolution(**{**NARROW, "channels": 512, "outputs": 512})
    assert workspace_bytes(wide, 1024) < tried_bytes(wide, 1024) / 4
    for other in ({"dtype": "bf16"}, {"channels_last": True}, {"call": "forward"}, {"call": "input"}):
        assert workspace_bytes(convolution(**{**NARROW, **other}), 1024) < transforms / 2


def test_estimates_from_texts_are_those_that_their_correction_was_fitted_on() -> None:
    asked = convolution(**NARROW)
    assert usual_bytes(asked, 1024)[2] < workspace_bytes(asked, 1024) / 4


def test_transforms_of_calls_that_no_fit_saw_are_told_from_others() -> None:
    """The layers of masks with two outputs among them, which look like narrow ones and are none."""
    right: Dict[bool, List[bool]] = {True: [], False: []}
    taken = said = usual = 0
    for each in load_calls(NARROW_CHECK):
        asked = each.call.convolution._replace(batch=(0, 1))
        whole = convolutions.weight_bytes(asked, each.call.rows) if asked.call == "weight" else 0
        if whole:
            found = workspace_bytes(asked, each.call.rows)
            such = abs(each.bytes - whole) <= MIB
            right[such].append((found == whole) == such)
            taken += each.bytes
            said += abs(found - each.bytes)
            usual += abs(usual_bytes(asked, each.call.rows)[2] - each.bytes)
    assert len(right[True]) > 30
    assert len(right[False]) > 200
    assert mean(right[True]) > 0.8
    assert mean(right[False]) > 0.95
    assert said < usual / 2 < taken


def test_trees_of_transforms_look_at_the_features_of_today() -> None:
    header, columns = read_columns(data_path("models/fitted", convolutions.FOURIER_FILE))
    assert header["features"] == [*workspace.FEATURES, *convolutions.FOURIER_FEATURES]
    with pytest.raises(ValueError, match="others"):
        convolutions.fourier_from_columns({**header, "features": ["transforms"]}, columns)
    with pytest.raises(ValueError, match="whole"):
        convolutions.fourier_from_columns(header, columns[:-1])


def test_a_damaged_file_of_transforms_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / convolutions.FOURIER_FILE
    path.write_bytes(data_path("models/fitted", convolutions.FOURIER_FILE).read_bytes()[:-10])
    monkeypatch.setattr(convolutions, "data_file", lambda folder, name: path)
    convolutions._trees.cache_clear()
    try:
        with pytest.raises(ConfigError, match=convolutions.FOURIER_FILE):
            convolutions.picked([], 2, 1)
    finally:
        convolutions._trees.cache_clear()


def test_an_empty_batch_needs_nothing_that_divides_by_zero() -> None:
    assert workspace_bytes(convolution(), 0) >= 0


WHOLE = data_path("models/fitted", workspace.FILE).read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        to_bytes({"format": "other"}, []),
        b'{"format":"other"}\n',
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:100_000] + b"?" * 1000 + WHOLE[101_000:],
        b"[]\n",
        b"",
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / workspace.FILE
    path.write_bytes(content)
    monkeypatch.setattr(workspace, "data_file", lambda folder, name: path)
    workspace._forests.cache_clear()
    try:
        with pytest.raises(ConfigError, match=workspace.FILE):
            workspace._forests()
    finally:
        workspace._forests.cache_clear()


def test_a_file_fitted_on_other_features_is_refused() -> None:
    with pytest.raises(ValueError, match="others"):
        from_columns({"format": workspace.FORMAT, "features": [], "bases": [], "calls": {}}, [])


def test_trying_algorithms_takes_the_workspace_that_dcgan_was_seen_to_take() -> None:
    strided = convolution(
        call="input", channels=256, outputs=512, size=(8, 8), out_size=(4, 4), kernel=(4, 4), stride=(2, 2)
    )
    assert 2584 < tried_bytes(strided, 64) / MIB < 2681  # what was allocated on an H200, with all else
    mirrored = strided._replace(
        call="forward", channels=512, outputs=256, size=(4, 4), out_size=(8, 8), transposed=True
    )
    assert tried_bytes(mirrored, 64) == tried_bytes(strided, 64)
    assert all(tried_bytes(strided._replace(call=call), 64) == 0 for call in ("forward", "weight"))


def _tried() -> List[Tuple[Convolution, Dict[str, Any]]]:
    """Convolutions under cudnn.benchmark, with the largest block that was taken, and the usual one."""
    found = []
    for line in (Path(__file__).parent / "data" / "tried-h200.jsonl").read_text().splitlines():
        row = json.loads(line)
        sizes = {
            name: tuple(row[name]) if isinstance(row[name], list) else (row[name],) * 2
            for name in ("size", "out_size", "kernel", "stride")
        }
        named = {
            name: row[name] for name in ("call", "dtype", "channels", "outputs", "groups", "channels_last")
        }
        named["transposed"] = row.get("transposed", False)
        found.append((convolution(batch=(row["batch"],), **named, **sizes), row))
    return found


def test_the_largest_workspaces_that_were_tried_on_an_h200_follow_from_the_rule() -> None:
    """Those of Fourier transforms, more than ten times the usual workspace; some are not tried."""
    large = [(c, row) for c, row in _tried() if row["tried"] > max(10 * row["usual"], 300 * MIB)]
    rule = [(row, max(tried_bytes(c, 1), skipped_bytes(c, 1))) for c, row in large]
    transformed = [(row, found) for row, found in rule if found]
    assert len(transformed) > 150
    assert max(row["tried"] for row, _ in rule) == max(row["tried"] for row, _ in transformed)
    other = [row for row, found in transformed if found != pytest.approx(row["tried"], rel=0.03)]
    assert len(other) <= 1, other


def test_transforms_of_more_numbers_than_32_bits_count_are_not_expected_of_one_sample_but_named() -> None:
    """torchvision's FCN evaluates one large image: the rule alone has 33 to 260 GiB for its layers."""
    c, _ = next((c, row) for c, row in _tried() if c.call == "forward" and c.kernel == (3, 3))
    wide = c._replace(channels=1024, outputs=256, size=(65, 65), out_size=(65, 65), stride=(1, 1), batch=(1,))
    assert tried_bytes(wide, 1) == 0
    assert skipped_bytes(wide, 1) > 30 << 30
    assert tried_bytes(wide._replace(batch=(4,)), 1) > 30 << 30
    half = wide._replace(channels=512)
    assert tried_bytes(half, 1) > 15 << 30  # as large ones were seen: U-Nets at 256 x 256
    assert skipped_bytes(half, 1) == 0


def test_kernels_of_one_tap_are_not_transformed_in_large_planes() -> None:
    one = convolution(kernel=(1, 1), padding=(0, 0), size=(64, 64), out_size=(64, 64))
    assert tried_bytes(one, 8) > 100 * MIB
    assert tried_bytes(one._replace(size=(65, 65), out_size=(65, 65)), 8) == 0
    assert skipped_bytes(one._replace(size=(65, 65), out_size=(65, 65)), 8) == 0


def test_little_is_tried_beyond_the_rule_and_the_usual_workspace() -> None:
    tried = _tried()
    beyond = [
        row
        for c, row in tried
        if row["tried"] > 1.1 * max(tried_bytes(c, 1), skipped_bytes(c, 1), row["usual"]) + 400 * MIB
    ]
    assert len(beyond) < 0.01 * len(tried), beyond  # weights under very long planes and lines


def test_lines_are_transformed_as_planes_and_gradients_of_their_input_are_not() -> None:
    """An attention's Conv1d over 256 positions: 28 GiB were tried in a script's first step."""
    line = {"kernel": (1,), "padding": (0,), "stride": (1,), "dilation": (1,), "size": (256,)}
    forward = convolution(**line, out_size=(256,), channels=128, outputs=384)
    assert 28 << 30 < tried_bytes(forward, 64) < 29 << 30
    assert tried_bytes(forward._replace(call="weight"), 64) > 24 << 30
    taps = forward._replace(kernel=(3,), padding=(1,), size=(128,), out_size=(128,))
    assert tried_bytes(taps, 64) > 1 << 30
    assert tried_bytes(taps._replace(call="input"), 64) == 0
    flat = convolution()._replace(kernel=(1, 3), padding=(0, 1), call="input")
    assert tried_bytes(flat, 64) == 0


def test_no_fourier_transform_is_tried_in_half_precision_nor_of_groups_or_single_points() -> None:
    assert tried_bytes(convolution(), 64) > 64 * MIB
    for changed in (
        {"dtype": "bf16"},
        {"kernel": (1, 1), "call": "input"},
        {"kernel": (1, 1), "size": (1, 1), "out_size": (1, 1)},
        {"kernel": (2, 2), "stride": (2, 2), "out_size": (28, 28)},
        {"dilation": (2, 2)},
        {"groups": 4},
    ):
        assert tried_bytes(convolution(**changed), 64) == 0


def test_a_trace_with_cudnn_benchmark_asks_for_what_is_tried() -> None:
    torch = pytest.importorskip("torch")
    from slurm_gpumem.tracing.model.live import summarize

    strided = torch.nn.Conv2d(256, 512, 4, 2, 1)
    model = torch.nn.Sequential(torch.nn.Conv2d(256, 256, 1), strided, torch.nn.Flatten())
    summary = summarize(model, torch.empty(64, 256, 8, 8, device="meta"), scalable=False)
    assert summary.trace is not None
    assert not summary.trace.benchmark
    plain = estimate(summary, gpu="h200")
    tried = estimate(summary._replace(trace=summary.trace._replace(benchmark=True)), gpu="h200")
    assert 2400 < tried.peak_mib - plain.peak_mib < 2800
    assert tried.request_mib > 1.1 * (tried.peak_mib - tried.parts["context"]) + tried.parts["context"]
    with_it = summary._replace(trace=summary.trace._replace(benchmark=True))
    assert with_it.trace is not None
    large, small = (replay(with_it.trace, gpu=Gpu("one", size, 500)).autotuned for size in (80_000, 2048))
    assert large > 2400 * MIB
    assert small < 1024 * MIB  # what the GPU does not have is not tried
    again = parse(to_json(with_it), origin="here").trace
    assert again is not None
    assert again.benchmark
