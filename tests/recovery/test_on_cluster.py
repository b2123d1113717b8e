"""Recovery on real daemons: who comes back, with what, how often."""

from __future__ import annotations

import pytest

from tests.recovery.conftest import OOM, Site, needs_root

pytestmark = [needs_root, pytest.mark.slurm]


def test_a_job_that_runs_out_once_comes_back_on_a_whole_gpu_and_finishes(site: Site) -> None:
    job = site.submit(f'echo begins attempt $GPUMEM_ATTEMPT; [ "$SLURM_RESTART_COUNT" = 1 ] || {{ {OOM}; }}')
    shown = site.ended(job, "COMPLETED")
    print(shown, site.out(job), site.log())
    assert site.runs(job) == 2
