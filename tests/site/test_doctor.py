from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from slurm_gpumem.accounting.faults import Faults
from slurm_gpumem.accounting.sums import Offset
from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.config.read import read_tables
from slurm_gpumem.config.schema import SECTIONS
from slurm_gpumem.data import FILTER_FILES, data_path
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.site.doctor.check_hosts import FAULTS
from slurm_gpumem.site.doctor.doctor import CHECKS, Check, examine
from slurm_gpumem.site.doctor.findings import Diagnosis, Finding, Severity, diagnose
from slurm_gpumem.site.doctor.hosts import HostReport
from slurm_gpumem.site.doctor.lua_report import LuaReport
from slurm_gpumem.site.snapshot import Heartbeat, Snapshot, gather
from slurm_gpumem.slurm.state.queue import EndedJob, QueuedJob
from slurm_gpumem.slurm.state.sacct import Limit
from tests.support.fake_slurm import FakeSlurm
from tests.support.kept import assert_kept

NODE = {
    "NodeName": "n1",
    "Gres": "gpu:a100:4(S:0-1),shard:a100:160(S:0-1)",
    "Partitions": "gpu",
    "CPUTot": "64",
    "RealMemory": "512000",
}
PARTITION = {"PartitionName": "gpu", "OverSubscribe": "NO", "DefMemPerCPU": "8000"}
CONFIG = {
    "GresTypes": "gpu,shard",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,node,billing,gres/gpu,gres/shard",
    "AccountingStoreFlags": "job_env,job_comment",
    "JobSubmitPlugins": "lua",
    **{key: f"/etc/slurm/gpumem/{key.lower()}.sh" for key in ("Prolog", "Epilog", "TaskProlog")},
    "PrologFlags": "Alloc",
    "PrologEpilogTimeout": "60",
    "TaskEpilog": "/etc/slurm/gpumem/task_epilog.sh",
    "EpilogSlurmctld": "/etc/slurm/gpumem/epilog_slurmctld.sh",
    "SchedulerParameters": "bf_min_prio_reserve=595",
}
LUA = LuaReport(
    site={"mode": "opt-in", "gres": "shard", "shard_mib": "1024", "separator": "/"},
    partitions={"gpu": (("a100", 40),)},
)
HEALTHY = Snapshot(
    version=(24, 11, 5),
    config=CONFIG,
    nodes=(NODE,),
    partitions=(PARTITION,),
    files={"job_submit.lua": "gpumem.job_submit", "slurm.conf": ""},
    lua=LUA,
    policy={"mode": "opt-in", "gres": "shard", "shard_mib": 1024},
)


def config(**changes: str) -> Snapshot:
    return replace(HEALTHY, config={**CONFIG, **changes})


OURS = {name: data_path("lua", name).read_text() for name in FILTER_FILES}


def filtered(*without: str, **files: str) -> Snapshot:
    """A site with the filter of plain sbatch."""
    texts = {**HEALTHY.files, **OURS}
    texts.update({name.replace("_lua", ".lua"): text for name, text in files.items()})
    return replace(
        HEALTHY,
        config={**CONFIG, "CliFilterPlugins": "user_defaults,cli_filter/lua"},
        folder=Path("/nowhere"),
        files={name: text for name, text in texts.items() if name not in without},
        lua=replace(LUA, site={**LUA.site, "mode": "known"}),
        policy={**HEALTHY.policy, "mode": "known"},
        filter={"lua5.1": LuaReport(), "lua5.4": LuaReport()},
    )


def node(**changes: str) -> Snapshot:
    return replace(HEALTHY, nodes=({**NODE, **changes},))


def partition(**changes: str) -> Snapshot:
    return replace(HEALTHY, partitions=({**PARTITION, **changes},))


def lua(**changes: Any) -> Snapshot:
    return replace(HEALTHY, lua=replace(LUA, **changes))


OLD: Callable[..., Snapshot] = lambda **fields: replace(  # noqa: E731
    HEALTHY, version=(22, 5, 8), lua=replace(LUA, site={**LUA.site, "separator": ":"}), **fields
)


def test_a_healthy_cluster_is_ok_and_only_told_where_its_shared_jobs_go() -> None:
    diagnosis = examine(HEALTHY)
    assert diagnosis.severity is Severity.OK
    assert diagnosis.status == "GPUMEM OK - Slurm 24.11.5: GPUs are shared as they should be"
    assert [finding.check for finding in diagnosis.findings] == ["placement"]


