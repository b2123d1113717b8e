"""Call Slurm's commands: argument lists only, always with a time limit, errors by meaning."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Mapping, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")


class SlurmMissingError(SlurmError):
    """A Slurm command is not on the PATH."""


class SlurmUnreachableError(SlurmError):
    """The controller does not answer in time."""


def missing(command: str, error: OSError) -> SlurmMissingError:
    """The error for a command that could not be started."""
    reason = "not found on the PATH" if isinstance(error, FileNotFoundError) else str(error.strerror)
    return SlurmMissingError(f"{command}: {reason}; is this a login node of a Slurm cluster?")


def run(argv: Sequence[str], *, timeout_s: float = 3.0, env: Optional[Mapping[str, str]] = None) -> str:
    """The command's stdout; SlurmError when it is missing, too slow or unhappy."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
    except OSError as error:
        # Not only missing: a PATH with a plain file or a folder that may not be entered ends here too.
        raise missing(argv[0], error) from None
    except subprocess.TimeoutExpired:
        # Clients retry a missing controller for many seconds; waiting longer helps nobody.
        raise SlurmUnreachableError(
            f"{argv[0]}: no answer from the Slurm controller within {timeout_s:.0f} s; try `scontrol ping`"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        if "Could not establish a configuration source" in said:
            raise SlurmUnreachableError(
                f"{argv[0]}: finds no Slurm configuration on this machine; "
                "is this a login node? Else set SLURM_CONF to the cluster's slurm.conf."
            )
        raise SlurmError(f"{' '.join(argv[:2])}: {said}")
    return done.stdout.decode(errors="replace")


def slurm_version() -> Tuple[int, int, int]:
    """The version of the Slurm commands on the PATH, as (22, 5, 8)."""
    text = run(["sinfo", "--version"])
    match = _VERSION.search(text)
    if not match:
        raise SlurmError(f"sinfo --version: cannot read a version in {text.strip()!r}")
    return int(match[1]), int(match[2]), int(match[3])
