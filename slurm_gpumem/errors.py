"""Every error a user can meet: what was wrong, where, and how to fix it.

The command line prints `str(error)` behind "gpumem: " and exits with `exit_code`;
no traceback reaches a user.
"""

from __future__ import annotations

_ALL_SHOWN, _SHOWN = 12, 3
"""Up to the first number all names are listed; of near ones at most the second number."""


class GpumemError(Exception):
    """Base of all errors that are the input's or the site's, not a bug in gpumem."""

    exit_code = 2


class UsageError(GpumemError):
    """An option, a directive or a configuration value is wrong."""


class SummaryError(GpumemError):
    """The model summary cannot be read or is not one."""


class TargetError(GpumemError):
    """The code that builds a model cannot be found, loaded or traced as it is."""


class NotEstimatedError(GpumemError):
    """The answer is no: a training whose peak no rule and no trace of one process gives."""

    exit_code = 1

    def __init__(self, why: str, subject: str = "") -> None:
        self.why = why
        """ "it shards its model over GPUs (FSDP)"."""
        super().__init__(f"{subject}: {not_estimated(why)}" if subject else not_estimated(why))


def not_estimated(why: str) -> str:
    """The whole sentence, for errors and for a job that is submitted as it is."""
    return f"{why}: its peak is not estimated; it keeps whole GPUs"


class UnknownNameError(UsageError):
    """A name (optimizer, GPU, estimator ...) is not known; carries those that are near."""

    def __init__(self, what: str, given: str, known: list[str]) -> None:
        from slurm_gpumem.text import near_names

        near = near_names(given, known)[:_SHOWN]
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
        listed = f"known: {', '.join(known)}" if not near or len(known) <= _ALL_SHOWN else ""
        super().__init__(f"unknown {what} {given!r}; {hint}{' ' if hint and listed else ''}{listed}")


class ConfigError(GpumemError):
    """A configuration file cannot be used."""


class SlurmError(GpumemError):
    """Slurm is missing, does not answer, or said something we do not understand."""


class DoesNotFitError(GpumemError):
    """The answer is no: the job needs more memory than a GPU in reach has."""

    exit_code = 1


class AccountingError(GpumemError):
    """The job records or their index cannot be read or written."""


class DevClusterError(GpumemError):
    """The dev cluster cannot be started, found or stopped."""

    exit_code = 1


class CalibrationError(GpumemError):
    """The GPU cannot be measured here."""

    exit_code = 1
