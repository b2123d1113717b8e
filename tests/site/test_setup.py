from __future__ import annotations

import io
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.data import FILTER_FILES, LUA_FILES, data_path
from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.queue_order import WORD, flow_settings
from slurm_gpumem.site.setup.conf_edit import Change, edit_slurm_conf
from slurm_gpumem.site.setup.hook_files import SCRIPTS
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.questions import asked
from slurm_gpumem.site.setup.render import gres_lines, lua_table, node_gres, toml_file
from slurm_gpumem.site.setup.setup import HOOKS, SetupOptions, propose, write_files
from slurm_gpumem.site.setup.slurm_conf import partition_memory, wanted_settings
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.conf_file import Where
from slurm_gpumem.toml_file import load_toml

A100 = NodeGroup("n[1-2]", (GpuGroup("a100", 4, 40960),), ("gpu",), 64, 512_000)
MIXED = NodeGroup("m1", (GpuGroup("a100", 2, 40960), GpuGroup("v100", 1, 16384)), ("gpu", "old"), 32, 128_000)

RIGHT = {
    "GresTypes": "gpu,shard",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/shard",
    "AccountingStoreFlags": "job_comment",
    "PrologFlags": "Alloc,Contain",
    "JobSubmitPlugins": "lua",
    "PrologEpilogTimeout": "120",
    "DefMemPerCPU": "4000",
}
WITH_DATABASE = {"AccountingStorageType": "accounting_storage/slurmdbd"}
NO_DEFAULT = {key: value for key, value in RIGHT.items() if key != "DefMemPerCPU"}


def memory_of(kind: str) -> Optional[int]:
    return {"a100": 40960}.get(kind)


def snapshot(files: Optional[Dict[str, str]] = None, **config: str) -> Snapshot:
    node = {"Gres": "gpu:a100:4", "Partitions": "gpu", "CPUTot": "64", "RealMemory": "512000"}
    return Snapshot(
        version=(24, 11, 5),
        config={**RIGHT, **config},
        nodes=({"NodeName": "n1", **node}, {"NodeName": "n2", **node}),
        partitions=({"PartitionName": "gpu", "Default": "YES"}, {"PartitionName": "cpu"}),
        files=files or {},
    )


def test_shards_leave_a_reserve_on_each_gpu() -> None:
    plan = SitePlan((A100,))
    assert node_gres(plan, A100) == "gpu:a100:4,shard:a100:156"
    assert gres_lines(plan, with_gpus=True) == [
        "NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]",
        "NodeName=n[1-2] Name=shard Type=a100 Count=156",
    ]
    assert node_gres(SitePlan((A100,), reserve_mib=0, shard_mib=512), A100) == "gpu:a100:4,shard:a100:320"


def test_gpus_of_two_types_on_a_node_get_a_line_for_each_gpu() -> None:
    lines = gres_lines(SitePlan((MIXED,)), with_gpus=True)
    assert lines == [
        "NodeName=m1 Name=gpu Type=a100 File=/dev/nvidia[0-1]",
        "NodeName=m1 Name=gpu Type=v100 File=/dev/nvidia2",
        "NodeName=m1 Name=shard Type=a100 Count=39 File=/dev/nvidia0",
        "NodeName=m1 Name=shard Type=a100 Count=39 File=/dev/nvidia1",
        "NodeName=m1 Name=shard Type=v100 Count=15 File=/dev/nvidia2",
    ]


def test_a_gpu_without_room_for_a_share_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--shard, --reserve"):
        SitePlan((A100,), reserve_mib=40_000)


