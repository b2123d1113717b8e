"""The running controller's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.config_show import Site, ask_site, parse_config, version_of
from tests.support.fake_slurm import FakeSlurm


def test_the_config_is_read_in_the_format_of_22_05_and_of_later_versions() -> None:
    text = (
        "Configuration data as of 2026-11-15T02:11:12\n"
        "GresTypes               = gpu,shard\n"
        "Prolog                  = (null)\n"
        "Epilog[0]               = /etc/slurm/epilog.d/10-ours\n"
        "Epilog[1]               = /etc/slurm/epilog.d/20-theirs\n"
        "SlurmctldHost[0]        = ctl(10.0.0.1)\n"
        "SLURM_VERSION           = 24.11.5\n"
        "\n"
        "Slurmctld(primary) at ctl is UP\n"
    )
    found = parse_config(text)
    assert found["Epilog"] == "/etc/slurm/epilog.d/10-ours"
    assert found["GresTypes"] == "gpu,shard"
    assert version_of(found) == (24, 11, 5)


@pytest.mark.parametrize(("requeue", "answer"), [("0", False), ("1", True)])
def test_recovery_knows_version_requeue_and_state_folder(requeue: str, answer: bool) -> None:
    text = f"JobRequeue = {requeue}\nStateSaveLocation = /var/lib/slurm\nSLURM_VERSION = 22.05.8\n"
    slurm = FakeSlurm({"scontrol show config": text})
    assert ask_site(slurm) == Site((22, 5, 8), answer, Path("/var/lib/slurm"))


def test_a_controller_that_tells_no_version_is_an_error() -> None:
    with pytest.raises(SlurmError, match="no Slurm version"):
        ask_site(FakeSlurm({"scontrol show config": "JobRequeue = 1\n"}))
