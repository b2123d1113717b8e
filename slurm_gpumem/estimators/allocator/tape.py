"""The tape: what one training step computes, as tensors and operations in the order PyTorch runs them.

A tensor is a shape, a width and a storage; views and in-place results share their storage. An operation
has its inputs, its output, what it keeps for the backward pass and the temporary memory it needs.
Nothing is computed; `replay` turns the tape into allocations and frees.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from slurm_gpumem.summaries.types import Shape

Stores = Tuple[int, ...]

DUST = 32 * 1024
"""Smaller pieces (biases, statistics) are not followed one by one but as one sum: there are many of them,
and all together they fill a few small segments."""
_DUST_PARAM = -1


class Tensor:
    """A tensor of the forward pass. Equal `store`: shared memory; equal `grad_id`: a shared gradient."""

    __slots__ = ("elements", "grad", "grad_id", "shape", "store", "width")

    def __init__(self, shape: Shape, elements: int, width: int, store: int, grad_id: int, grad: bool) -> None:
        self.shape = shape
        """As the summary has it; only compared, never multiplied."""
        self.elements = elements
        """At the job's batch size."""
        self.width = width
        """Bytes of an element."""
        self.store = store
        self.grad_id = grad_id
        self.grad = grad
        """Whether autograd computes a gradient for it."""

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return self.elements * self.width


class Op:
    """One operation of the forward pass and its counterpart in the backward pass."""

    __slots__ = (
        "alias",
        "back",
        "ins",
        "kept",
        "label",
        "macs",
        "matmul",
        "out",
        "params",
        "passing",
        "saved",
        "work",
    )

    def __init__(
        self,
        ins: Sequence[Tensor],
        out: Tensor,
        saved: Stores,
        kept: Stores,
        work: Stores,
        back: Stores,
        passing: Stores,
        params: Stores,
        alias: bool,
        matmul: bool,
        label: str,
        macs: int,
    ) -> None:
        self.ins = ins
        self.out = out
        self.saved = saved
        """Storages that live until its backward has run."""
        self.kept = kept
        """Storages it allocates besides its output, and saves (masks, indices, statistics)."""
        self.work = work
        """Sizes of temporary memory in the forward pass, one after the other."""
        self.back = back
        """Sizes of temporary memory in the backward pass, all together."""
        self.passing = passing
        """(for the first input's gradient, for the weight's): exists while each is computed; may be empty."""
        self.params = params
        """Indices of the parameters whose gradients its backward makes."""
        self.alias = alias
        """Its backward passes the gradient on unchanged (add, views) instead of making a new one."""
        self.matmul = matmul
        self.label = label
        """The class of its module."""
        self.macs = macs
        """Multiply-adds of its forward: of products and convolutions only."""


class Tape:
    """Records tensors, operations and parameters of one forward pass."""

    def __init__(self) -> None:
        self.sizes: List[int] = []
        """Bytes of each storage."""
        self.ops: List[Op] = []
        self.params: List[int] = []
        """Bytes of each trained parameter."""
        self.frozen: List[int] = []
        """Bytes of parameters and buffers that have no gradient."""
        self.held: List[Tuple[int, int]] = []
        """(storage, number of operations until which a caller's variable holds it)."""
        self.segments: List[Tuple[int, int]] = []
        """Checkpointed blocks: (first operation, one past the last)."""
        self.inputs: List[int] = []
        """Storages of the batch."""
        self.cached: List[int] = []
        """Storages that live until the forward pass ends (autocast's weight cache)."""
        self.label = ""
        """The class of the module that is being recorded."""
        self.dust = 0
        """Bytes of small pieces that the forward pass keeps for the backward pass."""
        self._dust_params = 0
        self._dust_frozen = 0
        self.survivors: List[Tensor] = []
        """What the loop's variables still hold when the next step begins (its output)."""
        self.returned = -1
        """Number of operations after which the loop gets the model's output; -1: the loss comes with it."""
        self._grad_ids = 0

    def new(self, shape: Shape, elements: int, width: int, *, grad: bool = True) -> Tensor:
        """A tensor with its own memory."""
        self.sizes.append(elements * width)
        self._grad_ids += 1
        return Tensor(shape, elements, width, len(self.sizes) - 1, self._grad_ids, grad)

    def view(self, base: Tensor, shape: Shape) -> Tensor:
        """The same memory and gradient under another shape."""
        return Tensor(shape, base.elements, base.width, base.store, base.grad_id, base.grad)

    def part(self, base: Tensor, shape: Shape, elements: int) -> Tensor:
        """A view of some of the numbers: the same memory, a gradient of its own size."""
        self._grad_ids += 1
        return Tensor(shape, elements, base.width, base.store, self._grad_ids, base.grad)

    def over(self, base: Tensor) -> Tensor:
        """The result of an in-place operation: the same memory, its own gradient."""
        self._grad_ids += 1
        return Tensor(base.shape, base.elements, base.width, base.store, self._grad_ids, base.grad)

    def param(self, size: int) -> int:
        """Register a trained parameter; returns its index, which only operations understand."""
        if size < DUST:
            self._dust_params += -(-size // 512) * 512
            return _DUST_PARAM
        self.params.append(size)
        return len(self.params) - 1

    def buffer(self, size: int) -> None:
        """Register a buffer or a parameter that is not trained."""
        if size < DUST:
            self._dust_frozen += -(-size // 512) * 512
        else:
            self.frozen.append(size)

    def close(self) -> None:
        """Merge the small pieces into one of each sort; nothing may be recorded afterwards."""
        if self._dust_params:
            self.params.append(self._dust_params)
        if self._dust_frozen:
            self.frozen.append(self._dust_frozen)

    def op(
        self,
        ins: Sequence[Tensor],
        out: Tensor,
        *,
        saved: Sequence[Tensor] = (),
        kept: Sequence[int] = (),
        work: Stores = (),
        back: Stores = (),
        passing: Stores = (),
        params: Stores = (),
        alias: bool = False,
        matmul: bool = False,
        macs: int = 0,
    ) -> Tensor:
        """Record an operation; `kept` are sizes in bytes. Returns `out`."""
        stores: List[int] = []
        for size in kept:
            if size < DUST:
                if out.grad:
                    self.dust += -(-size // 512) * 512
                continue
            self.sizes.append(size)
            stores.append(len(self.sizes) - 1)
        saved_stores: Stores = ()
        if out.grad and saved:
            one = len(saved) == 1
            saved_stores = (saved[0].store,) if one else tuple({t.store: None for t in saved})
        if _DUST_PARAM in params:
            params = tuple(index for index in params if index != _DUST_PARAM)
        self.ops.append(
            Op(
                ins,
                out,
                saved_stores,
                tuple(stores),
                work,
                back,
                passing,
                params,
                alias,
                matmul,
                self.label,
                macs,
            )
        )
        return out

    def hold(self, tensor: Tensor) -> None:
        """Note that a caller's variable held `tensor` up to now."""
        self.held.append((tensor.store, len(self.ops)))
