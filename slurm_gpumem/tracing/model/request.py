"""From what a user writes to what the traced process is told: names or code, shapes, well-known models."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import TargetError, UnknownNameError
from slurm_gpumem.tracing.fake_cuda.gpu_facts import ANY_GPU
from slurm_gpumem.tracing.model import outline
from slurm_gpumem.tracing.model.spec import (
    BATCH,
    FILE,
    HUGGING_FACE,
    TIMM,
    InputSpec,
    Target,
    TraceRequest,
    looks_like_file,
    parse_input,
    parse_target,
)
from slurm_gpumem.tracing.script.messages import State
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from slurm_gpumem.training_names import plain_name

HUB_NAMES = "hub-names.json"
"""In models/: well-known Hugging Face names, each as a class and its sizes."""
_ENDINGS = ("-uncased", "-cased", "-hf", "-base")
BY_CODE = "callable"
"""The name of an optimizer or a loss that is the user's own code."""
# The user's folder must not come before the standard library while torch is imported.
_START = (
    "import sys; del sys.path[0]; import torch; from slurm_gpumem.tracing.model.training import main; main()"
)


def is_code(text: str) -> bool:
    """Whether an argument names code to trace rather than a summary's file."""
    place, colon, _ = text.rpartition(":")
    if text.startswith((f"{HUGGING_FACE}:", f"{TIMM}:")):
        return True
    if os.path.isfile(text):
        return text.endswith(".py")
    named = bool(colon and place) and (looks_like_file(place) or "/" not in text)
    return named or text.endswith(".py")


def name_or_code(text: str, known: Sequence[str], what: str) -> Tuple[str, Optional[Target]]:
    """One of the known names however it is written, or BY_CODE and the code."""
    name = plain_name(text, what)
    if name in known:
        return name, None
    if ":" in text:
        return BY_CODE, parse_target(text)
    raise UnknownNameError(what, text, list(known))


def one_of(text: str, known: Sequence[str], what: str) -> str:
    """One of the known names however it is written."""
    name = plain_name(text, what)
    if name not in known:
        raise UnknownNameError(what, name, list(known))
    return name


def with_dtype(one: InputSpec, dtype: str) -> InputSpec:
    """An input that names no type of its own gets this one."""
    return one if one.dtype else InputSpec(one.sizes, one.name, dtype)


def compared_with(text: Optional[str]) -> Optional[InputSpec]:
    """What the loss compares the output with; a "scalar" is one number a sample."""
    if text is None:
        return None
    return InputSpec((BATCH,)) if text in ("", "scalar") else parse_input(text)


def well_known(target: Target) -> Target:
    """A well-known Hugging Face name ("gpt2-medium") as its class and sizes; others stay as they are."""
    if target.kind != HUGGING_FACE or target.place.endswith(".json"):
        return target
    found = known_model(target.place)
    if found is None:
        return target
    name, sizes = found
    return Target(HUGGING_FACE, name, "", {**sizes, **target.arguments})


def known_model(name: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    """(class, configuration fields) of a name like "bert-large-uncased" or "gpt2-medium"; None if unknown."""
    plain = name.split("/")[-1].lower()
    models = json.loads(data_path("models", HUB_NAMES).read_text())
    for known in (plain, *(plain[: -len(end)] for end in _ENDINGS if plain.endswith(end))):
        if known in models:
            built, fields = models[known]
            return built, fields
    return None


def trace_code(
    request: TraceRequest,
    limits: Limits,
    *,
    python: Optional[str] = None,
    progress: Callable[[State, float], None] = lambda state, seconds: None,
) -> TracedScript:
    """Trace a training of it; slips in names are told at once, not after torch is imported."""
    _check_files(request)
    if python is None:
        _need_torch()
    command = [python or sys.executable, "-c", _START, request.to_json()]
    return trace_command(command, limits, gpu=ANY_GPU, progress=progress, name=request.target.label)


def _check_files(request: TraceRequest) -> None:
    target = request.target
    if target.kind == FILE:
        path = Path(target.place)
        outline.check(path, target.attribute or outline.choose(path, path.name), target.arguments)
    for other in (request.batch_callable, request.step_callable, request.loss_callable):
        if other is not None and other.kind == FILE:
            outline.outline(Path(other.place))


def _need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise TargetError(
            "tracing a model needs PyTorch, which is not installed for this Python.\n"
            "pip install torch, or name your environment's: --python ~/env/bin/python"
        )


# Generation by a Hugging Face model without a script: from its configuration, with random weights.
#
# trace_generation (parent) → script.run → main (in the traced process)


_GENERATE = "import torch; from slurm_gpumem.tracing.model.request import generate; generate()"


@dataclass(frozen=True)
class Generation:
    """What is asked of the model."""

    place: str
    """A class, a model type or a config.json."""
    arguments: Mapping[str, Any]
    head: str
    batch: int
    prompt: int
    new_tokens: int
    half: bool
    """Weights and cache in bf16, else in fp32."""


def trace_generation(
    asked: Generation,
    limits: Limits,
    python: Optional[str] = None,
    progress: Callable[[State, float], None] = lambda state, seconds: None,
) -> TracedScript:
    """Trace it in a process of its own; TargetError says what went wrong."""
    command = [python or sys.executable, "-c", _GENERATE, json.dumps(asdict(asked))]
    name = f"hf:{asked.place} --generate {asked.new_tokens}"
    return trace_command(command, limits, gpu=ANY_GPU, progress=progress, name=name)


def generate() -> None:
    """In the traced process: what a script that generates would do."""
    import torch

    from slurm_gpumem.errors import TargetError
    from slurm_gpumem.tracing.model.hub import build_hugging_face

    values: Dict[str, Any] = json.loads(sys.argv[1])
    asked = Generation(**values)
    if asked.half:
        torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model, _ = build_hugging_face(asked.place, asked.arguments, asked.head)
    torch.set_default_dtype(torch.float32)
    if not hasattr(model, "generate"):
        raise TargetError(
            f"{type(model).__name__} does not generate; name a head that does: --head causal-lm"
        )
    prompt = torch.ones((asked.batch, asked.prompt), dtype=torch.long).cuda()
    with torch.no_grad():
        model.eval().generate(
            prompt, max_new_tokens=asked.new_tokens, do_sample=False, use_cache=True, pad_token_id=0
        )
