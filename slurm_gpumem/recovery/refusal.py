"""Why a job is not run again."""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Why it stays as it is."""

    reason: str