def test_a_site_with_the_filter_in_place_hears_nothing_of_it() -> None:
    modes = {"partition": {"gpu": {"mode": "on"}}}
    site = replace(
        filtered(),
        policy={**filtered().policy, **modes},
        lua=replace(LUA, site={**LUA.site, "mode": "known", "mode of gpu": "on"}),
    )
    # The commands of this host read its own slurm.conf.
    off = {**site.files, "slurm.conf": "CliFilterPlugins=user_defaults\n"}
    assert [f.check for f in examine(site).findings if "filter" in f.check or "differ" in f.check] == []
    assert "filter-off" in [f.check for f in examine(replace(site, files=off)).findings]
    on = {**site.files, "slurm.conf": "clifilterplugins=lua\n"}
    assert replace(site, files=on, config=CONFIG).cli_filters == ("lua",)


def test_with_one_gpu_a_node_there_is_no_placement_to_tell() -> None:
    assert examine(node(Gres="gpu:a100:1,shard:a100:40")).findings == ()


def test_mps_on_nodes_with_one_gpu_is_fine() -> None:
    table = replace(LUA, site={**LUA.site, "gres": "mps"}, partitions={"gpu": (("a100", 100),)})
    site = replace(node(Gres="gpu:a100:1,mps:a100:100"), lua=table, policy={"gres": "mps"})
    assert [finding.check for finding in examine(site).findings] == ["accounting-tres"]


def test_whoever_has_written_the_way_of_sharing_hears_no_more_of_it() -> None:
    chosen = {"sharing": {"max_slowdown": 2}, "node": {"mps": "per-user"}}
    site = replace(HEALTHY, site_file="gpumem.toml", tables=chosen)
    assert "sharing-unchosen" not in [f.check for f in examine(site).findings]
    half = examine(replace(site, tables={"node": {"mps": "timeslice"}})).findings
    assert [(f.what, f.why) for f in half if f.check == "sharing-unchosen"] == [
        ("gpumem.toml does not set sharing.max_slowdown", "the default is a limit of 2")
    ]