@pytest.mark.skipif(shutil.which("lua5.1") is None, reason="lua5.1 is not installed")
@pytest.mark.parametrize("partitions", [(), ("gpu", "old", 'odd "name"', "cpu")])
def test_the_lua_table_is_one_that_the_plugin_takes(partitions: Any, tmp_path: Path) -> None:
    plan = SitePlan((A100, MIXED), partitions=partitions, default_partition="gpu", version=(22, 5, 8))
    for name in LUA_FILES:
        shutil.copy(Path(__file__).parents[2] / "lua" / name, tmp_path)
    (tmp_path / "gpumem_site.lua").write_text(lua_table(plan))
    program = (
        "local m = dofile(arg[1] .. '/gpumem.lua'); assert(m.site, m.site_error);"
        "local p = m.site.partitions.gpu or m.site.partitions['*'];"
        "print(m.site.separator, #p, p[1].shares, p[1].host_mib, p[1].cpus)"
    )
    done = subprocess.run(
        ["lua5.1", "-", str(tmp_path)], input=program, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [":", "3", "39", "128000", "16"], done.stderr


def test_the_separator_follows_the_version() -> None:
    assert SitePlan((A100,), version=(22, 5, 8)).separator == ":"
    assert SitePlan((A100,), version=(23, 2, 7)).separator == ":"
    assert SitePlan((A100,), version=(23, 11, 0)).separator == "/"


def test_a_cluster_that_is_right_already_needs_no_setting() -> None:
    assert wanted_settings(RIGHT, SitePlan((A100,))) == {}


def test_nodes_outside_the_plan_keep_their_kind_of_shares() -> None:
    running = snapshot(GresTypes="gpu,mps")
    nodes = tuple({**node, "Gres": "gpu:a100:4,mps:a100:400"} for node in running.nodes)
    options = SetupOptions(gpus=("n1=a100:4:40G",), gres="shard")
    proposal = propose(options, replace(running, nodes=nodes), memory_of)
    assert "GresTypes=gpu,mps,shard" in proposal.files["slurm.conf"]
    assert "n1: mps becomes shard; jobs that ask for mps will be refused there" in proposal.notes


def test_a_site_with_mps_gets_mps_unless_it_asks_for_shards() -> None:
    running = snapshot(GresTypes="gpu,mps")
    nodes = tuple({**node, "Gres": "gpu:a100:4,mps:a100:400"} for node in running.nodes)
    site = replace(running, nodes=nodes)
    assert propose(SetupOptions(), site, memory_of).plan.gres == "mps"
    assert propose(SetupOptions(gres="shard"), site, memory_of).plan.gres == "shard"
    assert propose(SetupOptions(), running, memory_of).plan.gres == "shard"


def memory(*partitions: Dict[str, str], nodes: Any = (), **running: str) -> Dict[str, Dict[str, int]]:
    return partition_memory({**NO_DEFAULT, **running}, {}, SitePlan((A100,)), partitions, nodes)


def per_cpu(mib: int) -> Dict[str, Dict[str, int]]:
    return {"gpu": {"DefMemPerCPU": mib}}


def test_default_memory_is_given_to_partitions_with_shared_gpus_only() -> None:
    gpu, cpu = {"PartitionName": "gpu", "DefMemPerNode": "UNLIMITED"}, {"PartitionName": "cpu"}
    big = {"NodeName": "n1", "Partitions": "gpu", "CPUTot": "64", "RealMemory": "512000"}
    small = {"NodeName": "c1", "Partitions": "cpu", "CPUTot": "64", "RealMemory": "64000"}
    assert memory(gpu, cpu, nodes=(big, small)) == per_cpu(8000)
    # All CPUs of its smallest node must stay possible without naming memory.
    assert memory(gpu, cpu, nodes=(big, {**small, "Partitions": "gpu,cpu"})) == per_cpu(1000)
    assert memory(gpu, nodes=({**big, "MemSpecLimit": "64000"},)) == per_cpu(7000)
    assert memory({**gpu, "MaxMemPerCPU": "4000"}, nodes=(big,)) == per_cpu(4000)
    assert memory({**gpu, "DefMemPerCPU": "500"}, nodes=(big,)) == {}
    assert memory(gpu, nodes=(big,), DefMemPerNode="1000") == {}
    assert memory(gpu, nodes=(big,), SelectTypeParameters="CR_CORE") == {}


def test_jobs_with_whole_gpus_get_memory_by_the_gpu() -> None:
    gpu = {"PartitionName": "gpu"}
    node = {"Partitions": "gpu", "CPUTot": "64", "RealMemory": "512000", "Gres": "gpu:a100:4"}
    cpu_node = {**node, "Gres": "(null)"}
    both = {"gpu": {"DefMemPerCPU": 8000, "DefMemPerGPU": 128000}}
    assert memory(gpu, nodes=(node, cpu_node)) == both
    assert memory(gpu, nodes=(node,), JobDefaults="DefMemPerGPU=9000") == per_cpu(8000)
    assert memory({**gpu, "JobDefaults": "DefMemPerGPU=9000"}, nodes=(node,)) == per_cpu(8000)
    assert memory(gpu, nodes=(node,), MaxMemPerCPU="9000") == per_cpu(8000)


def test_gpus_that_are_divided_stay_so_unless_a_reserve_is_asked_for() -> None:
    running = snapshot()
    nodes = tuple({**node, "Gres": "gpu:a100:4,shard:a100:160"} for node in running.nodes)

    def gres_of(options: SetupOptions) -> str:
        plan = propose(options, replace(running, nodes=nodes), memory_of).plan
        return node_gres(plan, plan.groups[0])

    assert gres_of(SetupOptions()) == "gpu:a100:4,shard:a100:160"
    assert "--reserve 1G does" in propose(SetupOptions(), replace(running, nodes=nodes), memory_of).notes[0]
    assert gres_of(SetupOptions(reserve_mib=2048)) == "gpu:a100:4,shard:a100:152"


def test_settings_are_added_to_and_not_replaced() -> None:
    running = {
        **RIGHT,
        "GresTypes": "gpu,nvme",
        "JobSubmitPlugins": "throttle",
        "PrologFlags": "X11",
        "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,license/matlab",
        "PrologEpilogTimeout": "65534",
    }
    assert wanted_settings(running, SitePlan((A100,))) == {
        "GresTypes": "gpu,nvme,shard",
        "AccountingStorageTRES": "gres/gpu,license/matlab,gres/shard",
        "PrologFlags": "X11,Alloc",
        "JobSubmitPlugins": "throttle,lua",
        "PrologEpilogTimeout": "60",
    }


def test_select_type_parameters_change_only_where_cons_tres_is_new() -> None:
    linear = {**RIGHT, "SelectType": "select/linear", "SelectTypeParameters": "NONE"}
    wanted = wanted_settings(linear, SitePlan((A100,)))
    assert wanted == {"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_Core_Memory"}
    old = {**RIGHT, "SelectType": "select/cons_res", "SelectTypeParameters": "CR_CPU,CR_LLN"}
    assert wanted_settings(old, SitePlan((A100,))) == {"SelectType": "select/cons_tres"}
    assert wanted_settings({**RIGHT, "SelectTypeParameters": "NONE"}, SitePlan((A100,))) == {}


CONF = """# our cluster
ClusterName=big
gresTypes = gpu   # whole ones
NodeName=DEFAULT CPUs=64
NodeName=n[1-2] RealMemory=512000 Gres=gpu:a100:4,nvme:1 State=UNKNOWN
NodeName=c[1-9] State=UNKNOWN
PartitionName=gpu Nodes=ALL
"""


def edited(
    text: str,
    settings: Dict[str, str],
    gres: Dict[str, str],
    partitions: Optional[Dict[str, Dict[str, int]]] = None,
) -> str:
    change = Change(settings, gres, partitions or {})
    return edit_slurm_conf({"slurm.conf": text}, change, Where())["slurm.conf"]


def test_an_edit_touches_only_what_it_must() -> None:
    words = "gpu:a100:4,shard:a100:156"
    text = edited(
        CONF,
        {"GresTypes": "gpu,shard"},
        {"n1": words, "n2": words},
        {"gpu": {"DefMemPerCPU": 8000, "DefMemPerGPU": 9000}},
    )
    changed = [line for line in text.splitlines() if line not in CONF.splitlines()]
    assert changed == [
        "gresTypes = gpu,shard   # whole ones",
        "NodeName=n[1-2] RealMemory=512000 Gres=gpu:a100:4,shard:a100:156,nvme:1 State=UNKNOWN",
        "PartitionName=gpu Nodes=ALL DefMemPerCPU=8000 DefMemPerGPU=9000",
    ]


def test_a_line_whose_nodes_come_to_differ_is_split() -> None:
    text = edited(CONF, {}, {"n1": "gpu:a100:4,shard:a100:156"})
    changed = [line for line in text.splitlines() if line not in CONF.splitlines()]
    assert changed == [
        "NodeName=n1 RealMemory=512000 Gres=gpu:a100:4,shard:a100:156,nvme:1 State=UNKNOWN",
        "NodeName=n2 RealMemory=512000 Gres=gpu:a100:4,nvme:1 State=UNKNOWN",
    ]
    listed = CONF.replace("RealMemory=512000", "NodeAddr=10.0.0.[1-2]")
    with pytest.raises(UsageError, match=r"n\[1-2\].*nodeaddr is a list"):
        edited(listed, {}, {"n1": "gpu:a100:4,shard:a100:156"})


def test_a_node_or_partition_without_a_line_is_an_error_that_names_it() -> None:
    with pytest.raises(UsageError, match=r"^n\[7-8\]: no NodeName= line"):
        edited(CONF, {}, {"n7": "gpu:1,shard:8", "n8": "gpu:1,shard:8"})
    with pytest.raises(UsageError, match=r"^big: no PartitionName= line"):
        edited(CONF, {}, {}, {"big": {"DefMemPerCPU": 8000}})


@given(
    st.text(alphabet="aAgG=[]1-2,# \n\t", max_size=200),
    st.dictionaries(st.sampled_from(["GresTypes", "A", "Gg"]), st.sampled_from(["x", "y,z"])),
)
def test_editing_twice_changes_nothing_more(text: str, settings: Dict[str, str]) -> None:
    once = edited(text, settings, {})
    assert edited(once, settings, {}) == once


@pytest.mark.parametrize("end", ["", "return slurm.SUCCESS\n", "return slurm.SUCCESS -- loaded\n\n-- end"])
def test_a_site_with_rules_of_its_own_keeps_them_and_gets_three_lines_at_the_end(end: str) -> None:
    own = "-- policy\nfunction slurm_job_submit(desc, parts, uid)\n  return slurm.SUCCESS\nend\n"
    proposal = propose(SetupOptions(), snapshot({"job_submit.lua": own + end}), memory_of)
    text = proposal.files["job_submit.lua"]
    assert text.startswith(own + "local here")
    assert text.endswith("-- gpumem\n" + end)
    assert text.count("-- gpumem\n") == 3
    again = propose(SetupOptions(), snapshot({"job_submit.lua": text}), memory_of)
    assert again.files["job_submit.lua"] == text


def test_a_job_submit_lua_without_the_function_is_left_to_the_admin() -> None:
    odd = propose(SetupOptions(), snapshot({"job_submit.lua": "return require('policy')"}), memory_of)
    assert "by hand" in " ".join(odd.notes)


OWN_FILTER = "-- policy\n" + "".join(
    f"function slurm_cli_{name}(...)\n  return slurm.SUCCESS\nend\n"
    for name in ("setup_defaults", "pre_submit", "post_submit")
)


@pytest.mark.parametrize("own", [None, OWN_FILTER])
@pytest.mark.parametrize(
    ("line", "wanted"), [("", "lua"), ("CliFilterPlugins=user_defaults\n", "user_defaults,lua")]
)
def test_slurm_conf_names_the_filter_only_once_its_files_are_there(
    own: Optional[str], line: str, wanted: str
) -> None:
    seen = {"slurm.conf": line + TWO_NODES, **({"cli_filter.lua": own} if own else {})}
    first = propose(SetupOptions(), snapshot(seen), memory_of)
    assert "CliFilterPlugins=" + wanted not in first.files["slurm.conf"]
    assert first.files["cli_filter.lua"].startswith(own or "-- An example")
    assert first.files["cli_filter.lua"].count("-- gpumem\n") == 3
    assert f"python={sys.executable}\n" in first.files["gpumem/hooks.conf"]
    (said,) = [text for text in first.notes if text.startswith("plain sbatch, first step: ")]
    assert "login nodes" in said
    # Settings that the site has changed stay.
    seen.update(
        {**first.files, "slurm.conf": seen["slurm.conf"], "gpumem/hooks.conf": "python=/opt/gpumem\n"}
    )
    for missing in ("cli_filter.lua", "gpumem_filter.lua", "gpumem/hooks.conf"):
        fewer = propose(
            SetupOptions(), snapshot({name: seen[name] for name in seen if name != missing}), memory_of
        )
        assert "CliFilterPlugins=" + wanted not in fewer.files["slurm.conf"]
    second = propose(SetupOptions(), snapshot(seen), memory_of)
    assert f"CliFilterPlugins={wanted}\n" in second.files["slurm.conf"]
    assert second.files["gpumem/hooks.conf"] == "python=/opt/gpumem\n"
    assert any("second step" in text and "Undo: first that line" in text for text in second.notes)
    # What the commands here read counts; slurmctld need not have read it.
    third = propose(SetupOptions(), snapshot({**seen, **second.files}), memory_of)
    assert third.diff() == ""
    assert not any("plain sbatch" in text for text in third.notes)


def test_a_cli_filter_that_slurm_would_not_take_is_left_to_the_admin() -> None:
    half = OWN_FILTER.replace("slurm_cli_post_submit", "other")
    for text in (half, half + "-- gpumem\n"):
        seen = {
            "slurm.conf": TWO_NODES,
            "cli_filter.lua": text,
            "gpumem_filter.lua": "",
            "gpumem/hooks.conf": "x",
        }
        proposal = propose(SetupOptions(), snapshot(seen), memory_of)
        assert proposal.files["cli_filter.lua"] == text
        assert "CliFilterPlugins" not in proposal.files["slurm.conf"]
        assert "must define slurm_cli_post_submit, too" in " ".join(proposal.notes)


def test_a_site_may_leave_plain_sbatch_as_it_is() -> None:
    options = SetupOptions(cli_filter=False)
    seen = {"slurm.conf": TWO_NODES, "cli_filter.lua": OWN_FILTER}
    proposal = propose(options, snapshot(seen), memory_of)
    assert not {"cli_filter.lua", "gpumem_filter.lua", "gpumem/hooks.conf"} & set(proposal.files)
    assert "CliFilter" not in "".join([*proposal.files.values(), *proposal.notes])
    # What is in use stays.
    on = propose(options, snapshot({"slurm.conf": "CliFilterPlugins=lua\n" + TWO_NODES}), memory_of)
    assert "CliFilterPlugins=lua\n" in on.files["slurm.conf"]


def test_where_slurmctld_hands_out_slurm_conf_the_filter_is_left_out() -> None:
    files = {name: data_path("lua", name).read_text() for name in FILTER_FILES}
    seen = {"slurm.conf": TWO_NODES, "gpumem/hooks.conf": "x", **files}
    config = {"SlurmctldParameters": "idle_on_node_suspend,enable_configless"}
    proposal = propose(SetupOptions(), snapshot(seen, **config), memory_of)
    assert "CliFilterPlugins" not in proposal.files["slurm.conf"]
    assert any("enable_configless" in text for text in proposal.notes)
    on = {**seen, "slurm.conf": "CliFilterPlugins=lua\n" + TWO_NODES}
    assert "cli_filter.lua" in propose(SetupOptions(), snapshot(on, **config), memory_of).files


def test_without_slurms_filter_plug_in_it_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "job_submit_lua.so").touch()
    proposal = propose(
        SetupOptions(), snapshot({"slurm.conf": TWO_NODES}, PluginDir=str(tmp_path)), memory_of
    )
    assert "job_submit.lua" in proposal.files
    assert "cli_filter.lua" not in proposal.files
    assert any("cli_filter_lua.so is not in" in text for text in proposal.notes)


