"""What `make mutants` may change, and how it knows which tests run it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict
from unittest import mock

from tests.mutants import changes
from tests.support.asked_tests import marked

TEXT = """def f(a: int = 1, *b) -> int:
    if a != 2 and not b:  # é == é
        return a - 3
    return None
"""
UNSEEN = """@lru_cache(maxsize=4)
def g() -> bool:
    return False
"""


def test_one_token_is_changed_at_a_time_and_no_type() -> None:
    made = list(changes("f.py", TEXT))
    assert sorted((one.line, one.old, one.new) for one in made) == [
        (1, "1", "3"), (2, "!=", "=="), (2, "2", "5"), (2, "and", "or"), (3, "-", "+"), (3, "3", "7"),
        (3, "a - 3", "None"),
    ]  # fmt: skip
    assert all(TEXT[one.start :].startswith(one.old) for one in made)


def test_what_a_function_remembers_is_left_and_false_becomes_true_only() -> None:
    assert [(one.line, one.new) for one in changes("f.py", UNSEEN)] == [(3, "True")]


def test_a_marked_module_notes_the_statements_of_functions_that_it_runs() -> None:
    noted, lines = marked(TEXT, 5, Path("none"))
    assert lines == [(2, 3), (3, 3), (4, 4)]
    ran: Dict[int, int] = {}
    names: Dict[str, Any] = {}
    with mock.patch.dict("sys.modules", {"slurm_gpumem.statements_run": SimpleNamespace(_ran_=ran)}):
        exec(noted, names)
    assert names["f"](2) is None
    assert ran == {5: 1, 7: 1}
