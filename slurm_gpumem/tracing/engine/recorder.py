"""Records every allocation of a training step: a dispatch mode that notes storages as they come and go.

Operators run on meta tensors (nothing is computed); those that behave differently on CUDA are in
`cuda_operators`. A weak reference to a storage shows when it is freed.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_gpumem.tracing.cuda.autocast import Autocast
from slurm_gpumem.tracing.cuda.kernels import Kernels
from slurm_gpumem.tracing.cuda.library_workspaces import UNMEASURED
from slurm_gpumem.tracing.cuda.operators import HANDLERS, MATMULS
from slurm_gpumem.tracing.cuda.sparse_products import is_sparse, parts_of, sparse_result
from slurm_gpumem.tracing.engine.data_dependent_shapes import BY_NAME, SIZED, selected
from slurm_gpumem.tracing.engine.device_to_host import READS
from slurm_gpumem.tracing.engine.memo import call
from slurm_gpumem.tracing.engine.module_stack import Places
from slurm_gpumem.tracing.engine.recording import Block, Call, Guess, Shares
from slurm_gpumem.tracing.engine.unknown_values import track
from slurm_gpumem.tracing.engine.values import FOLLOWED, READ, follow, is_view, is_wrapped
from slurm_gpumem.units import MIB

# Operators without an implementation on meta tensors (CUDA extensions): results are assumed and reported.

_OWN = ("aten", "prim", "prims", "profiler")
_SIGNS = ("fake impl", "meta kernel", "'meta' backend", "meta tensors", "not implemented")


def assumed(recorder: Recorder, func: Any, args: Any, error: BaseException) -> Any:
    """Tensors like the operator's first input; its error where it failed for another reason."""
    tensors = [value for value in args if isinstance(value, Tensor)]
    returns = func._schema.returns
    if tensors and is_sparse(tensors[:1]) and len(returns) == 1 and func.namespace == "aten":
        found = sparse_result(func, args)
        recorder.note(found, func._schema.name)
        return found
    without_code = any(sign in str(error).lower() for sign in _SIGNS)
    only_tensors = all(str(one.type) == "Tensor" for one in returns) and (tensors or not returns)
    if func.namespace in _OWN or not without_code or not only_tensors:
        raise error
    what = "each result is as large as its first input" if returns else "it allocates nothing"
    remark = (
        f"operator {func._schema.name} is unknown without its CUDA code; assumed: {what}, and it needs no "
        "workspace"
    )
    recorder.assume(remark)
    recorder.warnings.setdefault(remark)
    made = tuple(torch.empty_like(tensors[0]) for _ in returns)
    recorder.note_result(made, func._schema.name)
    return made[0] if len(made) == 1 else (made or None)


_HANDLERS: Dict[Any, Callable[..., Any]] = {**HANDLERS, **READ, **READS, **SIZED}
LT_WORKSPACE = MIB
"""What cuBLASLt keeps from its first product on, that of a linear layer with a bias."""
UNMEASURED_SOLVERS = (
    "decomposes matrices in a way whose workspaces have not been measured and are not in this estimate; "
    "ask for more than it says"
)
EQUAL_SHARES = (
    "rows go to experts (or other choices) depending on data; counted as if each got about the same number. "
    "A router out of balance needs more"
)


def add_handlers(handlers: Dict[Any, Callable[..., Any]]) -> None:
    """From now on these operators, of a library, are run by these functions."""
    _HANDLERS.update(handlers)


