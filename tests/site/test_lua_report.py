"""What a Lua interpreter reads of a site's own table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.site.doctor.check_hooks import LUA_FILES
from slurm_gpumem.site.doctor.lua_report import INTERPRETERS, LuaContext, parse_report, try_lua
from slurm_gpumem.site.nodes import CudaContext, GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table


@pytest.mark.skipif(not any(map(shutil.which, INTERPRETERS)), reason="no Lua interpreter")
def test_contexts_come_back_from_the_table_as_setup_wrote_them(tmp_path: Path) -> None:
    measured = CudaContext(620, 634, 742, 764, 32)
    guessed = CudaContext(1727, 1727, 1430, 1727, 9, 17, 8, 2)
    gpus = (
        replace(GpuGroup("h200", 1, 143771), context=measured),
        replace(GpuGroup("a100", 4, 40960), context=guessed),
    )
    for name in (*LUA_FILES, "job_submit.lua"):
        shutil.copy(data_path("lua", name), tmp_path)
    plan = SitePlan((NodeGroup("n1", gpus),), partitions=())
    (tmp_path / "gpumem_site.lua").write_text(lua_table(plan))
    report = try_lua(tmp_path)
    assert report is not None
    assert not report.broken
    assert report.contexts == (
        LuaContext("h200", plan.usable_mib(gpus[0]), measured),
        LuaContext("a100", plan.usable_mib(gpus[1]), guessed),
    )


@pytest.mark.parametrize("sizes", ["", "1,2,x", "1", "1,2,3,4,5,6,7,8,9,10,11"])
def test_a_table_of_somebodys_own_making_states_no_context(sizes: str) -> None:
    assert parse_report(f"context\ta100\t40000\t{sizes}").contexts == ()
