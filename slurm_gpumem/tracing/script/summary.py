"""From what a script's recorder saw to a summary with a trace."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Protocol, Tuple

import torch
from torch.nn.parameter import is_lazy

from slurm_gpumem.summaries.trace_types import PARAMETER, Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.text import clipped, count
from slurm_gpumem.tracing.cuda.kernels import assembled
from slurm_gpumem.tracing.engine.assemble import precision_of, site_of, torch_version
from slurm_gpumem.tracing.engine.module_stack import own_parameters
from slurm_gpumem.tracing.follow import evaluations
from slurm_gpumem.tracing.follow.enough_steps import ENOUGH_STEPS, Steps
from slurm_gpumem.tracing.follow.fast_forward import FastForward
from slurm_gpumem.tracing.follow.loop_skipper import Rounds
from slurm_gpumem.tracing.script.ending import Ending
from slurm_gpumem.tracing.script.hints import LONGER, MEASURED
from slurm_gpumem.tracing.script.inference import TRAINING, Inference
from slurm_gpumem.tracing.script.report_folder import Report
from slurm_gpumem.tracing.script.script_places import Root, ScriptPlaces
from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

_REASON = 200
"""Letters of an error in a warning."""
_TWO = 2
"""Steps after which an optimizer's states were there from beginning to end of one."""


class Seen(Protocol):
    """Everything that was at work in the traced process."""

    report: Report
    places: ScriptPlaces
    recorder: ScriptRecorder
    steps: Steps
    inference: Inference
    skips: FastForward
    rounds: Rounds
    ending: Ending

    @property
    def seeded(self) -> bool: ...


def summary_of(tracer: Seen) -> Tuple[ModelSummary, Dict[str, Any]]:
    """The summary, and facts about how it came to be."""
    recorder, steps, places = tracer.recorder, tracer.steps, tracer.places
    root = places.main_root()
    job = _job(tracer, root)
    for one in places.roots.values():
        name_parameters(recorder, one)
    if tracer.ending.came_to_its_end:
        _keep_the_model(recorder)
    trace = _trace(recorder, job)
    all_run = not steps.fast_forward and not tracer.rounds.left_out
    unfinished = _seen_until_the_end(tracer)
    finished = tracer.ending.came_to_its_end and all_run
    varied = tracer.skips.varies and not (finished and tracer.seeded)
    trace = trace._replace(finished=finished, unfinished=unfinished, varied=varied)
    if root is not None:
        root.measure()
    summary = ModelSummary(
        format="gpumem",
        layers=places.layers(),
        name="script" if root is None else root.kind,
        batch=job.batch,
        input_shapes=() if root is None or not root.inputs else root.inputs,
        total_params=0 if root is None else root.parameters,
        trainable_params=0 if root is None else root.trainable,
        trace=trace,
        warnings=_warnings(tracer, trace),
    )
    facts = {
        "kind": TRAINING,
        "steps": sum(steps.counts.values()),
        "cycles": recorder.cycles,
        "optimizers": steps.kinds,
        "phases": sorted(steps.phases_seen),
        "events": len(recorder.events),
        "dropped": recorder.dropped,
        "peak_bytes": recorder.peak_bytes,
        "grown_bytes": recorder.grown_bytes,
        "guessed": recorder.guess.used,
        "on_gpu": any(site.category != "workspace" for site in trace.sites),
        "ended": tracer.ending.came_to_its_end,
        "unfinished": unfinished,
        "left_out": tracer.rounds.left_out,
    }
    if not steps.counts:
        facts.update(tracer.inference.facts())
    return summary, facts


def _seen_until_the_end(tracer: Seen) -> str:
    """How much of the training was seen where the script's end was not; "" where it was."""
    if tracer.ending.came_to_its_end or not tracer.steps.counts:
        return ""
    steps = count(tracer.steps.taken, "optimizer step")
    return tracer.rounds.seen() or f"{steps} of a number that its code does not tell"


def name_parameters(recorder: ScriptRecorder, root: Root) -> None:
    """Mark the blocks that hold parameters, with their layers: a script makes them before its model runs."""
    if root.module is None:
        return
    for name, module in root.module.named_modules():
        for parameter in own_parameters(module):
            block = None if is_lazy(parameter) else recorder.block_of(parameter)
            if block is not None and block.operator != PARAMETER:
                block.operator, block.module = PARAMETER, root.prefix + name


def _keep_the_model(recorder: ScriptRecorder) -> None:
    """Leave out that all is let go at the end of a function that trains: what is kept is the model's."""
    events, at = recorder.events, len(recorder.events)
    first = at
    while at and events[at - 1] < 0:
        at -= 1
        block = recorder.blocks[~events[at]]
        if block.operator == PARAMETER or block.category == "optimizer":
            first = at
    del events[first:]


