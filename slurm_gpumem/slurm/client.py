"""Ask Slurm: argument lists only, always with a time limit, errors by meaning.

The other modules of this room put questions through a `SlurmClient` and read the answers. `Commands`, the
Slurm programs themselves, is the client that works everywhere and the default.
"""

from __future__ import annotations

import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Dict, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from slurm_gpumem.errors import SlurmError

if TYPE_CHECKING:
    import subprocess

Version = Tuple[int, int, int]


class SlurmMissingError(SlurmError):
    """A Slurm command is not on the PATH."""


class SlurmUnreachableError(SlurmError):
    """The controller does not answer in time."""


class SlurmClient(Protocol):
    """Whoever answers Slurm's commands: the programs, or recorded text in a test."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 3.0) -> str:
        """The command's stdout; SlurmError when it is missing, too slow or unhappy."""


class Commands(NamedTuple):
    """Slurm's own programs."""

    env: Mapping[str, str] = MappingProxyType({})
    """Added to our environment, e.g. SLURM_CONF."""
    folder: Optional[Union[str, os.PathLike[str]]] = None
    """Where the programs are, when that is not on the PATH."""

    @property
    def environment(self) -> Dict[str, str]:
        """What the programs run with."""
        # Else squeue cuts the tasks of an array after 64 characters, and says nothing.
        merged = {**os.environ, "SLURM_BITSTR_LEN": "0", **self.env}
        if self.folder is not None:
            merged["PATH"] = f"{os.fspath(self.folder)}:{merged.get('PATH', os.defpath)}"
        return merged

    def run(self, argv: Sequence[str], *, timeout_s: float = 3.0) -> str:
        # Imported late: a submission whose answers are in the cache runs nothing but sbatch.
        import subprocess

        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                env=self.environment,
                check=False,
            )
        except OSError as error:
            # Not only missing: a PATH with a plain file or a folder that may not be entered ends here too.
            raise missing(argv[0], error) from None
        except subprocess.TimeoutExpired:
            # Clients retry a missing controller for many seconds; waiting longer helps nobody.
            raise SlurmUnreachableError(
                f"{argv[0]}: no answer from the Slurm controller within {timeout_s:.0f} s; "
                "try `scontrol ping`"
            ) from None
        if done.returncode != 0:
            raise _refused(argv, done.returncode, done.stderr.decode(errors="replace").strip())
        return os.fsdecode(done.stdout)

    def start(self, argv: Sequence[str], *, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it; SlurmError when it cannot be started."""
        import subprocess

        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.environment,
            )
        except OSError as error:
            raise missing(argv[0], error) from None


COMMANDS = Commands()


def missing(command: str, error: OSError) -> SlurmMissingError:
    """The error for a command that could not be started."""
    reason = "not found on the PATH" if isinstance(error, FileNotFoundError) else str(error.strerror)
    return SlurmMissingError(f"{command}: {reason}; is this a login node of a Slurm cluster?")


def parse_version(text: str) -> Version:
    """(22, 5, 8) of "slurm 22.05.8"; SlurmError when there is no version in it."""
    match = re.search(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})", text)
    if not match:
        raise SlurmError(f"no Slurm version in {text.strip()[:80]!r}")
    return int(match[1]), int(match[2]), int(match[3])


def slurm_version(client: SlurmClient = COMMANDS) -> Version:
    """The version of Slurm's commands."""
    return parse_version(client.run(["sinfo", "--version"]))


def _refused(argv: Sequence[str], code: int, stderr: str) -> SlurmError:
    said = stderr or f"exit code {code}"
    if "Could not establish a configuration source" in said:
        return SlurmUnreachableError(
            f"{argv[0]}: finds no Slurm configuration on this machine; "
            "is this a login node? Else set SLURM_CONF to the cluster's slurm.conf"
        )
    return SlurmError(f"{' '.join(argv[:2])}: {said}")