CASES: Dict[str, Snapshot] = {
    "a slip in gpumem.toml": replace(
        HEALTHY, problems=read_tables({"sharing": {"mod": "on"}}, "gpumem.toml", SECTIONS).problems
    ),
    "no shares in GresTypes": config(GresTypes="gpu"),
    "no shares on nodes": node(Gres="gpu:a100:4"),
    "cons_res": config(SelectType="select/cons_res"),
    "shard and mps": node(Gres="gpu:a100:4,shard:a100:160,mps:a100:400"),
    "mps on several GPUs": replace(
        node(Gres="gpu:a100:4,mps:a100:400"),
        lua=replace(LUA, site={**LUA.site, "gres": "mps"}, partitions={"gpu": (("a100", 100),)}),
        policy={"gres": "mps"},
    ),
    "a limit by the driver, which nobody has tried": replace(
        HEALTHY, tables={**HEALTHY.tables, "node": {"driver_limit": True}}
    ),
    "a site file from before the way of sharing was written into it": replace(
        HEALTHY, site_file="/etc/slurm/gpumem.toml", tables={"sharing": {"mode": "on"}}
    ),
    "no backfill": config(SchedulerType="sched/builtin"),
    "jobs without a time limit": replace(
        HEALTHY, partitions=({**PARTITION, "DefaultTime": "NONE", "MaxTime": "UNLIMITED"},)
    ),
    "jobs that last longer than backfill looks ahead": replace(
        HEALTHY, partitions=({**PARTITION, "MaxTime": "7-00:00:00"},)
    ),
    "small shares that wait behind a large one": config(SchedulerParameters="bf_continue"),
    "small shares that go around a large one forever": config(
        AccountingStorageType="accounting_storage/none",
        PriorityType="priority/multifactor",
        SchedulerParameters="bf_min_prio_reserve=595",
    ),
    "nodes that fill up in order": replace(
        config(SelectTypeParameters="CR_CORE_MEMORY,LL_SHARED_GRES"),
        version=(24, 11, 5),
        nodes=tuple({**HEALTHY.nodes[0], "NodeName": name} for name in ("n1", "n2")),
        partitions=({**PARTITION, "LLN": "NO"},),
    ),
    "an unknown MIG profile": node(Gres="gpu:a100:4,gpu:5g.99gb:1,shard:a100:160"),
    "MIG beside shares of no type": node(Gres="gpu:a100:4,gpu:a100_1g.5gb:4,shard:160"),
    "uneven": node(Gres="gpu:4,shard:150"),
    "uneven by type": node(Gres="gpu:a100:4,gpu:t4:2,shard:a100:160,shard:t4:15"),
    "shares of a type without a GPU": node(Gres="gpu:a100:4,shard:a100:160,shard:t4:15"),
    "untyped shares on 22.05": OLD(nodes=({**NODE, "Gres": "gpu:a100:4,shard:160"},)),
    "comments not kept": config(AccountingStoreFlags="(null)"),
    "mixed partition on 22.05": OLD(),
    "mixed jobs on 22.05": OLD(jobs=(QueuedJob("gpu", "gres:gpu:1"), QueuedJob("gpu", "gres:shard:a100:3"))),
    "spreading on 22.05": OLD(
        files={**HEALTHY.files, "slurm.conf": "SelectTypeParameters=CR_Core,LL_SHARED_GRES"}
    ),
    "no default memory": partition(DefMemPerCPU="", DefMemPerNode="UNLIMITED"),
    "exclusive partition": partition(OverSubscribe="EXCLUSIVE"),
    "exclusive partition of 26.05": partition(Exclusive="NODE"),
    "shares fill one GPU after the other": HEALTHY,
    "shares are spread": config(SelectTypeParameters="CR_CORE_MEMORY,LL_SHARED_GRES"),
    "shares cannot be spread": OLD(),
    "shares not accounted": config(AccountingStorageTRES="cpu,mem,gres/gpu"),
    "limit without twin": replace(
        HEALTHY, limits=(Limit("qos normal", "MaxTRESPerUser", "cpu=64,gres/gpu=2"),)
    ),
    "billing without twin": partition(TRESBillingWeights="CPU=1.0,GRES/gpu=10"),
    "priority without twin": config(PriorityWeightTRES="CPU=1000,GRES/gpu=8000"),
    "no plug-in": config(JobSubmitPlugins="(null)"),
    "plug-in not called": replace(HEALTHY, files={"job_submit.lua": "return 0"}),
    "plug-in out of sight": replace(HEALTHY, files={}),
    "no interpreter": replace(HEALTHY, lua=None),
    "job_submit.lua broken": lua(broken=(("job_submit.lua", "line 3: x"),)),
    "module broken": replace(
        HEALTHY, files={**HEALTHY.files, "gpumem.lua": "x"}, lua=LuaReport(broken=(("gpumem.lua", "x"),))
    ),
    "no cli_filter.lua": filtered("cli_filter.lua"),
    "no cli_filter.lua where nobody submits": replace(filtered("cli_filter.lua"), is_controller=True),
    "a cli_filter.lua of the site's own": filtered(cli_filter_lua="-- own"),
    "no gpumem_filter.lua": filtered("gpumem_filter.lua"),
    "an old gpumem_filter.lua": filtered(gpumem_filter_lua="-- old"),
    "slurm.conf elsewhere": replace(filtered(), folder=None),
    "a cli_filter.lua without a function": filtered(
        cli_filter_lua=OURS["cli_filter.lua"].replace("slurm_cli_post_submit", "other")
    ),
    "no Lua loads cli_filter.lua": replace(
        filtered(), filter={"lua5.1": LuaReport(broken=(("cli_filter.lua", "x"),))}
    ),
    "one Lua does not load cli_filter.lua": replace(
        filtered(), filter={"lua5.1": LuaReport(broken=(("cli_filter.lua", "x"),)), "lua5.4": LuaReport()}
    ),
    "no Lua loads gpumem_filter.lua": replace(
        filtered(), filter={"lua5.1": LuaReport(broken=(("gpumem_filter.lua", "x"),))}
    ),
    "a mode that needs the filter": replace(
        HEALTHY, policy={**HEALTHY.policy, "partition": {"gpu": {"mode": "known"}}}
    ),
    "a filter that is not in use": replace(
        HEALTHY, files={**HEALTHY.files, **OURS, "gpumem/hooks.conf": "x"}
    ),
    "a partition's mode that the plug-in does not have": replace(
        filtered(), policy={**filtered().policy, "partition": {"gpu": {"mode": "on"}}}
    ),
    "table with other shares": lua(partitions={"gpu": (("a100", 39),)}),
    "table without a partition": lua(partitions={}),
    "table for mps": lua(site={**LUA.site, "gres": "mps"}),
    "table of another version": lua(site={**LUA.site, "separator": ":"}),
    "toml and table differ": replace(HEALTHY, policy={"mode": "on"}),
    "an older table sets a mode and gpumem.toml none": replace(
        lua(site={**LUA.site, "mode": "on"}), policy={}
    ),
    "no recovery": config(EpilogSlurmctld="(null)"),
    "another EpilogSlurmctld": config(EpilogSlurmctld="/etc/slurm/jobstats.sh"),
    "half a recovery": config(TaskEpilog="(null)"),
    "no time to save": config(PreemptMode="REQUEUE", KillWait="5 sec"),
    "a grace time": replace(
        config(PreemptMode="REQUEUE", KillWait="30 sec"),
        partitions=tuple({**part, "GraceTime": "60"} for part in HEALTHY.partitions),
        version=(24, 11, 5),
    ),
    "a requeue left half done": replace(HEALTHY, left_held=("4711", "4712_3")),
    "no prolog": config(Prolog="(null)", Epilog="(null)", TaskProlog="(null)"),
    "prolog flags": config(PrologFlags="(null)"),
    "prolog for ever": config(PrologEpilogTimeout="65534"),
    "nodes down": node(State="IDLE+DRAIN", Reason="x"),
    "gres.conf with fewer": replace(
        HEALTHY, files={**HEALTHY.files, "gres.conf": "Name=shard Type=a100 Count=150"}
    ),
    "gres.conf with more": replace(
        HEALTHY, files={**HEALTHY.files, "gres.conf": "NodeName=n[1-4] Name=shard Count=164"}
    ),
    "more shards than its model may have": node(Gres="gpu:a100:4,shard:a100:320"),
    "more shards than measured memory": replace(
        HEALTHY, here=HostReport(facts={"gpus": [["NVIDIA A100", 32768]] * 4}, nodes=("n1",))
    ),
    "no such partition": replace(HEALTHY, policy={**HEALTHY.policy, "partition": {"gpus": {}}}),
    "Lua files not there": replace(HEALTHY, folder=Path("/etc/slurm")),
    "no job_submit.lua": replace(HEALTHY, files={}, folder=Path("/etc/slurm"), is_controller=True),
    "no plug-in of Slurm's": replace(config(PluginDir="/nowhere:/etc"), is_controller=True),
    "no TaskProlog": config(TaskProlog="(null)"),
    "hook not seen": replace(HEALTHY, hooks_unseen=("Prolog=/x/prolog.sh",)),
    "versions": replace(HEALTHY, here=HostReport(facts={"version": "0.0.1"})),
    "faults in a month": replace(HEALTHY, faults=Faults(1200, 8, 31.0, 3, 2, 5)),
    "estimates of a GPU type are off": replace(
        HEALTHY, offsets=(Offset("v100", -0.11, 5, 20), Offset("a100", 0.2, 4, 99))
    ),
    "gpusbatch reads another file": replace(HEALTHY, site_file=__file__, submits_by="/etc/slurm/gpumem.toml"),
    "hooks of the site's own alone": config(Prolog="/site/prolog.sh", Epilog="/site/epilog.sh"),
    "two site files": replace(
        HEALTHY, site_file=__file__, here=HostReport(facts={"site_config": "/etc/passwd"})
    ),
    "EpilogSlurmctld does not run": replace(HEALTHY, heartbeat=Heartbeat(ran=90.0, due=EndedJob("7", 100.0))),
    "EpilogSlurmctld not proven": replace(HEALTHY, heartbeat=Heartbeat()),
    "no place for its sign": replace(HEALTHY, heartbeat=Heartbeat(configured=False)),
    "prolog too short": config(PrologEpilogTimeout="5"),
    **{f"probe: {check}": replace(HEALTHY, here=HostReport(((check, "/x"),))) for check in FAULTS},
    "not asked": replace(HEALTHY, unread=("limits: denied",)),
}


