"""Find out which tool wrote a summary and hand the text to its parser."""

from __future__ import annotations

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.model import torchsummary
from slurm_gpumem.model.types import ModelSummary


def parse(text: str, *, origin: str) -> ModelSummary:
    """Parse the text of any known summary format; `origin` names it in messages."""
    lines = text.splitlines()
    if torchsummary.recognises(lines):
        return torchsummary.parse(lines, origin)
    raise SummaryError(f"{origin}: not a model summary that we know (torchsummary).")
