"""`gpumem estimate --directive`: the line it prints, where it writes it, and what gpusbatch makes of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.memory_line import parse_line
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.units import ceil_div

GPUMEM = str(Path(sys.executable).with_name("gpumem"))
MAKE = ("estimate", "summary.txt", "--directive", "--estimator", "horus")


def gpumem(desk: Any, *argv: str, code: int = 0) -> Any:
    done = desk.call(*argv, command=GPUMEM)
    assert done.returncode == code, done.stderr
    return done


def test_it_prints_one_line_that_says_what_the_estimator_says(bare_desk: Any) -> None:
    printed = gpumem(bare_desk, *MAKE, "--batch-size", "32").stdout
    assert printed.startswith("#GPUMEM batch-size=32 memory-line=1/")
    assert printed.count("\n") == 1
    line = parse_line(printed.split("memory-line=")[1].strip())
    for gpu in ("h200", "a100", "v100"):
        for batch in (8, 19, 32, 77, 128):
            full = estimate(bare_desk.folder / "summary.txt", batch_size=batch, gpu=gpu, estimator="horus")
            peak, request = line.memory(batch, find_gpu(gpu))
            assert peak == pytest.approx(full.peak_mib, rel=0.01)
            assert request == pytest.approx(full.request_mib, rel=0.01)


def test_the_line_goes_behind_the_last_directive_and_is_replaced_the_next_time(bare_desk: Any) -> None:
    head = "#SBATCH --gres=gpu:1\n#GPUMEM optimizer=sgd\n# a comment"
    path = bare_desk.script("job.sh", "python train.py  # ä\n\n", head)
    os.chmod(path, 0o750)
    before = path.read_text().split("\n")
    gpumem(bare_desk, *MAKE, "--batch-size", "32", "--write", "job.sh")
    once = path.read_text()
    assert once.split("\n")[3].startswith("#GPUMEM batch-size=32 memory-line=1/")
    assert "/sgd.fp32/" in once
    assert once.split("\n")[:3] + once.split("\n")[4:] == before
    assert "already" in gpumem(bare_desk, *MAKE, "--batch-size", "32", "--write", "job.sh").stderr
    assert path.read_text() == once
    gpumem(bare_desk, *MAKE, "--batch-size", "64", "--write", "job.sh")
    assert path.read_text().count("memory-line") == 1
    assert "batch-size=64 memory-line" in path.read_text()
    assert os.stat(path).st_mode & 0o777 == 0o750
    assert sorted(p.name for p in bare_desk.folder.iterdir()) == ["job.sh", "summary.txt"]


def test_a_batch_size_that_the_script_has_elsewhere_stays_there(bare_desk: Any) -> None:
    path = bare_desk.folder / "job.sh"
    path.write_bytes(b"#!/bin/bash\r\n#GPUMEM batch-size=16 on-oom=fail\r\ntrue\r\n")
    gpumem(bare_desk, *MAKE, "--write", "job.sh")
    assert b"#GPUMEM batch-size=16 on-oom=fail\r\n#GPUMEM memory-line=1/" in path.read_bytes()
    assert b"/16/4," in path.read_bytes()
    assert path.read_bytes().count(b"\r\n") == 4


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--write", "job.sh"), "add --directive"),
        (("--directive", "--json"), "leave --json"),
        (("--directive", "--estimator", "all"), "one estimator"),
        (("--directive", "--gpus", "2"), "one GPU"),
        (("--directive", "--write", "summary.txt"), "must begin with #!"),
        (("--directive", "--write", "nowhere.sh"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_told(bare_desk: Any, argv: Any, why: str) -> None:
    done = gpumem(bare_desk, "estimate", "summary.txt", "--batch-size", "8", *argv, code=2)
    assert why in done.stderr


@pytest.mark.slurm
def test_gpusbatch_goes_by_the_line_when_no_model_is_named(desk: Any) -> None:
    desk.script("job.sh", "true", "#SBATCH --gres=gpu:1\n")
    gpumem(desk, *MAKE, "--batch-size", "64", "--write", "job.sh")
    job = desk.submit("-H", "job.sh", env={"GPUMEM_BATCH_SIZE": "32"})
    full = estimate(desk.folder / "summary.txt", batch_size=32, gpu="a100-40gb", estimator="horus")
    assert desk.gres(job) == f"shard:{ceil_div(full.request_mib, 1024)}"
    record = parse_record(desk.comment(job))
    assert record is not None
    assert (record.estimator, record.via, record.batch) == ("horus", "line", 32)
    said = desk.call("--dry-run", "job.sh").stderr
    assert "gpumem: memory line, batch 64, Adam, fp32 →" in said
    assert "the memory line's" in desk.call("--dry-run", "--explain", "job.sh").stderr


@pytest.mark.slurm
def test_gpusbatch_says_when_a_line_is_not_the_model_s_or_the_job_s(desk: Any) -> None:
    path = desk.script("job.sh", "true")
    gpumem(desk, *MAKE, "--batch-size", "64", "--write", "job.sh")
    model = ("--model", "summary.txt", "--batch-size", "64", "--dry-run", "job.sh")
    assert "made from another" not in desk.call(*model).stderr
    assert "made from another" in desk.call("--optimizer", "sgd", *model).stderr
    done = desk.call("--optimizer", "sgd", "--dry-run", "job.sh")
    assert (done.returncode, "made for optimizer adam, not sgd" in done.stderr) == (2, True)
    path.write_text(path.read_text().replace("memory-line=1/", "memory-line=7/"))
    done = desk.call("--dry-run", "job.sh")
    assert (done.returncode, "line 2: the memory-line is damaged" in done.stderr) == (2, True)