def test_each_trap_is_found_with_what_why_and_how() -> None:
    shown = {
        case: json.dumps(examine(snapshot).as_json()).replace(__file__, "FILE")
        for case, snapshot in CASES.items()
    }
    assert_kept(Path(__file__).with_name("doctor.json"), shown)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_check_has_a_case_that_it_finds(check: Check) -> None:
    assert any(check(snapshot) for snapshot in CASES.values())


def test_the_page_documents_every_finding() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "admin" / "doctor.md").read_text()
    names = {finding.check for snapshot in CASES.values() for finding in examine(snapshot).findings}
    assert [name for name in names if f"`{name}`" not in page] == []


def test_limits_and_weights_that_have_their_twin_are_fine() -> None:
    fine = replace(
        HEALTHY,
        limits=(
            Limit("qos normal", "MaxTRESPerUser", "gres/gpu=2,gres/shard=80"),
            Limit("account a", "GrpTRES", "cpu=9"),
        ),
        partitions=({**PARTITION, "TRESBillingWeights": "GRES/gpu=10,GRES/shard=0.25"},),
    )
    assert examine(fine).without({"placement"}).findings == ()


def test_a_wildcard_table_fits_every_partition() -> None:
    anywhere = lua(partitions={"*": (("a100", 40),)})
    assert examine(anywhere).without({"placement"}).findings == ()


