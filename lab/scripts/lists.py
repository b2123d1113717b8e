"""Lists of scripts: one TOML file each, in one form.

[[script]]
name = "melgan"                          # unique over all lists
repository = "descriptinc/melgan-neurips"
commit = "6488045b..."
folder = "."                             # of the repository, where the command runs
command = "python scripts/train.py ..."
data = { "voices" = "folder" }           # path below the folder: recipe of synthetic data
environment = { "PYTHONPATH" = "." }     # variables whose values are paths below the folder
prepare = "python -c ..."                # a command before it
stand_ins = ["librosa"]                  # packages replaced by stubs where they are not installed
carried = ["yacs"]                       # packages that the environment needs besides the usual ones
stratum = "changes"                      # or "repeats": whether later steps are like the first, by reading
change = "the network grows"             # what changes, of scripts of that stratum
benchmark = true                         # it sets cudnn.benchmark

[[script]]
name = "resnet50-b32"
job = { source = "timm", ... }           # instead of a script: a job of lab/networks/jobs.py

[recipes]
voices = '''...'''                       # a program over recipe_tools.py; shared ones: recipes.toml
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from slurm_gpumem.errors import UsageError
from slurm_gpumem.toml_file import load_toml

HERE = Path(__file__).resolve().parent
LISTS = {path.stem: path for path in sorted((HERE / "lists").glob("*.toml"))}


@dataclass(frozen=True)
class Script:
    """One entry of a list."""

    name: str
    repository: str = ""
    commit: str = ""
    folder: str = "."
    command: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    """Path below the folder: the program that makes what is there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""
    stand_ins: Sequence[str] = ()
    carried: Sequence[str] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    stratum: str = ""
    change: str = ""
    benchmark: bool = False


def load_list(path: Path) -> List[Script]:
    """The scripts of a list, recipes in the place of their names; UsageError says what is wrong with it."""
    content = load_toml(path)
    recipes: Dict[str, str] = {**load_toml(HERE / "recipes.toml")["recipes"], **content.get("recipes", {})}
    return [_script(path, row, recipes) for row in content["script"]]


def _script(path: Path, row: Mapping[str, Any], recipes: Mapping[str, str]) -> Script:
    name = row.get("name", "a script")
    unknown = sorted(set(row) - set(Script.__dataclass_fields__))
    if unknown or "name" not in row:
        raise UsageError(
            f"{path}: {name} " + (f"has an unknown key {unknown[0]}" if unknown else "has no name")
        )
    if bool(row.get("job")) == bool(row.get("command")):
        raise UsageError(f"{path}: {name} needs a command or a job, and not both")
    missing = sorted(set(row.get("data", {}).values()) - set(recipes))
    if missing:
        raise UsageError(f"{path}: {name} has data by a recipe that is not there: {missing[0]}")
    made = {place: recipes[recipe] for place, recipe in row.get("data", {}).items()}
    return Script(**{**row, "data": made})


def list_paths(names: Sequence[str]) -> List[Path]:
    """The files of lists, each given by its name or its path."""
    paths = [LISTS.get(name, Path(name)) for name in names]
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path} is no file and no list; lists: {', '.join(LISTS)}")
    return paths


@dataclass(frozen=True)
class Prepared:
    """A script that is ready to start."""

    command: List[str]
    folder: Path
    environment: Dict[str, str]
    job: Mapping[str, Any]
