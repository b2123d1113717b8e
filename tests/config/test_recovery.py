from __future__ import annotations

from pathlib import Path

from slurm_gpumem.config.recovery import RecoveryConfig, load_recovery_config


def test_wrong_settings_are_noted_and_left_at_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text('[recovery]\nenabled = "no"\nladder = ["more"]\non_oom = "maybe"\ncolour = 1\n')
    config = load_recovery_config(str(path))
    assert config._replace(notes=()) == RecoveryConfig()
    assert len(config.notes) == 4


def test_what_it_needs_of_other_tables_comes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "gpumem.toml"
    path.write_text(
        '[sharing]\nshard_mib = 512\n[node]\nspool = "/srv/spool"\nslurm_bin = "/opt/slurm/bin"\n'
        'slurm_env = {SLURM_CONF = "/x"}\n[recovery]\nladder = ["+25%", "whole-gpu"]\non-oom = "requeue"\n'
    )
    config = load_recovery_config(str(path))
    assert (config.shard_mib, str(config.spool), str(config.slurm_bin)) == (
        512,
        "/srv/spool",
        "/opt/slurm/bin",
    )
    assert (dict(config.slurm_env), config.on_oom) == ({"SLURM_CONF": "/x"}, "requeue")
    assert [step.margin_percent for step in config.ladder] == [25, None]
    assert config.notes == ()
