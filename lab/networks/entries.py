"""Read the catalogue: models of libraries, and how to build and feed each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from lab.places import CATALOGUE
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.toml_file import load_toml

SOURCES = ("torchvision", "timm", "transformers", "repository")


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue; with a size it can be built and fed."""

    id: str
    source: str
    family: str
    build: str
    """The source's own name for the model: a timm name, a transformers class,
    or a class of a public repository (`repositories.py`)."""
    task: str
    args: Mapping[str, Any] = field(default_factory=dict)
    task_args: Mapping[str, Any] = field(default_factory=dict)
    sizes: Tuple[int, ...] = (224,)
    """Image sides, sequence lengths and so on that the model takes; the first is its usual one."""

    def as_row(self) -> Dict[str, Any]:
        """The fields that let anyone build the same model again."""
        return {
            "model": self.id,
            "source": self.source,
            "family": self.family,
            "build": self.build,
            "args": dict(self.args),
            "task": self.task,
            "task_args": dict(self.task_args),
        }


def load_catalogue(names: Optional[List[str]] = None) -> List[Entry]:
    """All entries of the named catalogue files (all files when None), in file order."""
    paths = sorted(CATALOGUE.glob("*.toml")) if names is None else [CATALOGUE / f"{n}.toml" for n in names]
    entries = [entry for path in paths for entry in _read(path)]
    seen: Dict[str, Entry] = {}
    for entry in entries:
        if entry.id in seen:
            raise ConfigError(f"catalogue: {entry.id} is listed twice")
        seen[entry.id] = entry
    return entries


def place(group: Mapping[str, Any]) -> str:
    """Where a class of a public repository is; "" for other sources."""
    return f"{group['repository']}@{group['commit']}:" if group["source"] == "repository" else ""


def _read(path: Path) -> List[Entry]:
    entries = []
    for group in load_toml(path).get("group", []):
        source = group.get("source", "")
        if source not in SOURCES:
            raise ConfigError(f"{path}: source {source!r} is not one of {', '.join(SOURCES)}")
        models: Dict[str, Dict[str, Any]] = {name: {} for name in group.get("names", [])}
        models.update(group.get("models", {}))
        for name, own in models.items():
            merged = {**group, **own}
            try:
                entries.append(
                    Entry(
                        id=f"{source}/{name}",
                        source=source,
                        family=merged["family"],
                        build=place(group) + merged.get("build", name),
                        task=merged["task"],
                        args={**group.get("args", {}), **own.get("args", {})},
                        task_args={**group.get("task_args", {}), **own.get("task_args", {})},
                        sizes=tuple(merged["sizes"]),
                    )
                )
            except KeyError as error:
                raise ConfigError(f"{path}: {source}/{name} lacks {error}") from None
    return entries
