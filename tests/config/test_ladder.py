"""The recovery ladder as it is written in gpumem.toml."""

from __future__ import annotations

import pytest

from slurm_gpumem.config.kinds import Step, parse_ladder
from slurm_gpumem.errors import ConfigError


def test_margins_come_before_the_whole_gpu() -> None:
    assert parse_ladder(["+25%", "whole-gpu"]) == (Step(25), Step(None))
    assert parse_ladder(["need+50%"]) == (Step(50, by_need=True),)


@pytest.mark.parametrize(
    "words", [["more"], ["+0%"], ["whole-gpu", "+25%"], [25], ["+25"], ["need"], ["need+0%"], [None]]
)
def test_a_ladder_that_is_none_is_refused(words: list) -> None:
    with pytest.raises(ConfigError):
        parse_ladder(words)
