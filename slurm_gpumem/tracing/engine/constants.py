"""`torch.tensor([…], device=x.device)` on a meta tensor's device: its values are known and kept.

`torch.tensor([loss, other])`: numbers on a GPU are read one by one.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

import torch
from torch import Tensor

from slurm_gpumem.tracing.engine.values import give

_PARTS = 3
"""Of a sparse tensor: indices, values, size."""
_MAY_HAVE_SOME = (Tensor, list, tuple)


@contextmanager
def known_constants() -> Iterator[None]:
    """Inside, tensors that are made from Python numbers on the meta device remember them."""
    originals = {(torch, "tensor"): torch.tensor, (torch, "as_tensor"): torch.as_tensor}
    new_tensor: Any = Tensor.new_tensor

    def keeping(make: Any) -> Any:
        def constant(data: Any, *args: Any, **kwargs: Any) -> Any:
            data = _on_cpu(data)
            made = make(data, *args, **kwargs)
            return _remember(made, make, data, args, kwargs)

        return constant

    def new(self: Tensor, data: Any, *args: Any, **kwargs: Any) -> Any:
        data = _on_cpu(data)
        made = new_tensor(self, data, *args, **kwargs)
        return _remember(made, torch.tensor, data, args, {**kwargs, "dtype": made.dtype})

    legacy: Any = Tensor.new

    def of_parts(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.layout == torch.sparse_coo and self.device.type != "cpu" and len(args) == _PARTS:
            # SparseAdam's way to make a sparse tensor, which meta tensors do not know.
            return torch.sparse_coo_tensor(*args, check_invariants=False)
        if len(args) == 1 and isinstance(args[0], (list, tuple)) and not isinstance(args[0], torch.Size):
            return new(self, args[0], dtype=self.dtype)  # numbers, not a size
        return legacy(self, *args, **kwargs)

    # Code that torch.jit.script compiles calls the operator, as before. PyTorch knows functions by their ids,
    # which other functions get when these are gone.
    compiled = torch.jit._builtins._get_builtin_table()
    ours = {name: keeping(make) for (_, name), make in originals.items()}
    for owner, name in originals:
        setattr(owner, name, ours[name])
        compiled[id(ours[name])] = f"aten::{name}"
    setattr(Tensor, "new_tensor", new)  # noqa: B010 - its type is not the same
    setattr(Tensor, "new", of_parts)  # noqa: B010
    try:
        yield
    finally:
        for (owner, name), make in originals.items():
            setattr(owner, name, make)
            del compiled[id(ours[name])]
        setattr(Tensor, "new_tensor", new_tensor)  # noqa: B010
        setattr(Tensor, "new", legacy)  # noqa: B010


def _remember(made: Any, make: Any, data: Any, args: Any, kwargs: Any) -> Any:
    """Make a constant again on the CPU, if it is one."""
    with torch._C.DisableTorchFunction():  # in a traced script they say that they are on "cuda"
        on_meta = made.device.type == "meta"
    if on_meta and _plain(data):
        options = {name: value for name, value in kwargs.items() if name in ("dtype",)}
        give(made, make(data, *args, **options, device="cpu"))
    return made


def _on_cpu(data: Any) -> Any:
    """A list with the numbers of its tensors: the constructor reads them where nobody can answer for them."""
    if not isinstance(data, (list, tuple)) or not any(isinstance(one, _MAY_HAVE_SOME) for one in data):
        return data
    return [one.detach().to("cpu") if isinstance(one, Tensor) else _on_cpu(one) for one in data]


def _plain(data: Any) -> bool:
    """Whether data are numbers, not tensors."""
    if isinstance(data, (list, tuple)):
        return all(_plain(item) for item in data)
    return isinstance(data, (bool, int, float, complex))
