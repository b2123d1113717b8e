"""The published manager's replay scripts, as chapter 6 reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chapter6.replay import minutes_of, read_replay
from slurm_gpumem.errors import UsageError


def _repository(tmp_path: Path) -> Path:
    """As the published manager's repository is laid out, with numbers of our own."""
    (tmp_path / "workloads").mkdir()
    (tmp_path / "assets" / "traces").mkdir(parents=True)
    for name, gpus, memory in (("vgg3", 1, 20_000), ("resnet18_cifar100_20e_2", 1, 1900), ("other", 2, 9000)):
        lines = ["#", "env", "python x.py", "x.model", "data", "32", "exclusive", str(gpus), str(memory)]
        (tmp_path / "workloads" / f"{name}.rad").write_text("\n".join([*lines, "21000.5", "9000", "24000"]))
    script = tmp_path / "assets" / "traces" / "replay.sh"
    script.write_text(
        "python src/submit.py --task workloads/vgg3.rad\nsleep 73\n"
        "python src/submit.py --task workloads/resnet18_cifar100_20e_2.rad\nsleep 4.5\n"
        "python src/submit.py --task workloads/other.rad\n"
    )
    return script


def test_the_published_replay_scripts_are_read_where_their_repository_is(tmp_path: Path) -> None:
    script = _repository(tmp_path)
    jobs = read_replay(script)
    assert [one.arrival for one in jobs] == [0.0, 73.0, 77.5]
    assert [one.gpus for one in jobs] == [1, 1, 2]
    assert [one.work for one in jobs] == pytest.approx([42.419 * 60, 20 * 0.22 * 60, 300])
    assert jobs[0].estimates == {"horus": 21000, "faketensor": 9000, "gpumemnet": 24000}
    (tmp_path / "workloads" / "other.rad").unlink()
    with pytest.raises(UsageError, match=r"other\.rad, which is in no folder above it"):
        read_replay(script)


def test_minutes_follow_table_6_2() -> None:
    assert minutes_of("xlnet_base_cased_2") == pytest.approx(8 * 8.949518, abs=0.01)
    assert minutes_of("efficientNet_cifar100_50e_1") == pytest.approx(50 * 0.7666)