class Recorder(TorchDispatchMode):
    """Notes allocations and releases, with the operator, layer and phase of each."""

    def __init__(self, places: Places, autocast: Autocast, guess: Guess) -> None:
        super().__init__()
        self.guess = guess
        self._autocast = autocast
        autocast.when_scripted = self._warn_of_scripts
        self.blocks: List[Block] = []
        self.events: List[int] = []
        """n ≥ 0: block n is allocated; n < 0: block ~n is released."""
        self.phases: List[Tuple[int, str, int]] = []
        self.phase = "setup"
        self.step = 0
        self.places = places
        self.remarks: Dict[str, None] = {}
        self.warnings: Dict[str, None] = {}
        """What a user should know before relying on the figures."""
        self._warned: Set[str] = set()
        self.flat_loops: Set[Tuple[str, bool]] = set()
        """Loops that values end, with gradients or not, whose rounds leave no more memory than they found."""
        self.kernels = Kernels()
        self.shares = Shares()
        self.chance = torch._C.Generator()
        """Of our own: the script's generators are left as they are, and each trace draws the same."""
        self.chance.manual_seed(0)
        self.computes_again = False
        """Whether a checkpoint is computed again that wants as many saved tensors as the first time."""
        self.stream = ""
        """The stream that is given work, where it is not the usual one ..."""
        self.pool = 0
        """... and its number, for which memory is allocated."""
        self.uses_conv = False
        self.uses_matmul = False
        self._live: Dict[int, Tuple[int, Any]] = {}
        self._handles: Dict[str, bool] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by newer PyTorch, whose wrapper of each operator would take a fifth of the time."""
        return False

    # -- Phases ----------------------------------------------------------------------------------

    def enter(self, phase: str, step: int) -> None:
        """From here on events belong to this phase."""
        self.phase, self.step = phase, step
        if self.phases and self.phases[-1][0] == len(self.events):
            self.phases.pop()
        self.phases.append((len(self.events), phase, step))

    # -- Allocations -----------------------------------------------------------------------------

    def note(self, tensor: Tensor, operator: str = "", category: str = "", module: str = "") -> None:
        """Note a tensor's storage if it is new."""
        if tensor.device.type != "meta":
            return
        if tensor.layout != torch.strided:
            for part in parts_of(tensor):
                self.note(part, operator, category, module)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        nbytes = storage.nbytes()
        if not nbytes:
            return
        itemsize = tensor.element_size()
        shape = tuple(tensor.shape) if tensor.numel() * itemsize == nbytes else ()
        module = module or self.places.now()
        number = self._add(Block(shape, itemsize, nbytes, operator, module, self.phase, category))
        self._live[key] = (number, weakref.ref(storage, lambda _: self._gone(key)))

    def _gone(self, key: int) -> None:
        """The storage of a block was released."""
        number = self._live.pop(key, (-1, None))[0]
        if number >= 0:
            self.events.append(~number)

    def skip(self, tensor: Tensor) -> None:
        """This tensor is not on the GPU."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._live[key] = (-1, weakref.ref(storage, lambda _: self._gone(key)))

    def written_over(self, old: Tensor, new: Tensor) -> None:
        """A new tensor is in the memory of an old one."""
        number = self._live.get(old.untyped_storage()._cdata, (-1, None))[0]
        if number >= 0:
            self.skip(old)
            storage = new.untyped_storage()
            key = storage._cdata
            self._live[key] = (number, weakref.ref(storage, lambda _: self._gone(key)))

    def workspace(self, nbytes: int, operator: str, call: Optional[Call] = None) -> None:
        """Note a block that exists only while an operator runs."""
        if nbytes or call:
            block = Block(
                (),
                1,
                nbytes,
                operator,
                self.places.now(),
                self.phase,
                "workspace",
                call,
            )
            self.events.append(~self._add(block))

    def take(self, nbytes: int, operator: str, category: str = "workspace", module: str = "") -> int:
        """Note a block that has no tensor, until `drop`."""
        return self._add(
            Block(
                (),
                1,
                nbytes,
                operator,
                module or self.places.now(),
                self.phase,
                category,
            )
        )

    def drop(self, number: int) -> None:
        """Release the block that `take` returned."""
        self.events.append(~number)

    def cublas(self, operator: str) -> None:
        """The first matrix product of a thread on a stream allocates a workspace that stays."""
        self.uses_matmul = True
        where = f"{self.thread} {self.stream}"
        if where not in self._handles:
            self._handles[where] = True
            self._add(Block((), 1, 0, "cublas", "", self.phase, "workspace"))
        if operator == "aten::addmm":
            self.once("lt", LT_WORKSPACE, "cublaslt")

    @property
    def thread(self) -> str:
        """The engine runs the backward pass of a CUDA device in a separate thread, with its own handles."""
        return "backward" if self.phase == "backward" else "forward"

    def once(self, what: str, nbytes: int, operator: str) -> None:
        """Note a block that is allocated the first time and stays."""
        if what not in self._handles:
            self._handles[what] = True
            self._add(Block((), 1, nbytes, operator, "", self.phase, "workspace"))

    def block_of(self, tensor: Tensor) -> Optional[Block]:
        """The allocation that holds a tensor."""
        if tensor.layout != torch.strided or is_wrapped(tensor):
            return None
        found = self._live.get(tensor.untyped_storage()._cdata)
        return None if found is None or found[0] < 0 else self.blocks[found[0]]

    def _add(self, block: Block) -> int:
        number = len(self.blocks)
        block.stream = self.pool
        self.blocks.append(block)
        self.events.append(number)
        return number

    def half(self) -> Optional[torch.dtype]:
        """The type that autocast casts to here; None if it is off."""
        return self._autocast.dtype if self._autocast.enabled else None

    def half_of_weights(self) -> Optional[torch.dtype]:
        """The type to which autocast has cast weights that are trained; None if it never did."""
        return self._autocast.of_weights

    def assume(self, remark: str) -> None:
        """Remember an assumption, once."""
        self.remarks.setdefault(remark)

    def assume_equal_shares(self, what: str) -> None:
        """A size that depends on which of several choices was taken; the user is warned, once."""
        self.assume(f"the size of {what} depends on data: each choice is taken about equally often")
        self.warnings.setdefault(EQUAL_SHARES)

    def warn_once(self, about: str, text: str) -> None:
        """Warn the user, the first time that something comes up."""
        if about not in self._warned:
            self._warned.add(about)
            self.warnings.setdefault(text)

    def has_warned(self, about: str) -> bool:
        """Whether something has come up before."""
        return about in self._warned

    def _warn_of_scripts(self) -> None:
        where = self.places.now() or "the training step"
        self.warn_once(
            "scripted",
            f"{where} calls code that torch.jit.script compiled, under autocast: on a GPU such code may keep "
            "more for the backward pass than a trace has (a measured WaveGlow did, by gigabytes). Let one "
            "run be measured: gpusbatch without --trace",
        )

    # -- Operators -------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and note what it allocates."""
        kwargs = kwargs or {}
        try:
            return self._run(func, args, kwargs)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            moved = selected(func, args, kwargs) or _scalars_on_meta(args, kwargs)
            if moved is None:
                return assumed(self, func, args, error)
            try:
                return self._run(func, *moved)
            except (RuntimeError, NotImplementedError, TypeError):
                raise error from None

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name
        handler: Optional[Callable[..., Any]] = _HANDLERS.get(func) or BY_NAME.get(name)
        result = call(func, args, kwargs) if handler is None else handler(self, func, args, kwargs)
        self.kernels.saw((self.phase, self.step), func, args, kwargs, result)
        if handler is None or func in FOLLOWED:
            follow(func, args, kwargs, result)
        track(self, func, args, kwargs, result)
        # Views have one storage in common; code that loops over a tensor's rows makes a list of many.
        self.note_result(result[:1] if is_view(func) and isinstance(result, (tuple, list)) else result, name)
        if name in MATMULS and not is_sparse(args):
            self.cublas(name)
        elif name in UNMEASURED:
            self.warnings.setdefault(UNMEASURED_SOLVERS)
        return result

    def note_result(self, result: Any, operator: str) -> None:
        """Note the tensors that an operator returned."""
        if isinstance(result, Tensor):
            self.note(result, operator)
        elif isinstance(result, (tuple, list)):
            for item in result:
                self.note_result(item, operator)


def _scalars_on_meta(args: Any, kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Dict[str, Any]]]:
    """The arguments with single numbers of the CPU on the meta device, as CUDA takes them; None without."""
    found: List[bool] = []

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.dim() == 0:
            found.append(True)
            return value.to("meta")
        if isinstance(value, (list, tuple)):
            return type(value)(moved(item) for item in value)
        return value

    changed = moved(tuple(args)), {name: moved(value) for name, value in kwargs.items()}
    return changed if found else None