def test_what_is_critical_decides_and_comes_first() -> None:
    findings = [
        Finding(severity, severity.name, "what", "why", "fix")
        for severity in (Severity.NOTE, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)
    ]
    diagnosis = diagnose(findings, "22.05.8")
    assert diagnosis.severity is Severity.CRITICAL
    assert [finding.check for finding in diagnosis.findings] == ["CRITICAL", "WARNING", "UNKNOWN", "NOTE"]
    assert diagnosis.without(["CRITICAL", "WARNING"]).severity is Severity.UNKNOWN
    assert diagnose([findings[0]], "x").severity is Severity.OK


def test_no_line_holds_what_nagios_takes_for_figures() -> None:
    diagnosis = Diagnosis((Finding(Severity.WARNING, "c", "a|b\nc", "d|e", "f"),), "1")
    assert "|" not in diagnosis.text()
    assert diagnosis.text().splitlines() == [
        "GPUMEM WARNING - Slurm 1: 1 warning - a/b c",
        "warning c: a/b c; d/e",
        "    fix: f",
    ]


def test_an_a100_with_80_measured_gib_may_have_80_shards() -> None:
    report = HostReport(facts={"gpus": [["NVIDIA A100-SXM4-80GB", 81920]] * 4}, nodes=("n1",))
    large = replace(node(Gres="gpu:a100:4,shard:a100:320"), here=report, lua=None)
    assert "too-many-shards" not in [finding.check for finding in examine(large).findings]


def test_nothing_that_steers_a_terminal_is_printed() -> None:
    finding = Finding(Severity.WARNING, "c", "a\x1b[2Jb", "c\x9bd", "e\u202ef\r")
    text = Diagnosis((finding,), "1\x1b]0;x\x07").text()
    assert all(line.isprintable() for line in text.split("\n"))


def test_partitions_with_the_same_trouble_are_one_finding() -> None:
    nodes = ({**NODE, "Partitions": "gpu,long"},)
    jobs = (QueuedJob("long", "gres:gpu:1"), QueuedJob("long", "gres:shard:3"))
    assert [f.what for f in examine(OLD(nodes=nodes)).findings if f.check == "mixed-jobs"] == [
        "partitions gpu, long take whole-GPU and shared jobs"
    ]
    assert [f.what for f in examine(OLD(nodes=nodes, jobs=jobs)).findings if f.check == "mixed-jobs"] == [
        "whole-GPU and shared jobs are queued in partition long",
        "partition gpu takes whole-GPU and shared jobs",
    ]


def test_the_json_answer_is_complete() -> None:
    diagnosis = json.loads(json.dumps(examine(config(GresTypes="gpu")).as_json()))
    assert (diagnosis["schema"], diagnosis["status"], diagnosis["exit_code"]) == (
        "gpumem-doctor/1",
        "critical",
        2,
    )
    assert set(diagnosis["findings"][0]) == {"severity", "check", "what", "why", "fix"}


