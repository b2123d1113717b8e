"""Say what a text is that is no model summary, and how to make one."""

from __future__ import annotations

import re
from typing import List, Optional

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.formats import FORMATS, is_keras

HOW = "Make one with: print(torchinfo.summary(model, input_size=(1, 3, 224, 224), depth=20))"

HOW_FROM_CODE = (
    "Make one with: gpumem summarize {file}:build_model --input 3,224,224 --batch-size 128 -o summary.json"
)
PYTHON = "Python code"

_LOOKS = (
    (r"Traceback \(most recent call last\)", "an error traceback"),
    (
        r"#!\s*\S*python|import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|@\w|if __name__|\"\"\"|'''",
        PYTHON,
    ),
    (r"#!\s*\S*/(?:env )?(?:ba|z|da|k)?sh\b|#SBATCH", "a shell script"),
    (r"OrderedDict\(|\{'[\w.]+': tensor\(|tensor\(", "a printed state_dict"),
    (r"[{\[]\s*(?:$|[\"{\[])", "JSON"),
    (r"<(?:!DOCTYPE|html|\?xml)", "HTML or XML"),
)
_CHECKPOINTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x89HDF", b"GGUF")


def refuse(lines: List[str], origin: str) -> SummaryError:
    """Build the error for a text in which no parser found a model."""
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return SummaryError(f"{origin}: is empty.\n{HOW}")
    what = _looks_like(lines[first])
    if what:
        how = HOW_FROM_CODE.format(file=origin) if what == PYTHON else HOW
        return SummaryError(f"{origin}: line {first + 1} looks like {what}, not a model summary.\n{how}")
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            return SummaryError(
                f"{origin}: line {number + 1} is an error traceback: the summary was not printed.\n{HOW}"
            )
    if is_keras("", lines):
        return SummaryError(
            f"{origin}: a Keras summary: estimates are for PyTorch. Say what the job needs: --gpu-mem 12G"
        )
    known = ", ".join(row.name for row in FORMATS if row.detect)
    return SummaryError(f"{origin}: not a model summary that we know ({known}).\n{HOW}")


def _looks_like(line: str) -> Optional[str]:
    text = line.strip()[:200]
    for pattern, what in _LOOKS:
        if re.match(pattern, text):
            return what
    return None


def binary_kind(data: bytes) -> str:
    """Name a binary file by its first bytes."""
    if data.startswith(_CHECKPOINTS) or data[8:10] == b'{"':
        return "a checkpoint (the weights, not the summary)"
    return "a binary file, not a model summary"
