"""Jobs whose peak is not estimated: no GPU of theirs holds the whole model, as their owner or script says."""

from __future__ import annotations

import re

from slurm_gpumem.submission.submission import Submission
from slurm_gpumem.training_names import sharded, sharding

_WORDS = {
    "DeepSpeed": r"(?:^|[;&|]|\b(?:exec|srun\s.*))\s*deepspeed\s|--(?:use[-_])?deepspeed\b",
    "FSDP": r"--(?:use[-_])?fsdp\b",
    "Lightning's strategy": r"strategy[= ][\"']?(?:fsdp|deepspeed)",
    "tensor parallelism": r"--tensor[-_](?:model[-_])?parallel[-_]size[= ](?!1\b)",
    "pipeline parallelism": r"--pipeline[-_](?:model[-_])?parallel[-_]size[= ](?!1\b)",
}
"""How launchers and training scripts are told to shard a model."""


def why_not_estimated(asked: Submission) -> str:
    """Why the job keeps whole GPUs without an estimate; "" where it is estimated, or its memory is given."""
    if asked.not_estimated:
        return asked.not_estimated
    if asked.settings.model is None and not asked.trace:
        return ""
    stated = asked.settings.text("strategy")
    if stated:
        by = sharding(stated)
        return sharded(by) if by else ""

    for where, line in asked.commands:
        for by, words in _WORDS.items():
            if re.search(words, line):
                return sharded(f"{by}: {where.rstrip(':')}")
    return ""
