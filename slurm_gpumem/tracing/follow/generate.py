"""Generation by a Hugging Face model without a script: from its configuration, with random weights.

trace_generation (parent) → script.run → main (in the traced process)
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Mapping, Optional

from slurm_gpumem.tracing.fake_cuda.gpu_facts import ANY_GPU
from slurm_gpumem.tracing.script.messages import State
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command

_START = "import torch; from slurm_gpumem.tracing.follow.generate import main; main()"


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
    command = [python or sys.executable, "-c", _START, json.dumps(asdict(asked))]
    name = f"hf:{asked.place} --generate {asked.new_tokens}"
    return trace_command(command, limits, gpu=ANY_GPU, progress=progress, name=name)


def main() -> None:
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
