"""Shortcuts past PyTorch's meta kernels give what those give: shapes, types and layouts."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch
TYPES = ("float32", "bfloat16", "float16", "float64")


def _calls(dtype: Any) -> Iterator[Tuple[str, Any, Tuple[Any, ...]]]:
    """Name, operator and arguments: plain ones, and some that a shortcut must leave alone."""
    import torch

    aten = torch.ops.aten

    def made(*shape: int, kind: Any = dtype) -> Any:
        return torch.empty(shape, dtype=kind, device="meta")

    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    rows, turned = made(4, 6, 8), made(4, 8, 6).transpose(1, 2)
    for name, data in (("rows", rows), ("turned", turned)):
        for kind in {dtype, wide}:
            weight, bias = made(8, kind=kind), made(8, kind=kind)
            mean, scale = made(4, 6, 1, kind=wide), made(4, 6, 1, kind=wide)
            yield f"layer norm {name}", aten.native_layer_norm.default, (data, [8], weight, bias, 1e-5)
            yield f"bare {name}", aten.native_layer_norm.default, (data, [6, 8], None, None, 1e-5)
            for mask in ([True, True, True], [False, True, False]):
                arguments = (rows, data, [8], mean, scale, weight, bias, mask)
                yield f"layer norm backward {name}", aten.native_layer_norm_backward.default, arguments
            without = (rows, data, [8], mean, scale, None, None, [True, False, False])
            yield f"bare backward {name}", aten.native_layer_norm_backward.default, without
    image, last = made(4, 8, 5, 5), made(4, 8, 5, 5).to(memory_format=torch.channels_last)
    for name, data in (("image", image), ("channels last", last)):
        for kind in {dtype, wide}:
            weight, mean = made(8, kind=kind), made(4, 2)
            yield (
                f"group norm {name}",
                aten.native_group_norm.default,
                (data, weight, weight, 4, 8, 25, 2, 1e-5),
            )
            arguments = (image, data, mean, mean, weight, 4, 8, 25, 2, [True, True, True])
            yield f"group norm backward {name}", aten.native_group_norm_backward.default, arguments
            if data is last:  # the gradient of batch norm lies as on CUDA: channels last, too
                continue
            statistics = made(8, kind=wide)
            arguments = (image, data, weight, statistics, statistics, statistics, statistics, True, 1e-5)
            yield (
                f"batch norm backward {name}",
                aten.native_batch_norm_backward.default,
                (*arguments, [True, True, True]),
            )
    for bias in (made(7), made(1, 7), made(3, 7), made()):
        yield "product and bias", aten.addmm.default, (bias, made(3, 5), made(5, 7))
        yield "turned product", aten.addmm.default, (bias, made(5, 3).t(), made(7, 5).t())
    for other in (
        made(8),
        made(4, 1, 8),
        made(6, 1),
        made(),
        made(1, 1, 1, 1),
        made(5, 4, 6, 8),
        made(4, 6, 1),
    ):
        for operator in (aten.add.Tensor, aten.mul.Tensor):
            yield f"spread {tuple(other.shape)}", operator, (rows, other)
            yield f"spread {tuple(other.shape)}", operator, (other, rows)
            yield f"spread over turned {tuple(other.shape)}", operator, (turned, other)
    for operator in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default):
        yield "softmax", operator, (rows, rows, -1, dtype)
        yield "turned softmax", operator, (turned, rows, 1, dtype)
    for operator in (aten._softmax.default, aten._log_softmax.default):
        for data in (rows, turned):
            yield "softmax", operator, (data, -1, False)
        if dtype == torch.float16:
            yield "softmax of half precision", operator, (rows, -1, True)
    for training in (True, False):
        arguments = (image, weight, weight, weight, weight, training, 0.1, 1e-5)
        yield "batch norm", aten.native_batch_norm.default, arguments
    gapped = made(4, 8, 5, 10)[..., ::2]
    arguments = (gapped, gapped, weight, weight, weight, weight, weight, True, 1e-5, [True, True, True])
    yield "batch norm backward with gaps", aten.native_batch_norm_backward.default, arguments
    for other in (2, True, 2j, made(4, 6, 8, kind=torch.int32), turned):
        yield f"with {other}", aten.mul.Tensor, (rows, other)
    yield "of whole numbers", aten.add.Tensor, (made(4, kind=torch.int32), 1)


def _described(result: Any) -> List[Any]:
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [None if one is None else (tuple(one.shape), one.dtype, one.stride()) for one in parts]


@pytest.mark.parametrize("type_name", TYPES)
def test_shortcuts_give_what_the_meta_kernels_give(type_name: str) -> None:
    import torch

    from slurm_gpumem.tracing.engine.memo import NOT_PLAIN, PLAIN

    taken = set()
    for name, operator, arguments in _calls(getattr(torch, type_name)):
        short = PLAIN[operator](arguments, {})
        if short is not NOT_PLAIN:
            taken.add(operator)
            real = operator(*arguments)
            assert _described(short) == _described(real), (name, [getattr(a, "dtype", a) for a in arguments])
    assert len(taken) == 13, "each has a case that it takes"


def test_what_does_not_fit_is_left_to_the_meta_kernel_and_its_error() -> None:
    import torch

    from slurm_gpumem.tracing.engine.memo import call

    bias, first, second = (torch.empty(shape, device="meta") for shape in ((7,), (3, 5), (6, 7)))
    with pytest.raises(RuntimeError, match=r"\[3, 5\]|3x5"):
        call(torch.ops.aten.addmm.default, (bias, first, second), {})


def _counted(operator: Any) -> Tuple[Any, List[int]]:
    """The operator, and how often it was run."""
    runs = [0]

    class Counted:
        _schema = operator._schema

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            runs[0] += 1
            return operator(*args, **kwargs)

    return Counted(), runs


def test_a_meta_kernel_is_run_once_for_inputs_that_lie_the_same() -> None:
    import torch

    from slurm_gpumem.tracing.engine.memo import call

    aten = torch.ops.aten
    rows = torch.empty(4, 6, device="meta")
    turned = torch.empty(6, 4, device="meta").t()
    cases: List[Tuple[Any, List[Any]]] = [
        (aten.sum.dim_IntList, [(rows, [1], True), (turned, [1], True), (rows, [1], False), (rows, [1])]),
        (aten.pow.Tensor_Scalar, [(rows.int(), 2), (rows.int(), 2.0), (rows, 2)]),
        (aten.cat.default, [([rows, rows],), ([rows, rows], 1), ([rows],)]),
        (aten.gt.Scalar, [(rows, 1), (turned, 1)]),
        (aten.max.dim, [(rows, 1), (rows, 0)]),
    ]
    for operator, arguments in cases:
        counted, runs = _counted(operator)
        for several in (arguments, arguments):
            for one in several:
                made = call(counted, one, {})
                assert _described(made) == _described(operator(*one)), operator
        assert runs == [len(arguments)], operator
        first, second = (call(counted, arguments[0], {}) for _ in range(2))
        one, other = (x[0] if isinstance(x, tuple) else x for x in (first, second))
        assert one.untyped_storage()._cdata != other.untyped_storage()._cdata


def test_views_writes_and_tensors_with_numbers_are_run_each_time() -> None:
    import torch

    from slurm_gpumem.tracing.engine.memo import call

    aten = torch.ops.aten
    rows, numbers = torch.empty(4, 6, device="meta"), torch.arange(6.0)
    for operator, arguments in (
        (aten.t.default, (rows,)),
        (aten._unsafe_view.default, (rows, [24])),
        (aten.cumsum_.default, (rows, 0)),
        (aten.sum.default, (numbers,)),
        (aten.gt.Tensor, (rows, numbers[0])),
    ):
        counted, runs = _counted(operator)
        for _ in range(3):
            call(counted, arguments, {})
        assert runs == [3], operator
    assert call(aten.t.default, (rows,), {}).untyped_storage()._cdata == rows.untyped_storage()._cdata