def test_an_unreadable_slurm_conf_is_compared_with_what_the_controller_says() -> None:
    diff = propose(SetupOptions(), snapshot(GresTypes="gpu"), memory_of).diff()
    assert "-GresTypes=gpu\n" in diff
    assert "+GresTypes=gpu,shard\n" in diff
    assert "-NodeName=n1 Gres=gpu:a100:4\n" in diff
    assert "+NodeName=n1 Gres=gpu:a100:4,shard:a100:156\n" in diff


def test_a_gres_conf_keeps_its_gpu_lines_and_drops_old_shares() -> None:
    conf = "AutoDetect=nvml\nName=mps Count=400\n"
    text = propose(SetupOptions(), snapshot({"gres.conf": conf}), memory_of).files["gres.conf"]
    assert text == "AutoDetect=nvml\nNodeName=n[1-2] Name=shard Type=a100 Count=156\n"


def test_files_are_only_written_into_a_fresh_folder(tmp_path: Path) -> None:
    seen = {"slurm.conf": CONF, "job_submit.lua": "function slurm_job_submit() end\n"}
    proposal = propose(SetupOptions(), snapshot(seen), memory_of)
    write_files(proposal, tmp_path / "new" / "folder")
    new = tmp_path / "new" / "folder"
    assert {path.name for path in new.iterdir()} == {*proposal.files, HOOKS} - {"gpumem/hooks.conf"}
    assert (new / HOOKS / "hooks.conf").read_text() == proposal.files["gpumem/hooks.conf"]
    with pytest.raises(UsageError, match="fresh folder"):
        write_files(proposal, tmp_path / "new")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        write_files(proposal, tmp_path / "file" / "sub")


