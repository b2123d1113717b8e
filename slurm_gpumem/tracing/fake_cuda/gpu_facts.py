"""What a script may ask of the GPU that it is traced for, as the traced process gets it."""

from __future__ import annotations

import json
from typing import NamedTuple, Tuple

_GIB = 1 << 30


class GpuFacts(NamedTuple):
    """Answers to torch.cuda's questions."""

    name: str = "NVIDIA H100"
    memory_bytes: int = 80 * _GIB
    capability: Tuple[int, int] = (9, 0)
    sms: int = 132
    gpus: int = 1
    """On the node."""

    def to_json(self) -> str:
        """As an environment variable holds it."""
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> GpuFacts:
        """Read back; the defaults where there is nothing."""
        if not text:
            return cls()
        name, memory, capability, sms, gpus = json.loads(text)
        return cls(str(name), int(memory), (int(capability[0]), int(capability[1])), int(sms), int(gpus))


ANY_GPU = GpuFacts(memory_bytes=1 << 50)
"""How much is needed is the question; no GPU is too small for the answer."""
