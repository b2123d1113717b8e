"""Each estimator on one measured job: {"reserved_bytes": …}, or for ours what its score needs.

None knows CUDA's context; `score` adds the same to all of them.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable, Dict, List, Mapping, Set, Tuple

from lab.others.live_tensors import LiveTensors
from lab.others.training import as_fake, built, training_of
from lab.score.trace_rows import trace_row
from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator, Event
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import replay

Row = Mapping[str, Any]
Answer = Dict[str, Any]
STEPS = 2
"""The first makes the optimizer's states, the second has them beside its activations."""


def trace(row: Row) -> Answer:
    """Ours, of the training's code: the figures that `lab.score.trace_score` keeps."""
    found = trace_row(row).trace
    assert found is not None
    gpu = find_gpu("h200")
    timeline = replay(found, None, gpu)
    return {
        "allocated_bytes": timeline.stats.peak_allocated,
        "reserved_bytes": timeline.stats.peak_reserved,
        "fixed_bytes": sum(timeline.at_peak.get(name, 0) for name in ("weights", "buffers", "optimizer")),
        "context_mib": gpu.context_for(conv=found.uses_conv, matmul=found.uses_matmul),
    }


def accelerate(row: Row) -> Answer:
    """`accelerate estimate-memory`: its arithmetic on the model, "Training using Adam"."""
    command = importlib.import_module("accelerate.commands.estimate")
    total, _ = command.calculate_maximum_sizes(built(row))
    return {"reserved_bytes": max(command.estimate_training_usage(total, "float32").values())}


def mem_tracker(row: Row) -> Answer:
    """PyTorch's MemTracker around a training on fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    mode = FakeTensorMode()
    model = as_fake(built(row), mode)
    with mode:
        training = training_of(row, model)
        training.step()  # makes the optimizer's states; the tracker follows one step only
        tracker = MemTracker()
        tracker.track_external(training.model, training.optimizer)
        with tracker:
            training.step()
    snapshot = tracker.get_tracker_snapshot("peak")
    return {"reserved_bytes": sum(of_device["Total"] for of_device in snapshot.values())}


def fake_tensors(row: Row) -> Answer:
    """A training in FakeTensorMode: the most bytes that its tensors had at a time."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    model = as_fake(built(row), mode)
    with mode:
        training = training_of(row, model)
        live = LiveTensors()
        live.add([*training.model.parameters(), *training.model.buffers()])
        with live:
            for _ in range(STEPS):
                training.step()
    return {"reserved_bytes": live.peak}


def veritas_est(row: Row) -> Answer:
    """VeritasEst as its authors describe it: a training on the CPU, its memory through a CUDA allocator.

    The profiler's memory events, in their order, after the weights; what an operator frees before it ends is
    the CPU kernel's own and left out.
    """
    from torch.profiler import ProfilerActivity, profile

    training = training_of(row, built(row))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(STEPS):
            training.step()
    recorded: Any = profiler.profiler
    weights = [*training.model.parameters(), *training.model.buffers()]
    events: List[Event] = [(("weight", at), tensor.nbytes) for at, tensor in enumerate(weights)]
    events += memory_events(recorded.kineto_results.experimental_event_tree())
    allocator = CachingAllocator()
    allocator.replay(events)
    stats = allocator.stats()
    return {"allocated_bytes": stats.peak_allocated, "reserved_bytes": stats.peak_reserved}


def memory_events(roots: List[Any]) -> List[Event]:
    """What a profiled run allocated and freed, without what operators had for themselves."""
    found: List[Tuple[int, int, int, int]] = []
    """(time, bytes, address, end of the outermost operator around it)"""

    def walk(event: Any, operator_end: int) -> None:
        tag, fields = event.typed
        if tag.name == "Allocation":
            found.append((event.start_time_ns, fields.alloc_size, fields.ptr, operator_end))
        elif tag.name == "TorchOp" and not operator_end:
            operator_end = event.end_time_ns
        for child in event.children:
            walk(child, operator_end)

    for root in roots:
        walk(root, 0)
    found.sort()
    events: List[Event] = []
    alive: Dict[int, Tuple[int, int]] = {}
    """Address → where its event is, and the end of its operator."""
    dropped: Set[int] = set()
    for time, size, address, operator_end in found:
        if size > 0:
            alive[address] = (len(events), operator_end)
            events.append((len(events), size))
        elif address in alive:  # others were allocated before the profile
            at, end = alive.pop(address)
            if time < end:
                dropped.add(at)
            events.append((at, FREE))
    return [event for event in events if event[0] not in dropped]


TOOLS: Dict[str, Callable[[Row], Answer]] = {
    "trace": trace,
    "veritas-est": veritas_est,
    "mem-tracker": mem_tracker,
    "fake-tensors": fake_tensors,
    "accelerate": accelerate,
}