def test_the_command_works_without_a_slurm_and_changes_nothing(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["setup", "--offline", "--gpu", "n[1-2]=a100:4:40G"]) == 0
    said = capsys.readouterr()
    assert "+NodeName=n[1-2] Gres=gpu:a100:4,shard:a100:156" in said.out
    assert "each 39 shards of 1024 MiB (1024 MiB kept back)" in said.err
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_is_wrong_with_its_options(capsys: Any) -> None:
    assert main(["setup", "--offline", "--gpu", "four a100"]) == 2
    assert "a100:4:40G" in capsys.readouterr().err


def test_a_sites_own_tables_in_gpumem_toml_stay() -> None:
    plan = SitePlan(groups=())
    own = '[sharing]\nmode = "on"\n\n[recovery]\nladder = ["+25%", "whole-gpu"]\n\n[node]\nmps = "off"\n'
    text = toml_file(plan, own)
    assert 'mode = "opt-in"' in text
    assert text.count("[recovery]") == 1
    assert '[recovery]\nladder = ["+25%", "whole-gpu"]\n\n[node]\nmps = "off"\n' in text
    assert toml_file(plan, text) == text


TWO_NODES = "NodeName=n[1-2] Gres=gpu:a100:4\nPartitionName=gpu Nodes=n[1-2]\nPartitionName=cpu Nodes=c1\n"


