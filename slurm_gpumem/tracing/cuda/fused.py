"""A graph as PyTorch's compiler (inductor) runs it: which results are in memory, and how long.

Elementwise operators are computed where their results are used, in the same kernel: only what leaves a kernel
is in memory. That is what a product, a convolution or another kernel of a library takes or makes, what a sum
makes, and what the graph returns. A kernel may write its result over an input that nobody needs any more.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, FrozenSet, List, Optional, Tuple

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

MOST_READS = 4
"""Inputs of an elementwise result that several kernels use, up to which each of them computes it again
(inductor's `realize_reads_threshold`)."""
MOST_READS_OF_ONE = 8
"""The same where one kernel uses it (`realize_acc_reads_threshold`)."""
_SUMS = {"sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "prod", "any", "all",
         "argmax", "argmin", "logsumexp", "linalg_vector_norm", "norm"}  # fmt: skip
_ELEMENTWISE = {"convert_element_type", "_to_copy", "clone", "where", "full", "full_like", "zeros",
                "zeros_like", "ones", "ones_like", "empty", "empty_like", "new_zeros", "new_full",
                "new_empty", "scalar_tensor", "arange", "iota", "rand", "rand_like", "randn", "randn_like",
                "embedding", "index", "index_select", "gather", "constant_pad_nd", "masked_fill",
                "slice_scatter", "select_scatter", "as_strided_scatter", "copy", "fill",
                "upsample_nearest2d", "avg_pool2d", "_unsafe_index", "_unsafe_masked_index",
                "lift_fresh_copy", "tril", "triu", "flip", "roll", "repeat", "cat", "stack"}  # fmt: skip
VIEW, SUM, ELEMENTWISE, LIBRARY = "view", "sum", "elementwise", "library"


def kind_of(node: Node) -> str:
    """What a node of the graph is to the compiler."""
    target: Any = node.target
    if target is operator.getitem:
        return VIEW
    schema = getattr(target, "_schema", None)
    if schema is None:
        return LIBRARY
    short = str(schema.name).partition("::")[2]
    aliases = [one.alias_info for one in schema.arguments if one.alias_info is not None]
    if aliases and not any(alias.is_write for alias in aliases) and short != "lift_fresh_copy":
        return VIEW
    if short in _SUMS:
        return SUM
    if torch.Tag.pointwise in target.tags or short in _ELEMENTWISE:
        return ELEMENTWISE
    if short == "scatter" and target._overloadname == "value":
        return ELEMENTWISE  # one number at some places: compared with where each element is
    return LIBRARY


@dataclass
class Plan:
    """What is done at each node."""

    kinds: Dict[Node, str] = field(default_factory=dict)
    made: Dict[Node, Tuple[Node, ...]] = field(default_factory=dict)
    """Results that are in memory, with those that their kernels read."""
    viewed: FrozenSet[Node] = frozenset()
    """Views of what is in memory."""
    goes: Dict[Node, List[Node]] = field(default_factory=dict)
    """What is not needed any more after a node."""
    over: Dict[Node, Node] = field(default_factory=dict)
    """Results that are written over an input of their kernel."""


def plan(graph: Graph, keeps: Callable[[Node], bool]) -> Plan:
    """The plan of a graph; inputs that `keeps` names belong to others and are not written over."""
    found = Plan()
    reads: Dict[Node, Tuple[Node, ...]] = {}
    """What a result is computed from, of what is in memory."""
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            reads[node] = (node,)
        elif node.op == "call_function":
            kind = found.kinds[node] = kind_of(node)
            taken = _distinct(one for given in node.all_input_nodes for one in reads[given])
            stored = kind in (SUM, LIBRARY) or (kind == ELEMENTWISE and _is_stored(node, taken))
            if stored:
                found.made[node] = taken
            reads[node] = (node,) if stored else taken
    in_memory = {*found.made, *(node for node in graph.nodes if node.op in ("placeholder", "get_attr"))}
    found.viewed = frozenset(
        node for node, kind in found.kinds.items() if kind == VIEW and _base(node) in in_memory
    )
    _ends(graph, found, reads)
    _written_over(graph, found, keeps)
    return found


def _is_stored(node: Node, taken: Tuple[Node, ...]) -> bool:
    """Whether an elementwise result leaves its kernel."""
    users = _users(node)
    if any(user.op == "output" or kind_of(user) == LIBRARY for user in users):
        return True
    return len(taken) > (MOST_READS if len(users) > 1 else MOST_READS_OF_ONE)


def _users(node: Node) -> List[Node]:
    """Those of its views too."""
    found: List[Node] = []
    for user in node.users:
        found += _users(user) if user.op == "call_function" and kind_of(user) == VIEW else [user]
    return found


def _base(node: Node) -> Optional[Node]:
    """What a view is a view of."""
    while node.op == "call_function" and kind_of(node) == VIEW:
        if not node.all_input_nodes:
            return None
        node = node.all_input_nodes[0]
    return node


def _distinct(nodes: Any) -> Tuple[Node, ...]:
    return tuple(dict.fromkeys(nodes))


def _ends(graph: Graph, found: Plan, reads: Dict[Node, Tuple[Node, ...]]) -> None:
    last: Dict[Node, Node] = {}
    for node in graph.nodes:
        last[node] = node
        if node.op == "output" or node in found.made:
            for given in node.all_input_nodes:
                for one in reads[given]:
                    last[one] = node
        for given in node.all_input_nodes:
            if given in found.viewed or node in found.viewed:
                last[given] = node
    # A view lives as long as what it is needed for, and what it shows at least as long.
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in reversed(list(graph.nodes)):
        if node in found.viewed:
            (base, *_) = node.all_input_nodes
            last[base] = max(last[base], last[node], key=order.__getitem__)
    for node, end in last.items():
        found.goes.setdefault(end, []).append(node)


def _written_over(graph: Graph, found: Plan, keeps: Callable[[Node], bool]) -> None:
    taken: Dict[Node, bool] = {}
    for node, inputs in found.made.items():
        if found.kinds[node] != ELEMENTWISE:
            continue
        going = set(found.goes.get(node, ()))
        for one in inputs:
            if one in going and one not in taken and not keeps(one) and _alike(one, node):
                found.over[node] = one
                taken[one] = True
                break


def _alike(one: Node, other: Node) -> bool:
    first, second = one.meta.get("val"), other.meta.get("val")
    return (
        isinstance(first, torch.Tensor)
        and isinstance(second, torch.Tensor)
        and first.dtype == second.dtype
        and first.numel() == second.numel()
    )


class Fused:
    """Runs a graph by its plan, on tensors without values; `recorder` notes what is in memory."""

    def __init__(self, module: Any, recorder: ScriptRecorder, keeps: Callable[[Node], bool]) -> None:
        self._module, self._recorder = module, recorder
        self._plan = plan(module.graph, keeps)
        self._boxed_call = True

    def __call__(self, given: List[Any]) -> Any:
        """What the graph returns; the list of inputs is emptied, so that they can go."""
        with torch._C.DisableTorchFunction():
            return self._call(given)

    def _call(self, given: List[Any]) -> Any:
        values: Dict[Node, Any] = {}
        inputs = iter(list(given))
        given.clear()
        result: Any = None
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "get_attr":
                values[node] = getattr(self._module, str(node.target))
            elif node.op == "output":
                result = pytree.tree_map_only(Node, values.__getitem__, node.args[0])
            else:
                self._run(node, values)
            for gone in self._plan.goes.get(node, ()):
                values.pop(gone, None)
            if node.op == "placeholder" and node.next.op != "placeholder":
                inputs = iter(())
        return result

    def _run(self, node: Node, values: Dict[Node, Any]) -> None:
        found = self._plan
        target: Any = node.target
        if node in found.viewed or (node in found.made and found.kinds[node] == LIBRARY):
            args = pytree.tree_map_only(Node, values.__getitem__, node.args)
            kwargs = pytree.tree_map_only(Node, values.__getitem__, node.kwargs)
            values[node] = target(*args, **kwargs)
        elif node in found.made:
            with self._recorder.unnoted():
                values[node] = pytree.tree_map_only(torch.Tensor, _empty, node.meta["val"])
            if self._recorder.off:
                return
            before = found.over.get(node)
            if before is not None and before in values:
                self._recorder.written_over(values[before], values[node])
            self._recorder.note_result(values[node], target._schema.name)


def _empty(like: Any) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
