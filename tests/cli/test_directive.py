"""`gpumem estimate --directive`: the line it prints, where it writes it, and what gpusbatch makes of it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.memory_line import parse_line
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.submission.job.script_line import open_script, write_script
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
        (("--directive", "--check", "job.sh"), "leave one of them out"),
        (("--directive", "--estimator", "all"), "one estimator"),
        (("--directive", "--gpus", "2"), "one GPU"),
        (("--directive", "--write", "summary.txt"), "must begin with #!"),
        (("--directive", "--write", "nowhere.sh"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_told(bare_desk: Any, argv: Any, why: str) -> None:
    done = gpumem(bare_desk, "estimate", "summary.txt", "--batch-size", "8", *argv, code=2)
    assert why in done.stderr


HEAD = "#GPUMEM model=summary.txt batch-size=32 estimator=horus"


def checked(desk: Any, *argv: str, code: int) -> str:
    """What --check says of job.sh."""
    said: str = gpumem(desk, "estimate", "--check", "job.sh", *argv, code=code).stdout
    assert said.count("\n") == 1
    return said


def test_a_script_that_names_its_model_is_written_and_checked_by_itself(bare_desk: Any) -> None:
    path = bare_desk.script("job.sh", "true", HEAD)
    before = path.read_text()
    assert "no memory line" in checked(bare_desk, code=1)
    gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    written = path.read_text()
    assert written.replace(written.split("\n")[2] + "\n", "") == before
    assert "still holds, for batches of 8 to 128" in checked(bare_desk, code=0)
    # Another batch between them is what the line is for.
    assert "still holds" in checked(bare_desk, "--batch-size", "100", code=0)
    for argv, why in (
        (("--batch-size", "200"), "for batches of 8 to 128, and the job's is 200"),
        (("--optimizer", "sgd"), "is for adam.fp32, and the job is sgd.fp32"),
        (("--estimator", "structural"), "estimated by horus, now structural answers"),
    ):
        assert why in checked(bare_desk, *argv, code=1)
    assert path.read_text() == written
    summary = bare_desk.folder / "summary.txt"
    summary.write_text(summary.read_text().replace("Linear", "Bilinear"))
    assert "summary has changed" in checked(bare_desk, code=1)


def test_the_line_s_own_settings_need_not_stand_in_the_script(bare_desk: Any) -> None:
    bare_desk.script("job.sh", "true", HEAD)
    gpumem(bare_desk, *MAKE, "--write", "job.sh", "--optimizer", "sgd", "--checkpointing")
    assert "still holds" in checked(bare_desk, code=0)
    assert "is for sgd.fp32.ckpt, and the job is adam.fp32.ckpt" in checked(
        bare_desk, "--optimizer", "adam", code=1
    )


def test_figures_of_another_version_are_found(bare_desk: Any) -> None:
    path = bare_desk.script("job.sh", "true", HEAD)
    gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    line = path.read_text().split("memory-line=")[1].split("\n")[0]
    old = parse_line(line)
    older = old._replace(knots=tuple(knot._replace(request_mib=knot.request_mib + 7) for knot in old.knots))
    path.write_text(path.read_text().replace(line, older.text()))
    assert re.search(r"other figures now .*batch 32 on h200: (\d+) MiB, not \d+", checked(bare_desk, code=1))


@pytest.mark.parametrize(
    ("head", "why"),
    [("", "has no #GPUMEM model="), (HEAD.replace("summary", "no"), "no.txt"), ("", "damaged")],
)
def test_bad_input_of_a_check_is_one_error(bare_desk: Any, head: str, why: str) -> None:
    path = bare_desk.script("job.sh", "true", HEAD)
    gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    path.write_text(path.read_text().replace(HEAD, head or "# none"))
    if why == "damaged":
        path.write_text(path.read_text().replace("memory-line=1/", "memory-line=1"))
    done = gpumem(bare_desk, "estimate", "--check", "job.sh", code=2)
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_a_line_beside_other_settings_is_replaced_too(bare_desk: Any) -> None:
    path = bare_desk.script("job.sh", "true", HEAD)
    gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    line = path.read_text().split("\n")[2].replace("#GPUMEM ", "")
    path.write_text(f"#!/bin/bash\n#GPUMEM on-oom=fail {line} optimizer=sgd\n{HEAD}\ntrue")
    assert "is for adam.fp32, and the job is sgd.fp32" in checked(bare_desk, code=1)
    gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    lines = path.read_text().split("\n")
    assert lines[:3] == ["#!/bin/bash", "#GPUMEM on-oom=fail optimizer=sgd", HEAD]
    assert (lines[3].startswith("#GPUMEM memory-line="), lines[4:]) == (True, ["true"])
    assert "still holds" in checked(bare_desk, code=0)


def test_a_size_by_hand_is_named_because_it_counts_before_the_line(bare_desk: Any) -> None:
    bare_desk.script("job.sh", "true", f"{HEAD} mem=3G")
    done = gpumem(bare_desk, "estimate", "--directive", "--write", "job.sh")
    assert "line 2: mem=3G counts before the memory line" in done.stderr


def test_a_link_stays_one_and_a_read_only_or_changed_script_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "real.sh", tmp_path / "job.sh"
    path.write_bytes(b"#!/bin/bash\ntrue")
    path.chmod(0o751)
    link.symlink_to("real.sh")
    script = open_script(str(link))
    write_script(script, b"#!/bin/bash\n#GPUMEM x\ntrue")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"#!/bin/bash\n#GPUMEM x\ntrue")
    assert path.stat().st_mode & 0o7777 == 0o751
    with pytest.raises(UsageError, match="changed meanwhile"):
        write_script(script, b"lost")
    script = open_script(str(link))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write into any file
    with pytest.raises(UsageError, match="is read-only"):
        write_script(script, b"lost")
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        write_script(script, b"lost")
    assert path.read_bytes() == script.data
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.sh", "real.sh"]


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