def several_nodes(**config: str) -> Snapshot:
    now = snapshot({"slurm.conf": TWO_NODES}, **config)
    return replace(now, partitions=tuple({**part, "LLN": "NO"} for part in now.partitions))


def test_partitions_of_several_shared_nodes_take_the_least_loaded_one_and_get_the_highest_limit() -> None:
    files = propose(SetupOptions(mps="shared"), several_nodes(), memory_of).files
    assert "PartitionName=gpu Nodes=n[1-2] LLN=YES" in files["slurm.conf"]
    assert "PartitionName=cpu Nodes=c1\n" in files["slurm.conf"]
    assert "max_slowdown = 3.5\n" in files["gpumem.toml"]
    packed = propose(SetupOptions(placement="pack"), several_nodes(), memory_of).files
    assert "LLN" not in packed["slurm.conf"]
    assert "max_slowdown = 1.25\n" in packed["gpumem.toml"]


@pytest.mark.parametrize(
    ("tables", "share"),
    [
        ({"sharing": {"max_slowdown": 2, "unknown_activity": 0.5}, "node": {"mps": "shared"}}, True),
        ({"sharing": {"max_slowdown": 2}, "node": {"mps": "shared"}}, False),
        ({"sharing": {"max_slowdown": 100.0, "unknown_activity": 0.5}}, False),
    ],
)
def test_plain_sbatch_counts_unknown_activity_as_the_site_says(tables: Dict[str, Any], share: bool) -> None:
    now = replace(snapshot({"gpumem.toml": "[sharing]\n"}), tables=tables)
    assert ("unknown_share = 0." in propose(SetupOptions(), now, memory_of).files["gpumem_site.lua"]) == share
    new = propose(SetupOptions(), several_nodes(), memory_of).files["gpumem_site.lua"]
    assert "unknown_share = 0." in new


