from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('dir = "records"', "accounting.dir must be an absolute path"),
        ("readers = 3", "accounting.readers must be a list of groups"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_would_do(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text(f"[accounting]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load_accounting_config({"GPUMEM_SITE_CONFIG": str(path)})
    assert said in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[accounting]\nspool = "/x"', "unknown key 'spool'; it belongs to [node]"),
        ('[accounting]\nfolder = "/x"', "unknown key 'folder'; known: dir, readers"),
        ("[of_a_later_version]\nx = 1", "unknown key 'of_a_later_version'"),
    ],
)
def test_what_another_version_may_know_stops_no_report_and_is_told(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text(f"{text}\n")
    (found,) = load_accounting_config({"GPUMEM_SITE_CONFIG": str(path)}).unknown
    assert said in found
    assert str(path) in found
