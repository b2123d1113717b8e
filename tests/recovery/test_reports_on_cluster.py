"""Jobs that report what PyTorch reserved, on real daemons: into their own record, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Iterator

import pytest

from slurm_gpumem.accounting.detail import attempt_of
from slurm_gpumem.formats.job_record import read_job_record
from tests.recovery.conftest import OOM, Site, needs_root
from tests.support.slurm_jobs import hold_until, live_peaks
from tests.support.standin_torch import CODE, write_torch
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

HOLD = """
import subprocess, sys, torch
torch.cuda.hold({reserved})
subprocess.run(["bash", "-c", "{hold}"], check=True)
"""


@pytest.fixture
def site(module_site: Site) -> Iterator[Site]:
    folder = module_site.root / "reports"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    write_torch(module_site.root / "packages", CODE)
    _set_reports(module_site, folder)
    yield module_site
    module_site.configure()


def _set_reports(site: Site, folder: Path) -> None:
    site.configure()
    path = site.root / "gpumem.toml"
    path.write_text(
        path.read_text().replace("[node]\n", f"[node]\njob_reports = {json.dumps(str(folder))}\n")
    )


def script(site: Site, code: str, python: str = "/usr/bin/python3") -> str:
    """A batch script as users write them: their own PYTHONPATH, nothing of ours."""
    path = site.root / "out" / f"{abs(hash(code))}.py"
    path.write_text(code)
    path.chmod(0o644)
    return (
        f"export PYTHONPATH=$PYTHONPATH:{site.root}/packages CUDA_MODULE_LOADING=LAZY; echo begins; "
        f"{python} {path}"
    )


def test_a_job_that_ends_well_reports_into_its_record_and_its_comment_keeps_the_rest(site: Site) -> None:
    go = site.root / "out" / "go-reports"
    job = site.submit(script(site, HOLD.format(reserved=9000, hold=hold_until(go, 9522))))
    until(lambda: live_peaks(site.folder.live).get(job) == 9522.0)
    go.touch()
    shown = site.ended(job, "COMPLETED")
    assert shown["Comment"].startswith("mine gpumem/1:est=11000,")
    assert shown["Comment"].endswith(" gpumem-used/1:run=0,res=9000,torch=2.6.0+cu124,load=lazy")
    record = site.record(job, 0)
    assert (record["reserved_mib"], record["torch"], record["loading"]) == (9000, "2.6.0+cu124", "lazy")
    assert (record["peak_mib"], record["verdict"], record["exit_code"]) == (9522.0, None, 0)
    (path,) = (site.root / "records").glob(f"{job}.0.*.json")
    run = attempt_of(read_job_record(path))
    assert (run.reserved_mib, run.torch) == (9000, "2.6.0+cu124")
    assert not list((site.root / "reports").iterdir())
    # It says nothing in the job's own log.
    assert "gpumem:" not in site.out(job)


def test_steps_report_as_well_and_a_job_that_runs_out_keeps_its_verdict(site: Site) -> None:
    train = script(site, "import torch; torch.cuda.hold(700)")
    step, failed = site.submit(f"srun bash -c '{train}'"), site.submit(f"{train}; {OOM}", oom="fail")
    site.ended(step, "COMPLETED")
    assert site.record(step, 0)["reserved_mib"] == 700
    shown = site.ended(failed, "FAILED")
    assert "saw=oom" in shown["Comment"]
    record = site.record(failed, 0)
    assert (record["verdict"], record["reserved_mib"]) == ("oom", 700)


def test_a_forged_comment_or_folder_of_another_user_reaches_no_other_job(site: Site) -> None:
    # daemon guesses the next jobs' numbers and takes their folders, as folders and as links.
    numbers = range(1, 400)
    for number in numbers:
        name = site.root / "reports" / f"gpumem-reports.{number}.0"
        if number % 2:
            name.mkdir(mode=0o777)
            (name / "1.json").write_text("{}")
            os.chown(name, 1, 1)
        else:
            name.symlink_to("/etc")
            os.chown(name, 1, 1, follow_symlinks=False)
    jobs = [site.submit(script(site, "import torch; torch.cuda.hold(700)")) for _ in range(2)]
    for job in jobs:
        site.ended(job, "COMPLETED")
        assert site.record(job, 0)["reserved_mib"] is None
    assert len(list((site.root / "reports").iterdir())) == len(numbers)
    for path in (site.root / "reports").iterdir():
        path.unlink() if path.is_symlink() else [*(p.unlink() for p in path.iterdir()), path.rmdir()]


def test_a_site_that_did_not_ask_for_it_changes_no_jobs_python(module_site: Site) -> None:
    module_site.configure()
    job = module_site.submit("echo begins; echo path ${PYTHONPATH:-none} ${GPUMEM_REPORT_DIR:-none}")
    module_site.ended(job, "COMPLETED")
    assert "path none none" in module_site.out(job)