def test_a_partition_with_other_nodes_keeps_its_order_of_nodes_and_gets_a_lower_limit() -> None:
    now = several_nodes()
    other = {"NodeName": "c1", "Partitions": "gpu,cpu", "CPUTot": "64", "RealMemory": "512000"}
    proposal = propose(SetupOptions(mps="shared"), replace(now, nodes=(*now.nodes, other)), memory_of)
    assert "LLN" not in proposal.files["slurm.conf"]
    assert "max_slowdown = 2\n" in proposal.files["gpumem.toml"]
    # The order of the queue counts for nodes without GPUs, too: only a note.
    assert WORD not in proposal.files["slurm.conf"]
    assert [note for note in proposal.notes if WORD in note]


def test_small_shares_go_around_one_that_has_waited_for_less_than_an_hour() -> None:
    text = propose(SetupOptions(), several_nodes(PriorityType="priority/basic"), memory_of).files[
        "slurm.conf"
    ]
    wanted = ("PriorityType=priority/multifactor", "PriorityWeightAge=100000", f"{WORD}=595")
    assert all(line in text for line in wanted)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (
            {"PriorityWeightAge": "1000", "PriorityMaxAge": "1-00:00:00"},
            {"SchedulerParameters": f"{WORD}=42"},
        ),
        ({"PriorityWeightAge": "1000", "PriorityWeightFairShare": "1000"}, {}),
        ({"SchedulerParameters": f"bf_continue,{WORD}=7"}, {}),
        ({"SchedulerType": "sched/builtin"}, {}),
    ],
)
def test_priorities_that_a_site_has_chosen_stay(config: Dict[str, str], wanted: Dict[str, str]) -> None:
    running = {"PriorityType": "priority/multifactor", **WITH_DATABASE, **config}
    assert flow_settings(running) == wanted


