"""One training job of a network: what to build, what to feed it, and how it is trained.

In a list of `lab.scripts` it is the table `job` of an entry:

    job = { source = "timm", family = "cnn", build = "resnet50", task = "image", size = 224, batch = 32,
            optimizer = "adam", precision = "fp32" }

and, where they are needed, `args` (of the constructor), `task_args`, `toggles`, `steps`, and for a class of a
public repository `repository` and `commit` (`repositories.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping

from lab.networks.entries import SOURCES, Entry, place
from slurm_gpumem.errors import ConfigError

STEPS = 5
"""Enough for the peak to be stable."""
_NEEDED = ("source", "family", "build", "task", "size", "batch", "optimizer", "precision")
_OPTIONAL = ("name", "args", "task_args", "toggles", "steps", "repository", "commit")


@dataclass(frozen=True)
class Job:
    """One training run."""

    entry: Entry
    size: int
    batch: int
    optimizer: str
    precision: str
    toggles: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS

    @property
    def key(self) -> str:
        """What makes two runs the same run."""
        toggles = "".join(f"+{k}={v}" for k, v in sorted(self.toggles.items()))
        return f"{self.summary_key}/b{self.batch}/{self.optimizer}/{self.precision}{toggles}"

    @property
    def summary_key(self) -> str:
        """Which summary texts belong to the run."""
        return f"{self.entry.id}@{self.size}"

    def as_row(self) -> Dict[str, Any]:
        """What a measured row says about the job itself."""
        return {
            "key": self.key,
            "summary": self.summary_key,
            **self.entry.as_row(),
            "size": self.size,
            "batch": self.batch,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "toggles": dict(self.toggles),
        }


def job_of(table: Mapping[str, Any]) -> Job:
    """The job that a table describes; ConfigError says what it lacks."""
    missing = [name for name in _NEEDED if name not in table]
    unknown = sorted(set(table) - {*_NEEDED, *_OPTIONAL})
    if missing or unknown or table["source"] not in SOURCES:
        wrong = f"lacks {missing[0]}" if missing else f"has an unknown key {unknown[0]}" if unknown else ""
        sources = f"source is not one of {', '.join(SOURCES)}"
        raise ConfigError(f"job {dict(table)}: {wrong or sources}")
    entry = Entry(
        id=f"{table['source']}/{table.get('name', table['build'])}",
        source=table["source"],
        family=table["family"],
        build=place(table) + table["build"],
        task=table["task"],
        args=table.get("args", {}),
        task_args=table.get("task_args", {}),
    )
    return Job(
        entry,
        table["size"],
        table["batch"],
        table["optimizer"],
        table["precision"],
        table.get("toggles", {}),
        table.get("steps", STEPS),
    )