NODES = (
    "NodeName=n1 CPUTot=64 Gres=gpu:3090:4(S:0-1),shard:3090:96(S:0-1) RealMemory=512000 Partitions=gpu "
    "Version=24.11.5\n"
)


def recorded(folder: Path, **more: Any) -> FakeSlurm:
    """A cluster's answers; its slurm.conf is in `folder`."""
    settings = {**CONFIG, "SLURM_VERSION": "24.11.5", "SLURM_CONF": f"{folder}/slurm.conf"}
    answers = {
        "scontrol show config": "".join(f"{key:<24}= {value}\n" for key, value in settings.items()),
        "scontrol show node": NODES,
        "scontrol show partition": "PartitionName=gpu OverSubscribe=NO DefMemPerCPU=8000\n",
        "sacctmgr show qos": "normal||||\n",
        "sacctmgr show assoc": "root|||\n",
        "squeue -O": f"{'gpu':<64}gres:shard:3090:3\n",
        "squeue -t PENDING -o %i|%r": "",
    }
    return FakeSlurm({**answers, **more})


def test_a_cluster_is_pictured_from_what_slurm_answers(tmp_path: Path) -> None:
    (tmp_path / "gpumem.toml").write_text('[sharing]\nmode = "on"\n')
    now = gather(recorded(tmp_path))
    assert (now.version_text, now.folder, now.policy) == ("24.11.5", tmp_path, {"mode": "on"})
    assert [node["Gres"] for node in now.shared_nodes()] == ["gpu:3090:4(S:0-1),shard:3090:96(S:0-1)"]
    assert now.jobs == (QueuedJob("gpu", "gres:shard:3090:3"),)
    assert (now.left_held, now.limits, now.unread) == ((), (), ())


def test_what_slurm_does_not_answer_is_noted_and_the_rest_is_checked(tmp_path: Path) -> None:
    refused = {"sacctmgr": SlurmError("sacctmgr: no slurmdbd"), "squeue -O": SlurmError("squeue: no")}
    slurm = recorded(tmp_path, **refused, **{"sacctmgr show qos": SlurmError("sacctmgr: no slurmdbd")})
    assert gather(slurm).unread == ("limits: sacctmgr: no slurmdbd", "jobs: squeue: no")


def test_only_our_own_held_jobs_are_left_over(tmp_path: Path) -> None:
    held = "7|job requeued in held state\n8|job requeued in held state\n9|Priority\n"
    comments = "7|gpumem/1:est=1 gpumem-end/1:run=0,saw=oom\n8|mine\n9|gpumem/1:est=1 gpumem-end/1:run=0\n"
    answers = {"squeue -t PENDING -o %i|%r": held, "squeue -t PENDING -o %i|%k": comments}
    assert gather(recorded(tmp_path, **answers)).left_held == ("7",)


def test_everything_that_is_wrong_in_the_sites_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "gpumem.toml").write_text(
        '[sharing]\nmode = "yes"\n[node]\nheadroom_mib = "x"\n[recovery]\nlader = []\n[acounting]\n'
        "[slurm]\ntimeout_s = 9\n[accounting]\nindex = 3\n"
    )
    found = [f for f in examine(gather(recorded(tmp_path))).findings if f.check == "site-file"]
    assert [finding.what.partition(": ")[2] for finding in found] == [
        "sharing.mode must be one of observe, opt-in, known, on, not 'yes'",
        "node.headroom_mib must be a whole number of MiB, not 'x'",
        "unknown key 'acounting'; did you mean 'accounting'?",
        "no longer settings, and without effect: slurm.timeout_s, accounting.index; remove those lines",
        "recovery: unknown key 'lader'; did you mean 'ladder'?",
    ]
    assert [finding.severity.name for finding in found] == 2 * ["CRITICAL"] + 3 * ["WARNING"]


def test_a_file_that_is_no_toml_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "gpumem.toml").write_text("[sharing\n")
    (finding,) = [f for f in examine(gather(recorded(tmp_path))).findings if f.check == "site-file"]
    assert "is not valid TOML" in finding.what
    assert finding.severity is Severity.CRITICAL


def test_without_a_slurm_the_diagnosis_is_unknown(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["doctor"]) == 3
    assert capsys.readouterr().out.startswith(
        "GPUMEM UNKNOWN - Slurm does not answer: 1 unknown - scontrol: not found"
    )
