"""`gpusbatch --slot`: in the job's record where it is asked for, by default for what saves checkpoints."""

from __future__ import annotations

from typing import Any, List, Optional

import pytest

from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.remembered import Recipe, write_remembered

HEAD = "#SBATCH --gres=gpu:1 -o out"


def slot_in(done: Any) -> Optional[int]:
    assert done.returncode == 0, done.stderr
    record = parse_record(done.stdout.partition("--comment=")[2].strip("'\n"))
    return record.slot if record else None


def test_a_slot_is_noted_for_the_hooks_and_its_owner_is_told(desk: Any) -> None:
    desk.script("job.sh", "python train.py", HEAD)
    done = desk.call("--dry-run", "--slot", "2h", "job.sh")
    assert slot_in(done) == 7200
    assert "--open-mode=append" in done.stdout
    assert "it runs in slots of 2h" in done.stderr
    assert slot_in(desk.call("--dry-run", "--slot", "90m", "--gpu-mem", "8G", "job.sh")) == 5400
    desk.script("more.sh", "torchrun train.py", "#SBATCH --gres=gpu:2 -o out\n#GPUMEM slot=1h")
    several = desk.call("--dry-run", "more.sh")
    assert slot_in(several) == 3600
    assert "--gres" not in several.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slot", "2x"], "'2x' is not a time; write it like 2h, 90m or 30s"),
        (["--slot", "5m"], "a slot here is 10m at least"),
        (["--slot", "2h", "--no-requeue"], "exclude each other"),
        (["--slot", "2h", "--gres=none"], "asks for no GPU"),
    ],
)
def test_slots_that_cannot_be_had_are_an_error(desk: Any, words: List[str], said: str) -> None:
    desk.script("job.sh", "python train.py", HEAD)
    done = desk.call("--dry-run", *words, "job.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_sites_default_is_for_what_saved_checkpoints_before(desk: Any) -> None:
    desk.script("job.sh", "python train.py", HEAD)
    first = desk.call("--dry-run", "job.sh")
    key = parse_record(first.stdout.partition("--comment=")[2].strip("'\n"))
    assert key is not None
    site = desk.folder / "slots.toml"
    site.write_text('[slots]\npartitions = {gpu = "3h", whole = "3h"}\n')
    remembered = desk.folder / "remembered.json"
    env = {"GPUMEM_SITE_CONFIG": str(site), "GPUMEM_REMEMBERED": str(remembered)}
    assert slot_in(desk.call("--dry-run", "job.sh", env=env)) is None
    peaks = {Recipe(key.fingerprint, "", "", "", ""): {"a100": [10000]}}
    write_remembered(remembered, peaks, savers=[key.fingerprint])
    assert slot_in(desk.call("--dry-run", "job.sh", env=env)) == 3 * 3600
    assert slot_in(desk.call("--dry-run", "--slot", "off", "job.sh", env=env)) is None
    assert slot_in(desk.call("--dry-run", "--no-requeue", "job.sh", env=env)) is None
