"""The steps of the recovery ladder as a configuration writes them: "need+25%", "+25%" or "whole-gpu"."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import ConfigError

WHOLE_GPU = "whole-gpu"
_MARGIN = re.compile(r"(need)?\+([0-9]{1,4})%")


class Step(NamedTuple):
    """One step of the ladder."""

    margin_percent: Optional[int]
    """On top of what it had or needed; None for a whole GPU."""
    by_need: bool = False
    """On top of what it is known to have needed only; twice its share where that is not known."""


def parse_ladder(words: Sequence[object]) -> Tuple[Step, ...]:
    """The steps of a configuration's list; ConfigError says what is wrong with it."""
    steps: List[Step] = []
    for word in words:
        match = _MARGIN.fullmatch(word) if isinstance(word, str) else None
        if match and int(match[2]) > 0:
            steps.append(Step(int(match[2]), bool(match[1])))
        elif word == WHOLE_GPU:
            steps.append(Step(None))
        else:
            raise ConfigError(
                f'{word!r} is no step of the recovery ladder; write "need+25%", "+25%" or "{WHOLE_GPU}"'
            )
    if any(step.margin_percent is None for step in steps[:-1]):
        raise ConfigError(f'after "{WHOLE_GPU}" there is nothing more to ask for: it must be the last step')
    return tuple(steps)
