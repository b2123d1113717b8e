"""What setup proposes for drawn sites, and what the doctor says of them, is what it was.

Where a change is meant, the test run with WRITE=1 keeps it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from slurm_gpumem.data import FILTER_FILES, LUA_FILES
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.site.doctor.doctor import examine
from slurm_gpumem.site.doctor.lua_report import LuaReport
from slurm_gpumem.site.setup.setup import SetupOptions, propose
from slurm_gpumem.site.snapshot import Snapshot, with_hidden_nodes
from tests.support.kept import assert_kept, plain

GRES = (
    "gpu:a100:4", "gpu:a100:4", "gpu:4", "gpu:a100:2,gpu:v100:1", "gpu:a100:4,shard:a100:160",
    "gpu:h100:8,mps:800",
    "gpu:a100:4(S:0-1),shard:64", "", "gpu:1g.5gb:7,gpu:a100:1", "gpu:t4:1,shard:15", "gpu:nobody:2",
)  # fmt: skip
VALUES: Dict[str, Any] = {
    "GresTypes": ("gpu,shard", "gpu", "gpu,mps", "(null)"),
    "SelectType": ("select/cons_tres", "select/cons_tres", "select/cons_res", "select/linear"),
    "SelectTypeParameters": ("CR_CORE_MEMORY", "CR_CORE", "CR_CPU_MEMORY,CR_LLN", "NONE"),
    "AccountingStorageType": ("accounting_storage/slurmdbd", "(null)"),
    "AccountingStorageTRES": ("cpu,mem,node,billing,gres/gpu,gres/shard", "cpu,mem,node,billing"),
    "AccountingStoreFlags": ("job_comment", "job_env,job_comment", "(null)"),
    "PrologFlags": ("Alloc,Contain", "Alloc", "X11", "(null)", "DeferBatch,Serial"),
    "JobSubmitPlugins": ("lua", "(null)", "all_partitions", "lua,pbs"),
    "PluginDir": ("/nowhere",), "PrologEpilogTimeout": ("120", "65534", "5"),
    "DefMemPerCPU": ("4000", "UNLIMITED"), "DefMemPerNode": ("UNLIMITED", "9000"),
    "Prolog[0]": (None, "/etc/slurm/gpumem/prolog.sh", "/site/prolog.sh"), "Epilog[0]": (None,
    "/site/epilog.sh"),
    "TaskProlog": ("(null)", "/site/task.sh"), "EpilogSlurmctld[0]": (None, "/site/e.sh"),
    "SchedulerParameters": ("(null)", "bf_continue,bf_min_prio_reserve=595", "default_queue_depth=1000"),
    "SchedulerType": ("sched/backfill", "sched/builtin"), "JobRequeue": ("1", "0"),
    "PriorityType": ("priority/multifactor", "priority/basic"), "SlurmctldParameters": ("(null)",
    "enable_configless"),
    "ProctrackType": ("proctrack/cgroup", "proctrack/linuxproc"),
    "TaskPlugin": ("task/cgroup,task/affinity", "task/none"),
    "MaxArraySize": ("1001",), "OverTimeLimit": ("0", "UNLIMITED"), "KillWait": ("30", "5"),
}  # fmt: skip


def _site(dice: random.Random) -> Snapshot:
    choose = dice.choice

    def some(pairs: Dict[str, Any]) -> Dict[str, str]:
        found = {key: choose(values) for key, values in pairs.items()}
        return {key: value for key, value in found.items() if value is not None}

    nodes = [
        {
            "NodeName": f"n{number}", "Gres": choose(GRES), "Partitions": choose(("gpu", "gpu,long", "")),
            "CPUTot": choose(("64", "64", "7")), "RealMemory": choose(("512000", "1")),
            "MemSpecLimit": choose(("0", "2048")), "State": choose(("IDLE", "IDLE+CLOUD", "DOWN+DRAIN")),
            "AvailableFeatures": choose(("(null)", "a100,ib")),
        }
        for number in range(1, choose((2, 3, 6)))
    ]  # fmt: skip
    partitions: List[Dict[str, str]] = [
        {"PartitionName": "gpu", "Default": choose(("YES", "NO")), "Nodes": "n[1-5]", **some({
            "OverSubscribe": (None, "NO", "EXCLUSIVE", "FORCE:4"), "MaxTime": ("UNLIMITED", "1-00:00:00"),
            "DefaultTime": ("NONE", "01:00:00"), "DefMemPerCPU": (None, "2000"), "LLN": ("NO", "YES"),
            "State": ("UP", "DOWN"), "QoS": ("N/A", "gpu"), "TRESBillingWeights": (None,
            "CPU=1.0,GRES/gpu=8"),
        })},
        {"PartitionName": "cpu", "Default": "NO", "Nodes": "c1"},
    ]  # fmt: skip
    config = some(VALUES)
    line = "NodeName={NodeName} Gres={Gres} CPUs={CPUTot} RealMemory={RealMemory}"
    lines = [line.format(**node).replace(" Gres= ", " ") for node in nodes]
    shown = {
        key: config[key] for key in ("GresTypes", "JobSubmitPlugins", "PrologFlags") if "(" not in config[key]
    }
    conf = "\n".join((
        "ClusterName=x", *(f"{key}={value}  # ours" for key, value in shown.items() if dice.random() < 0.97),
        choose(("", "NodeName=DEFAULT CPUs=64")), *(choose((one, one.replace(" CPUs",
        " \\\n  CPUs"))) for one in lines),
        choose(("", "NodeName=f1 Gres=gpu:a100:2 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 State=FUTURE")),
        "NodeName=c1", "PartitionName=gpu Nodes=n[1-5]", choose(("", "", "", "", "Prolog=/site/other.sh")),
    ))  # fmt: skip
    gres = choose((
        "", "AutoDetect=nvml\n", "Name=gpu Type=a100 File=/dev/nvidia[0-3]\n",
        "NodeName=n[1-5] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-31\nName=shard Count=160\n",
    ))  # fmt: skip
    files = {"slurm.conf": conf, "gres.conf": gres, **some({
        "gpumem.toml": (None, '[sharing]\nmode = "on"\nshard_mib = 2048\n', "[sharing\n"),
        "job_submit.lua": (None, "-- site\nfunction slurm_job_submit() return 0 end\n",
        'dofile("gpumem.job_submit")'),
        "cli_filter.lua": (None, None, "-- site's own\n"),
    })}  # fmt: skip
    policy: Dict[str, Any] = choose(
        ({}, {"mode": "on", "shard_mib": 2048, "gres": "shard"}, {"mode": "known"})
    )
    report = LuaReport(site=choose(({}, {"mode": "opt-in", "gres": "shard", "shard_mib": "1024",
    "separator": "/"})),
                       partitions=choose(({}, {"gpu": (("a100", 40),)})))  # fmt: skip
    return Snapshot(
        version=choose(((22, 5, 8), (23, 2, 1), (23, 11, 0), (24, 11, 5), (25, 5, 0))), config=config,
        nodes=tuple(nodes), partitions=tuple(partitions), files=files if dice.random() < 0.9 else {},
        policy=policy,
        tables={"sharing": policy} if policy else {}, lua=choose((None, report)),
    )  # fmt: skip


def _options(dice: random.Random) -> SetupOptions:
    choose = dice.choice
    return SetupOptions(
        gpus=choose(((), (), (), ("n[1-2]=a100:4:40G",), ("n1=t4:2:15G",))), gres=choose((None, None, "shard",
        "mps")),
        mode=choose((None, "on", "known", "observe")), shard_mib=choose((None, None, 512, 4096)),
        reserve_mib=choose((None, 0, 2048)), mps_per_gpu=choose((100, 200)),
        placement=choose((None, None, "pack", "spread", "level")), cli_filter=dice.random() < 0.7,
    )  # fmt: skip


def _memory(kind: str) -> Optional[int]:
    return {"a100": 40960, "v100": 16384, "h100": 81559, "t4": 15360, "1g.5gb": 4864}.get(kind)


@pytest.mark.parametrize("part", range(6))
def test_a_drawn_site_is_judged_and_changed_as_it_was(part: int) -> None:
    said: Dict[str, str] = {}
    for number in range(part * 60, part * 60 + 60):
        dice = random.Random(number)
        site = with_hidden_nodes(_site(dice)) if dice.random() < 0.5 else _site(dice)
        options = _options(dice)
        try:
            found = propose(options, None if options.gpus and dice.random() < 0.4 else site, _memory)
            files = {
                name: text for name, text in found.files.items() if name not in (*LUA_FILES, *FILTER_FILES)
            }
            told = repr(plain([found.plan, files, found.notes, sorted(found.hooks), sorted(found.parts)]))
            told = told.replace(sys.executable, "PYTHON")
        except GpumemError as error:
            told = f"{type(error).__name__} {error}"
        name, judged = f"{number // 5 * 5}…", json.dumps(examine(site).as_json(), sort_keys=True)
        said[f"proposals {name}"] = said.get(f"proposals {name}", "") + f"{number}: {told}\n"
        said[f"judged {name}"] = said.get(f"judged {name}", "") + f"{number}: {judged}\n"
    assert_kept(Path(__file__).with_name("proposals.json"), said)
