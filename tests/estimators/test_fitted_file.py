"""The package's files of fitted numbers: one that cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.data import fitted
from slurm_gpumem.errors import ConfigError


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"format": "other/1"}', '{"format": "numbers/1"}'])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: Optional[str]) -> None:
    path = tmp_path / "numbers.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"numbers\.json: cannot be used: .*; install"):
        fitted(path, "numbers/1", lambda content: content["numbers"])


def test_a_file_gives_what_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"format": "numbers/1", "numbers": [1, 2]}))
    assert fitted(path, "numbers/1", lambda content: sum(content["numbers"])) == 3
