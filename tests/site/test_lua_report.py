"""What a Lua interpreter reads of a site's own table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.site.doctor.check_hooks import LUA_FILES
from slurm_gpumem.site.doctor.lua_report import INTERPRETERS, try_lua
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table


@pytest.mark.skipif(not any(map(shutil.which, INTERPRETERS)), reason="no Lua interpreter")
def test_gpus_come_back_from_the_table_as_setup_wrote_them(tmp_path: Path) -> None:
    gpus = (GpuGroup("h200", 1, 143771), GpuGroup("a100", 4, 40960))
    for name in (*LUA_FILES, "job_submit.lua"):
        shutil.copy(data_path("lua", name), tmp_path)
    plan = SitePlan((NodeGroup("n1", gpus),), partitions=())
    table = lua_table(plan)
    expected = {"*": tuple((one.gpu_type, plan.shares(one)) for one in gpus)}
    # Earlier versions stated contexts, too.
    older = table.replace("memory_mib =", "context = { 1, 2, 3, 4 }, workspace_mib = 32, memory_mib =")
    assert older != table
    for text in (table, older):
        (tmp_path / "gpumem_site.lua").write_text(text)
        report = try_lua(tmp_path)
        assert report is not None
        assert (report.broken, report.partitions) == ((), expected)