def _warnings(tracer: Seen, trace: Trace) -> Tuple[str, ...]:
    recorder, steps = tracer.recorder, tracer.steps
    found = [*recorder.warnings]
    if steps.cut_off and recorder.cycles < _TWO:
        found.append(
            "the time limit came after the first optimizer step: the next, with the optimizer's states, may "
            f"need more. {LONGER}"
        )
    elif steps.still_growing:
        found.append(
            f"the time limit came while memory was still growing: the job needs more than this. {LONGER}"
        )
    elif steps.growing and not tracer.ending.came_to_its_end:
        found.append(
            "memory was still growing from step to step when the trace ended: the job needs more than this. "
            f"{LONGER}, or {MEASURED}"
        )
    if trace.unfinished:
        why, more = "", f"{LONGER}, or {MEASURED}"
        if tracer.ending.failure:
            why = f", in an error ({clipped('; '.join(tracer.ending.failure.splitlines()), _REASON)})"
            more = MEASURED.capitalize()
        found.append(
            f"the trace ended before the script did{why}: seen were {trace.unfinished}. What comes later may "
            f"need more; the request has a margin for that. {more}"
        )
    elif recorder.cycles < ENOUGH_STEPS and (recorder.guess.numbers or recorder.guess.used):
        found.append(
            f"it ended itself after {count(recorder.cycles, 'step')} of training. A trace has no scores and "
            "no losses: if one decides that, the job trains longer, and what comes later was not seen. "
            f"{MEASURED.capitalize()}"
        )
    if tracer.skips.misses_more:
        found.append(
            "its last step did more than those before it and was not followed as a whole: the job may need "
            f"more. {LONGER}, or {MEASURED}"
        )
    if tracer.rounds.collects:
        found.append(
            "each round of its loop keeps something on the GPU, and rounds were left out of the trace: the "
            f"job needs more than this. {MEASURED.capitalize()}"
        )
    if not tracer.ending.came_to_its_end:
        found += evaluations.not_reached(steps.evaluating)
    if trace.varied:
        found.append(
            "its batches have many shapes: how much PyTorch keeps of them depends on their order. The "
            "request has a margin for that, which PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True saves"
        )
    return tuple(found)


def _job(tracer: Seen, root: Optional[Root]) -> TracedJob:
    steps = tracer.steps
    half = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    autocast = steps.autocast or tracer.recorder.half_of_weights()  # on around the model, or inside of it
    if autocast is not None:
        precision = f"amp-{half.get(autocast, 'bf16')}"
    else:
        precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
        if root is not None and root.module is not None:
            precision = precision_of(root.module, precision)
    return TracedJob(
        batch=_batch(root),
        optimizer=steps.first_name,
        precision=precision,
        grad_accumulation=steps.accumulation,
        checkpointing=steps.checkpointing,
        evaluate="evaluate" in steps.phases_seen,
        loss="script",
        torch=torch_version(),
        ranks=tracer.report.ranks,
    )


def _batch(root: Optional[Root]) -> int:
    """The first dimension of the model's first input."""
    for shape in (root.inputs or ()) if root is not None else ():
        if shape:
            return max(1, int(shape[0]))
    return 1


def _trace(recorder: ScriptRecorder, job: TracedJob) -> Trace:
    sites: Dict[Site, int] = {}
    events: List[int] = []
    allocated = 0
    for event in recorder.events:
        if event < 0:
            events.append(~event - allocated)
        else:
            site = site_of(recorder.blocks[event], None, None)
            events.append(sites.setdefault(site, len(sites)))
            allocated += 1
    # After the last whole step there may be a beginning of another, or data for an evaluation.
    whole = [step for step in recorder.kernels.by_step if step <= recorder.cycles]
    last = max(whole or recorder.kernels.by_step, default=0)
    kernels = {last: recorder.kernels.by_step[last]} if last else {}
    return Trace(
        job=job,
        way="meta",
        sites=tuple(sites),
        events=tuple(events),
        phases=tuple(Phase(*phase) for phase in recorder.phases if phase[0] < len(recorder.events)),
        scalable=False,
        uses_conv=recorder.uses_conv,
        uses_matmul=recorder.uses_matmul,
        benchmark=recorder.uses_conv and bool(torch.backends.cudnn.benchmark),
        remarks=tuple(recorder.remarks),
        kernels=assembled(kernels, [job.batch] * last),
        emptied=tuple(at for at in recorder.emptied if at < len(events)),
    )
