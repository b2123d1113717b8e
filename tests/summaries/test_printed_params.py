"""Parameters counted from a printed layer, against the layer itself."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.summaries.reader import parse

torch = pytest.importorskip("torch")
nn = torch.nn

size = st.integers(1, 40)
flag = st.booleans()


def grouped(make: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda channels, factor, groups, kernel, bias: make(
            groups * channels, groups * factor, kernel, groups=groups, bias=bias
        ),
        st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), flag,
    )  # fmt: skip


LAYERS = {
    "Linear": st.builds(lambda a, b, bias: nn.Linear(a, b, bias=bias), size, size, flag),
    "Bilinear": st.builds(lambda a, b, c, bias: nn.Bilinear(a, b, c, bias=bias), size, size, size, flag),
    "Conv1d": grouped(nn.Conv1d),
    "Conv2d": grouped(nn.Conv2d),
    "Conv3d": grouped(nn.Conv3d),
    "ConvTranspose2d": grouped(nn.ConvTranspose2d),
    "Conv2d with sides": st.builds(lambda a, b, k, m: nn.Conv2d(a, b, (k, m)), size, size, size, size),
    "Embedding": st.builds(nn.Embedding, size, size),
    "EmbeddingBag": st.builds(nn.EmbeddingBag, size, size),
    "BatchNorm2d": st.builds(lambda a, affine: nn.BatchNorm2d(a, affine=affine), size, flag),
    "InstanceNorm1d": st.builds(lambda a, affine: nn.InstanceNorm1d(a, affine=affine), size, flag),
    "GroupNorm": st.builds(lambda g, c, affine: nn.GroupNorm(g, g * c, affine=affine), size, size, flag),
    "LayerNorm": st.builds(
        lambda shape, affine: nn.LayerNorm(shape, elementwise_affine=affine),
        st.lists(size, min_size=1, max_size=3), flag,
    ),
    "RMSNorm": st.builds(nn.RMSNorm, size),
    "PReLU": st.builds(nn.PReLU, size),
    "ReLU": st.builds(nn.ReLU, flag),
    "Dropout": st.builds(nn.Dropout, st.floats(0, 1)),
    "MultiheadAttention": st.builds(
        lambda heads, width, bias: nn.MultiheadAttention(heads * width, heads, bias=bias), size, size, flag
    ),
}  # fmt: skip
for name in ("LSTM", "GRU", "RNN"):
    LAYERS[name] = st.builds(
        lambda make, a, b, layers, both, bias: make(a, b, layers, bias=bias, bidirectional=both),
        st.just(getattr(nn, name)), size, size, st.integers(1, 3), flag, flag,
    )  # fmt: skip
    LAYERS[f"{name}Cell"] = st.builds(getattr(nn, f"{name}Cell"), size, size, flag)
LAYERS["LSTM with projection"] = st.builds(
    lambda a, b, p: nn.LSTM(a, b + p, 2, proj_size=p), size, size, st.integers(1, 5)
)


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS.keys())
def test_a_printed_layer_has_the_layer_s_parameters(layers: st.SearchStrategy[Any]) -> None:
    @settings(max_examples=15, deadline=None)
    @given(layers)
    def check(layer: Any) -> None:
        model = nn.Sequential(layer, nn.Identity())
        summary = parse(str(model), origin="printed")
        assert summary.total_params == count(layer)
        assert all(row.params_known for row in summary.layers)

    check()


def test_repeated_blocks_are_written_out() -> None:
    block = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(5)]
    model = nn.ModuleList(block)
    assert "(0-4): 5 x Sequential(" in str(model)
    summary = parse(str(model), origin="repeated")
    assert [layer.kind for layer in summary.layers].count("Linear") == 5
    assert summary.total_params == count(model)


def test_a_model_of_one_layer_is_read() -> None:
    summary = parse(str(nn.Linear(3, 2)), origin="one")
    assert [(layer.kind, layer.params) for layer in summary.layers] == [("Linear", 8)]
    assert summary.layers[0].attributes == (("in_features", "3"), ("out_features", "2"), ("bias", "True"))


def test_parameters_of_a_list_are_counted() -> None:
    model = nn.ModuleDict({"p": nn.ParameterList([torch.zeros(3, 4), torch.zeros(5)]), "l": nn.Linear(1, 1)})
    assert parse(str(model), origin="list").total_params == count(model)


def test_a_compiled_or_wrapped_model_is_read() -> None:
    wrapped: Callable[[Any], Any] = torch.compile
    model = wrapped(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert parse(str(model), origin="compiled").total_params == 9
