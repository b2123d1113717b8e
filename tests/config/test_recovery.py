from __future__ import annotations

from pathlib import Path

from slurm_gpumem.config.recovery import RecoveryConfig, load_recovery_config


def test_wrong_settings_are_noted_and_left_at_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text('[recovery]\nenabled = "no"\nladder = ["more"]\ncolour = 1\n')
    config = load_recovery_config(str(path))
    assert config._replace(notes=()) == RecoveryConfig()
    assert len(config.notes) == 3


def test_what_it_needs_of_other_tables_comes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text(
        '[sharing]\nshard_mib = 512\n[node]\nspool = "/srv/spool"\nslurm_bin = "/opt/slurm/bin"\n'
        '[recovery]\nladder = ["+25%", "whole-gpu"]\n[devcluster]\nleast_slot_s = 1\n'
    )
    config = load_recovery_config(str(path))
    assert (config.shard_mib, str(config.spool), str(config.slurm_bin)) == (
        512,
        "/srv/spool",
        "/opt/slurm/bin",
    )
    assert config.least_slot_s == 1
    assert [step.margin_percent for step in config.ladder] == [25, None]
    assert config.notes == ()
