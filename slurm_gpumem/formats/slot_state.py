"""The slot state, `gpumem-slot/1`: what a program says of its checkpoints, in its job's slot folder.

The adapters write it, the task epilog reads it; both run as the job's user. Beside it lies a link, `latest`,
to the last whole checkpoint: the task prolog names what it leads to in GPUMEM_RESUME_FILE.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Optional

from slurm_gpumem.files import read_json_of, write_json
from slurm_gpumem.formats.values import whole

SCHEMA = "gpumem-slot/1"
FILE_NAME, LATEST = "state.json", "latest"
FOLDER_VARIABLE = "GPUMEM_SLOT_DIR"
_MOST_BYTES = 4096


class SlotState(NamedTuple):
    """What one run of a job has saved so far."""

    run: int
    """As Slurm counts restarts."""
    step: int = 0
    """Steps that the last checkpoint holds."""
    save_s: int = 0
    """Seconds that the longest save took, from when the program was told; rounded up."""
    ended: bool = False
    """Whether the program has saved and ended for its slot: it wants to go on."""


def read_slot_state(folder: Path) -> Optional[SlotState]:
    """The state in a folder of our own; None without one that can be used."""
    table = read_json_of(folder / FILE_NAME, owners=(os.geteuid(),), most_bytes=_MOST_BYTES)
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        return None
    run, step, save_s = (whole(table.get(key)) for key in ("run", "step", "save_s"))
    return None if run is None else SlotState(run, step or 0, save_s or 0, table.get("ended") is True)


def write_slot_state(folder: Path, state: SlotState) -> None:
    """Write it whole."""
    write_json(folder / FILE_NAME, {"schema": SCHEMA, **state._asdict()}, durable=True)