def test_no_share_goes_around_another_where_slurm_would_not_know_for_how_long() -> None:
    now = several_nodes(AccountingStorageType="accounting_storage/none")
    proposal = propose(SetupOptions(), now, memory_of)
    assert WORD not in proposal.files["slurm.conf"]
    assert [note for note in proposal.notes if WORD in note and "Only with slurmdbd" in note]


@pytest.mark.parametrize(
    ("words", "longest", "wanted"),
    [
        ("bf_continue", "3-00:00:00", f"bf_continue,{WORD}=595,bf_window=4380"),
        (f"bf_window=2880,{WORD}=7", "2-00:00:00", f"{WORD}=7,bf_window=2940"),
        (f"bf_window=2940,{WORD}=7", "2-00:00:00", None),
        (f"{WORD}=7", "12:00:00", None),
        (f"{WORD}=7", "UNLIMITED", None),
        (f"{WORD}=7", "365-00:00:00", f"{WORD}=7,bf_window=43200"),
        (f"{WORD}=7,bf_window=43200", "365-00:00:00", None),
    ],
)
def test_backfill_looks_ahead_as_far_as_the_longest_time_limit(
    words: str, longest: str, wanted: Optional[str]
) -> None:
    running = {**WITH_DATABASE, "SchedulerParameters": words}
    found = flow_settings(running, [{"MaxTime": "1:00:00"}, {"MaxTime": longest}])
    assert found.get("SchedulerParameters") == wanted


def tables_of(text: str, folder: Path) -> Dict[str, Any]:
    (folder / "gpumem.toml").write_text(text)
    return load_toml(folder / "gpumem.toml")


@pytest.mark.parametrize(
    ("placement", "level", "limit"), [("spread", True, 3.5), ("spread", False, 2), ("pack", False, 1.25)]
)
def test_a_new_site_gets_a_server_for_each_user_and_a_written_limit_and_may_change_both(
    placement: str, level: bool, limit: float, tmp_path: Path
) -> None:
    plan = SitePlan(groups=(A100,), placement=placement, level=level)
    tables = tables_of(toml_file(plan), tmp_path)
    assert tables["node"] == {"mps": "per-user"}
    assert tables["sharing"]["max_slowdown"] == limit
    # Strangers' faults may end a job only where the site has said so.
    text = toml_file(replace(plan, mps="shared"))
    tables = tables_of(text, tmp_path)
    assert tables["node"] == {"mps": "shared"}
    assert tables["sharing"]["max_slowdown"] == limit
    assert toml_file(plan, text) == text
    own = text.replace(f"max_slowdown = {limit}", "max_slowdown = 4")
    assert toml_file(plan, own) == own
    assert tables_of(toml_file(replace(plan, mps="per-user"), own), tmp_path)["node"] == {"mps": "per-user"}


