"""Graphs as PyTorch's compiler runs them: which results are in memory."""

from __future__ import annotations

from typing import Any, Dict, List

from tests.support.needs import needs_torch

pytestmark = needs_torch


def _graph(function: Any, *shapes: Any) -> Any:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = [torch.empty(shape, device="meta") for shape in shapes]
    return make_fx(function, tracing_mode="fake")(*inputs).graph


def _stored(function: Any, *shapes: Any) -> List[str]:
    from slurm_gpumem.tracing.cuda.fused import plan

    return [str(node) for node in plan(_graph(function, *shapes), lambda node: node.op == "placeholder").made]


def test_elementwise_results_between_two_products_are_one_tensor() -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return ((a @ b).exp().mul(2).add(1).tanh()) @ c

    assert _stored(function, (8, 16), (16, 32), (32, 4)) == ["mm", "tanh", "mm_1"]


def test_what_the_graph_returns_is_in_memory_and_what_it_is_made_of_is_not() -> None:
    assert _stored(lambda a: (a.exp().add(1), a.sum(0)), (8, 16)) == ["add", "sum_1"]


def test_a_result_of_many_inputs_that_two_kernels_need_is_in_memory() -> None:
    def few(a: Any, b: Any) -> Any:
        shared = a + b
        return shared.sum(0), shared.exp()

    def many(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        shared = a + b + c + d + e
        return shared.sum(0), shared.exp()

    assert "add" not in _stored(few, (8, 8), (8, 8))
    assert "add_3" in _stored(many, *[(8, 8)] * 5)


def test_a_kernel_writes_over_an_input_that_nobody_needs_any_more() -> None:
    from slurm_gpumem.tracing.cuda.fused import plan

    def over(function: Any) -> Dict[str, str]:
        found = plan(_graph(function, (8, 16), (16, 32)), lambda node: node.op == "placeholder").over
        return {str(one): str(other) for one, other in found.items()}

    assert over(lambda a, b: (a @ b).relu()) == {"relu": "mm"}
    assert over(lambda a, b: ((a @ b).relu(), a @ b)).get("relu") == "mm"
    product_too = over(lambda a, b: (lambda product: (product.relu(), product))(a @ b))
    assert product_too == {}, "it is returned"
