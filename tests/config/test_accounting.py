from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('spool = "/x"', "unknown key 'spool'; it belongs to [node]"),
        ('folder = "/x"', "unknown key 'folder'; known: dir, readers"),
        ('dir = "records"', "accounting.dir must be an absolute path"),
        ("readers = 3", "accounting.readers must be a list of groups"),
    ],
)
def test_what_nothing_reads_or_can_use_is_refused_with_what_would_do(
    tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text(f"[accounting]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load_accounting_config({"GPUMEM_SITE_CONFIG": str(path)})
    assert said in str(error.value)
    assert str(path) in str(error.value)
