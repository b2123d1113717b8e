"""Every error a user can meet: what was wrong, where, and how to mend it.

The command line prints `str(error)` behind "gpumem: " and exits with `exit_code`;
no traceback reaches a user.
"""

from __future__ import annotations

_ALL_SHOWN, _SHOWN = 12, 6
"""Up to the first number all names are listed; of more than that, the second number of near ones."""


class GpumemError(Exception):
    """Base of all errors that are the input's or the site's, not a bug of ours."""

    exit_code = 2


class UsageError(GpumemError):
    """An option, a directive or a configuration value is wrong."""


class SummaryError(GpumemError):
    """The model summary cannot be read or is not one."""


class TargetError(GpumemError):
    """The code that builds a model cannot be found, loaded or traced as it is."""


class UnknownNameError(UsageError):
    """A name (optimizer, GPU, estimator ...) is not known; carries the nearest one."""

    def __init__(self, what: str, given: str, known: list[str]) -> None:
        import difflib

        near = difflib.get_close_matches(given.lower(), known, n=_SHOWN, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        listed = "known" if not near or len(known) <= _ALL_SHOWN else f"nearest of {len(known)} known"
        names = known if listed == "known" else near
        super().__init__(f"unknown {what} {given!r}; {hint}{listed}: {', '.join(names)}")


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


class NotLearnedError(GpumemError):
    """The answer is no: a site's jobs teach nothing (yet) that is better than what is in force."""

    exit_code = 1


class CalibrationError(GpumemError):
    """The GPU cannot be measured here."""

    exit_code = 1
