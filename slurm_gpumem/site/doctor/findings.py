"""What a check found, and the diagnosis of all checks together, as Nagios and people read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Collection, Dict, List, Sequence, Tuple

from slurm_gpumem.text import printable

SCHEMA = "gpumem-doctor/1"


class Severity(IntEnum):
    """How bad it is; the value is the exit code, as Nagios wants it."""

    NOTE = -1
    """Good to know; does not change the diagnosis."""
    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    check: str
    what: str
    why: str
    fix: str

    def lines(self) -> List[str]:
        """The finding for people: what and why, then how to fix it."""
        problem = f"{self.severity.name.lower()} {self.check}: {self.what}; {self.why}"
        return [_plain(problem), _plain(f"    fix: {self.fix}")]


def critical(check: str, what: str, why: str, fix: str) -> Finding:
    """GPUs are not shared, or jobs are at risk."""
    return Finding(Severity.CRITICAL, check, what, why, fix)


def warning(check: str, what: str, why: str, fix: str) -> Finding:
    """Something does not work as it should."""
    return Finding(Severity.WARNING, check, what, why, fix)


def note(check: str, what: str, why: str, fix: str) -> Finding:
    """Good to know."""
    return Finding(Severity.NOTE, check, what, why, fix)


@dataclass(frozen=True)
class Diagnosis:
    """All findings, worst first."""

    findings: Tuple[Finding, ...]
    version: str
    """Slurm's version; "" when the controller does not answer."""
    host: str = ""
    """What this host has, where only that was looked at."""

    def without(self, checks: Collection[str]) -> Diagnosis:
        """The diagnosis as if these checks had found nothing."""
        return replace(self, findings=tuple(f for f in self.findings if f.check not in checks))

    @property
    def severity(self) -> Severity:
        """The worst that was found; what is unknown does not hide what is critical."""
        found = {finding.severity for finding in self.findings}
        order = (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN)
        return next((severity for severity in order if severity in found), Severity.OK)

    @property
    def status(self) -> str:
        """The diagnosis in one line."""
        counts = [
            f"{count} {severity.name.lower()}{'s' if severity is Severity.WARNING and count > 1 else ''}"
            for severity in (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN)
            for count in [sum(f.severity is severity for f in self.findings)]
            if count
        ]
        head = f"GPUMEM {self.severity.name}"
        where = self.host or (f"Slurm {self.version}" if self.version else "Slurm does not answer")
        if not counts:
            well = "this host is as it should be" if self.host else "GPUs are shared as they should be"
            return f"{head} - {where}: {well}"
        worst = next(f for f in self.findings if f.severity is self.severity)
        return _plain(f"{head} - {where}: {', '.join(counts)} - {worst.what}")

    def text(self) -> str:
        """The status line and two lines for each finding."""
        return "\n".join([self.status, *(line for finding in self.findings for line in finding.lines())])

    def as_json(self) -> Dict[str, Any]:
        """The same for programs."""
        return {
            "schema": SCHEMA,
            "status": self.severity.name.lower(),
            "exit_code": int(self.severity),
            "summary": self.status,
            "slurm_version": self.version or None,
            "findings": [
                {**vars(finding), "severity": finding.severity.name.lower()} for finding in self.findings
            ],
        }


def _plain(text: str) -> str:
    """One line without what steers a terminal, and without "|", behind which Nagios expects figures."""
    return printable(text.replace("|", "/").replace("\n", " "))


def diagnose(findings: Sequence[Finding], version: str) -> Diagnosis:
    """The diagnosis of these findings."""
    order: List[Severity] = [Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.NOTE]
    return Diagnosis(tuple(sorted(findings, key=lambda finding: order.index(finding.severity))), version)
