"""Which measured models were kept from which fit: for scores of a learned model that are not self-praise."""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any, Mapping

FOLDS = 5
AUTHORS = ("memory", "written", "check", "fresh", "third", "fourth")
"""Collections of hand-written networks, by the plans that measured them; the first are lab/ground-truth's."""
_GENERATED = ("mlp", "cnn", "transformer")


def group_of(model: str) -> str:
    """What is never split between fitting and checking: resnet18 and resnet50 of any library are one."""
    source, _, name = model.partition("/")
    if source in _GENERATED:
        return model  # the number is its identity
    return re.split(r"[-_.\d]", name, maxsplit=1)[0].lower() or name


def fold_of(model: str) -> int:
    """The fold that was fitted without this model's group."""
    return int(sha1(group_of(model).encode()).hexdigest(), 16) % FOLDS


COLLECTIONS = ("written", "check", "fresh", "third")
"""Collections of measured jobs that are left out of a fit of utilization as a whole, by the plans that
measured them: their authors, libraries' classes, and the machine on that day."""
ALL_FOLDS = FOLDS + len(COLLECTIONS)


def collection_of(row: Mapping[str, Any]) -> str:
    """The collection of a job whose utilization was measured; "" for those of lab/ground-truth."""
    plan = str(row.get("collection") or str(row.get("run", "")).partition("-20")[0])
    return next((name for name in COLLECTIONS if plan.startswith(name)), "")


def fold_of_job(row: Mapping[str, Any]) -> int:
    """The fit without this job's collection; without its family of models where it is of none.

    Kinds of hand-written networks are no substitute: a fit that lacked only the kind had seen the author and
    the day's machine, and its intervals of 80 % held 54 to 62 % of a stranger's jobs.
    """
    collection = collection_of(row)
    return FOLDS + COLLECTIONS.index(collection) if collection else fold_of(str(row["model"]))


def is_hand_written(row: Mapping[str, Any]) -> bool:
    """Whether somebody wrote the network for one purpose, or a generator as if somebody had."""
    return kind_of_code(row) == "hand-written" or is_written(str(row.get("family", "")))


def is_written(family: str) -> bool:
    """Whether such models were written by hand, or generated as if they were."""
    return family.startswith("handwritten-")


def name_of(model: str) -> str:
    """The same for a model of several libraries: resnet50 and resnet-50."""
    source, _, name = model.partition("/")
    return model if source in _GENERATED else re.sub(r"[^a-z0-9]", "", name.lower())


def fold_of_name(model: str) -> int:
    """The fold that was fitted without this model; its smaller and larger sisters may be in others."""
    return int(sha1(name_of(model).encode()).hexdigest(), 16) % FOLDS


def fold_of_run(row: Mapping[str, Any]) -> int:
    """The fold without this run's family of models, or without all hand-written networks of its author.

    Kinds (graphs, attention, ...) are no substitute: one author hides about as much in every kind. Folds by
    kind promised 5 % requests below the need, and a fresh author's networks had 17 %.
    """
    if kind_of_code(row) == "hand-written":
        return AUTHORS.index(author_of(row)) % FOLDS
    family = str(row.get("family", ""))
    if is_written(family):
        return int(sha1(family.encode()).hexdigest(), 16) % FOLDS
    return fold_of(str(row["model"]))


def author_of(row: Mapping[str, Any]) -> str:
    """Who wrote a hand-written network: collections were written separately, each counts as one author."""
    plan = str(row.get("run", "")).partition("-20")[0]
    return next((author for author in AUTHORS[1:] if plan.startswith(author)), AUTHORS[0])


def kind_of_code(row: Mapping[str, Any]) -> str:
    """Who wrote the network: a library, somebody by hand, or our generators."""
    family, source = str(row.get("family", "")), str(row.get("source", ""))
    if "generated" in family or family.startswith("synthetic"):
        return "generated"
    return (
        "hand-written" if family.startswith("handwritten") or source in ("own", "repository") else "library"
    )