def test_partitions_that_are_not_named_are_observed(tmp_path: Path) -> None:
    plan = SitePlan(groups=(A100,), mode="opt-in", shared=("gpu", "big one"))
    text = toml_file(plan)
    sharing = tables_of(text, tmp_path)["sharing"]
    assert sharing["mode"] == "observe"
    assert sharing["partition"] == {"gpu": {"mode": "opt-in"}, "big one": {"mode": "opt-in"}}
    assert toml_file(plan, text) == text
    asked = SetupOptions(mode="opt-in", partitions=("cpu",))
    with pytest.raises(UsageError, match="--partition cpu: has no GPU; partitions with GPUs: gpu"):
        propose(asked, snapshot(), memory_of)


@pytest.mark.parametrize("own", ['[sharing]\nmode = "opt-in"\n', '[job]\noptimizer = "sgd"\n'])
def test_a_site_that_upgrades_keeps_the_way_of_sharing_that_it_had(own: str, tmp_path: Path) -> None:
    tables = tables_of(toml_file(SitePlan(groups=()), own), tmp_path)
    assert "node" not in tables
    assert "max_slowdown" not in tables["sharing"]


def test_the_hooks_are_written_too_with_the_settings_of_this_site(tmp_path: Path) -> None:
    now = snapshot()
    own = {"StateSaveLocation": "/var/spool/ctl", "TaskProlog": "/etc/slurm/own_prolog"}
    write_files(
        propose(SetupOptions(), replace(now, config={**now.config, **own}), memory_of), tmp_path / "new"
    )
    hooks = tmp_path / "new" / HOOKS
    for name in SCRIPTS:
        assert (hooks / name).read_bytes() == data_path("prolog", name).read_bytes()
        assert (hooks / name).stat().st_mode & 0o777 == 0o755
    code = f'. {hooks}/hooks.conf; echo "$python|$state_dir|$next_task_prolog|$next_prolog"'
    shown = subprocess.run(["sh", "-ec", code], env={}, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"{sys.executable}|/var/spool/ctl|/etc/slurm/own_prolog|"


@pytest.mark.parametrize("mode", ["observe", "opt-in"])
def test_slurm_conf_runs_the_hooks_where_that_is_asked_for_and_the_sites_own_stay(mode: str) -> None:
    now = snapshot({"slurm.conf": TWO_NODES}, TaskProlog="/etc/slurm/own_prolog", PrologFlags="(null)")
    proposal = propose(SetupOptions(mode=mode, hooks=True), now, memory_of)
    lines = proposal.files["slurm.conf"].splitlines()
    assert "Prolog=/etc/slurm/gpumem/prolog.sh" in lines
    assert "EpilogSlurmctld=/etc/slurm/gpumem/epilog_slurmctld.sh" in lines
    assert "PrologFlags=Alloc" in lines
    assert not [line for line in lines if line.startswith("TaskProlog")]
    assert any("next_task_prolog=/etc/slurm/own_prolog" in note for note in proposal.notes)
    without = propose(SetupOptions(mode=mode), now, memory_of).files["slurm.conf"]
    assert "gpumem/prolog.sh" not in without


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_terminal_is_asked_what_neither_options_nor_the_site_say(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now = snapshot()
    both = tuple({**node, "Partitions": "gpu,course"} for node in now.nodes)
    now = replace(now, nodes=both, partitions=(*now.partitions, {"PartitionName": "course"}))
    answering(monkeypatch, "\n")
    assert asked(SetupOptions(), now).mode == "observe"
    # A slip is asked again; the partition without GPUs is none to choose from.
    answering(monkeypatch, "9\nopt-in\ncpu\ngpu, course\n\n")
    found = asked(SetupOptions(), now)
    assert (found.mode, found.partitions, found.mps) == ("opt-in", ("gpu", "course"), "per-user")
    said = capsys.readouterr().err
    assert (
        "1  per-user (default): an MPS server for each user. Mean completion 89 s, on whole GPUs 160 s."
        in said
    )
    assert "ends all users' jobs on its GPU" in said
    answering(monkeypatch, "2\n")
    assert asked(SetupOptions(mode="known", partitions=("gpu",)), now).mps == "shared"
    answering(monkeypatch, "")
    chosen = replace(now, policy={"mode": "on"}, tables={"node": {"mps": "shared"}})
    assert asked(SetupOptions(partitions=("gpu",)), chosen) == SetupOptions(partitions=("gpu",))
    with pytest.raises(UsageError, match="no answer; --mode"):
        asked(SetupOptions(), now)
