"""Products with sparse matrices: what they hold while they run, as the allocator's history showed it."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch

MEASURED = [
    # layout, rows, entries, columns; bytes at most in the forward and in the backward pass (H200, torch 2.11)
    ("coo", 10000, 99947, 16, 2361363, 7676608),
    ("csr", 10000, 99948, 16, 1313327, 6516431),
    ("coo", 50000, 999807, 64, 42614863, 89587648),
    ("csr", 50000, 999813, 64, 25933279, 64627583),
    ("coo", 50000, 999772, 40, 28214723, 79985408),
    ("csr", 50000, 999804, 40, 16333279, 64626639),
    ("coo", 20000, 2988840, 128, 42802075, 211765760),
    ("csr", 20000, 2988740, 128, 21476255, 192121295),
    ("coo", 200000, 999992, 32, 81615607, 121615287),
    ("csr", 200000, 999985, 32, 51533343, 73133051),
    ("coo", 30001, 899555, 37, 17052735, 66451816),
    ("csr", 30001, 899563, 37, 9180159, 58029991),
]
MEASURED_UNCOALESCED = (50000, 1000000, 64, 69595780)
"""Rows, entries, columns, bytes at most in the forward pass."""


def _recorder() -> Any:
    from slurm_gpumem.tracing.cuda.autocast import Autocast
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    return ScriptRecorder(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))


def _matrix(layout: str, rows: int, entries: int) -> Tuple[Any, List[Any]]:
    import torch

    values = torch.empty(entries, device="meta")
    if layout == "coo":
        places = torch.empty((2, entries), dtype=torch.int64, device="meta")
        made = torch.sparse_coo_tensor(places, values, (rows, rows), check_invariants=False)
        return made._coalesced_(True), [places, values]
    begins, columns = (torch.empty(n, dtype=torch.int64, device="meta") for n in (rows + 1, entries))
    return torch.sparse_csr_tensor(begins, columns, values, (rows, rows), check_invariants=False), [
        begins,
        columns,
        values,
    ]


def _most(recorder: Any, first: int) -> int:
    """Bytes at most beyond those at an event."""
    now = most = 0
    for event in recorder.events[first:]:
        now += recorder.blocks[event].nbytes if event >= 0 else -recorder.blocks[~event].nbytes
        most = max(most, now)
    return most


@pytest.mark.parametrize(("layout", "rows", "entries", "columns", "forward", "backward"), MEASURED)
def test_a_product_holds_what_was_measured_in_both_passes(
    layout: str, rows: int, entries: int, columns: int, forward: int, backward: int
) -> None:
    import torch

    matrix, parts = _matrix(layout, rows, entries)
    dense = torch.empty((rows, columns), device="meta", requires_grad=True)
    recorder = _recorder()
    with recorder:
        for part in (*parts, dense):
            recorder.note(part)
        first = len(recorder.events)
        result = torch.sparse.mm(matrix, dense)
        assert _most(recorder, first) == pytest.approx(forward, rel=0.001)
        gradient = torch.empty_like(result)
        first = len(recorder.events)
        recorder.enter("backward", 1)
        result.backward(gradient)
        assert _most(recorder, first) == pytest.approx(backward, rel=0.02)
    assert not recorder.uses_matmul, "cuSPARSE computes it: no workspace of cuBLAS"


def test_entries_that_are_not_in_order_are_sorted_first() -> None:
    import torch

    rows, entries, columns, measured = MEASURED_UNCOALESCED
    matrix, parts = _matrix("coo", rows, entries)
    dense = torch.empty((rows, columns), device="meta")
    recorder = _recorder()
    with recorder:
        for part in (*parts, dense):
            recorder.note(part)
        first = len(recorder.events)
        torch.sparse.mm(matrix._coalesced_(False), dense)
        assert _most(recorder, first) == pytest.approx(measured, rel=0.02)


def test_a_matrix_keeps_its_entries_wherever_it_goes() -> None:
    import torch

    places = torch.randint(0, 100, (2, 500))
    matrix = torch.sparse_coo_tensor(places, torch.rand(500), (100, 100))
    with _recorder() as recorder:
        moved = matrix.to("meta")
        selected = moved.index_select(0, torch.empty(20, dtype=torch.int64, device="meta"))
        found = {
            "moved": moved._nnz(),
            "wider": moved.double()._nnz(),
            "scaled": (moved * 0.5)._nnz(),
            "transposed": moved.t()._nnz(),
            "added": (moved + moved)._nnz(),
            "selected": selected._nnz(),
            "by rows": moved.to_sparse_csr().values().shape[0],
        }
        shape = tuple(selected.to_dense().shape)
    assert found == {
        "moved": 500,
        "wider": 500,
        "scaled": 500,
        "transposed": 500,
        "added": 1000,
        "selected": 100,
        "by rows": 500,
    }
    assert shape == (20, 100)
    assert recorder.blocks[0].nbytes + recorder.blocks[1].nbytes == 500 * (2 * 8 + 4)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_matrix_of_unknown_values_that_goes_to_the_cpu_stays_sparse(layout: str) -> None:
    import torch

    matrix, _ = _matrix(layout, rows=10000, entries=5000)
    with _recorder():
        back = matrix.cpu()
    assert (back.device.type, back.layout, back._nnz()) == ("cpu", matrix.layout, 5000)
    if layout == "coo":
        assert torch.sparse.softmax(back, dim=1)._nnz() == 5000, "no two entries at one place"


@pytest.mark.parametrize(
    ("dims", "shape", "entries"), [((1,), (50, 3), 50), ((2,), (50, 40), 900), ((0, 1), (3,), None)]
)
def test_a_sum_of_entries_has_the_other_dimensions_and_no_more_entries_than_places(
    dims: Tuple[int, ...], shape: Tuple[int, ...], entries: Optional[int]
) -> None:
    import torch

    places = torch.empty((2, 900), dtype=torch.int64, device="meta")
    values = torch.empty((900, 3), device="meta", requires_grad=True)
    with _recorder():
        matrix = torch.sparse_coo_tensor(places, values, (50, 40, 3), check_invariants=False)
        result = torch.sparse.sum(matrix, dim=dims)
        assert result.shape == shape
        assert (result._nnz() if result.is_sparse else None) == entries
        dense = result.to_dense()
        assert dense.shape == shape
        assert dense.layout == torch.strided
        if entries is not None:
            dense.sum().backward()
            assert values.grad is not None
            assert values.grad.shape == values.shape
