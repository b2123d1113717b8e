"""What `make mutants` may change, and which tests it asks."""

from __future__ import annotations

from tests.mutants import changes, room_of

TEXT = """def f(a: int = 1, *b) -> int:
    if a != 2 and not b:  # é == é
        return a - 3
    return None
"""


def test_one_token_is_changed_at_a_time_and_no_type() -> None:
    made = list(changes("f.py", TEXT))
    assert sorted((one.line, one.old, one.new) for one in made) == [
        (1, "1", "2"), (2, "!=", "=="), (2, "2", "3"), (2, "and", "or"), (3, "-", "+"), (3, "3", "4"),
        (3, "a - 3", "None"),
    ]  # fmt: skip
    assert all(TEXT[one.start :].startswith(one.old) for one in made)


def test_room_of_the_same_name_come_first_and_commands_tests_last() -> None:
    assert room_of("slurm_gpumem/node/mps/daemons.py") == ["tests/node/test_mps.py", "tests/node"]
    assert room_of("slurm_gpumem/submission/job/slots.py")[-2:] == ["tests/submission", "tests/cli"]
