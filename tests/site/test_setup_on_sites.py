"""What setup proposes for sites as they are found, on real daemons; each test is a way to break a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster import installation, trial
from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.doctor.check_hooks import FILTER_PLUGIN, LUA_PLUGIN
from slurm_gpumem.site.setup.setup import SetupOptions
from slurm_gpumem.site.setup.slurm_conf import value_of
from slurm_gpumem.site.setup.trial_run import Verdict
from tests.support.site_files import GPUS, HEAD, SLURM_ROOT, after, proposed, snapshot_of, tried

pytestmark = pytest.mark.slurm

GPU_NODE = "NodeName=n1 CPUs=16 RealMemory=64000 Gres=gpu:a100:4\n"
CPU_NODE = "NodeName=c1 CPUs=64 RealMemory=16000\n"
PARTITIONS = "PartitionName=gpu Nodes=n1 Default=YES\nPartitionName=cpu Nodes=c1\n"
PLAIN = {"slurm.conf": HEAD + GPU_NODE + CPU_NODE + PARTITIONS, "gres.conf": f"NodeName=n1 {GPUS}"}


def passes(verdict: Verdict) -> bool:
    assert (verdict.broken, verdict.not_tried) == ((), "")
    return "requests answered as before" in verdict.said


def test_a_plain_site_passes_and_its_cpu_partition_stays_as_it_is() -> None:
    now = snapshot_of(PLAIN, ["n1", "c1"])
    proposal = proposed(now)
    lines = proposal.files["slurm.conf"].splitlines()
    assert "PartitionName=gpu Nodes=n1 Default=YES DefMemPerCPU=4000 DefMemPerGPU=16000" in lines
    assert "PartitionName=cpu Nodes=c1" in lines
    assert not [line for line in lines if line.startswith("DefMemPer")]
    assert passes(tried(proposal, now))


def test_a_global_default_of_memory_that_makes_a_cpu_partition_useless_is_found() -> None:
    now = snapshot_of(PLAIN, ["n1", "c1"])
    proposal = proposed(now)
    worse = {**proposal.files, "slurm.conf": proposal.files["slurm.conf"] + "DefMemPerCPU=4000\n"}
    verdict = tried(replace(proposal, files=worse), now)
    assert len(verdict.broken) == 1
    assert verdict.broken[0].startswith(
        "works now and would not: all CPUs of a node in cpu (sbatch -pcpu -wc1 -N1 -n64): "
    )


def test_lines_in_included_files_are_edited_there(tmp_path: Path) -> None:
    files = {
        "slurm.conf": f"{HEAD}Include {tmp_path}/parts/nodes.conf\nInclude partitions.conf\n",
        "parts/nodes.conf": f"# nodes\ninclude {tmp_path}/parts/gpu.conf\n{CPU_NODE}",
        "parts/gpu.conf": GPU_NODE,
        "partitions.conf": PARTITIONS,
        "gres.conf": "include gres-gpu.conf\n",
        "gres-gpu.conf": f"NodeName=n1 {GPUS}NodeName=n1 Name=shard Count=8\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    now = snapshot_of(files, ["n1", "c1"], tmp_path)
    proposal = proposed(now)
    assert proposal.files["parts/gpu.conf"] == GPU_NODE.replace(":4", ":4,shard:a100:156")
    assert "DefMemPerCPU=4000" in proposal.files["partitions.conf"]
    assert "Name=shard" not in proposal.files["gres-gpu.conf"]
    assert "parts/nodes.conf" not in proposal.files
    assert passes(tried(proposal, now))
    lost = replace(now, files={name: text for name, text in files.items() if name != "partitions.conf"})
    assert tried(proposal, lost).not_tried.startswith(
        "partitions.conf cannot be read here; run gpumem setup on "
    )
    with pytest.raises(
        UsageError, match=r"gpu: no PartitionName= line .* partitions.conf cannot be read here"
    ):
        proposed(lost)


def without_lua(folder: Path, plugins: str) -> str:
    """A copy of Slurm's plug-ins without the two for Lua."""
    folder.mkdir(mode=0o755)
    for plugin in Path(f"{SLURM_ROOT or ''}{plugins}").iterdir():
        if plugin.name not in (LUA_PLUGIN, FILTER_PLUGIN):
            (folder / plugin.name).symlink_to(f"{plugins}/{plugin.name}")
    return str(folder)


def test_without_the_lua_plugin_the_rest_is_proposed_and_the_package_named(state_folder: Path) -> None:
    stock = value_of(snapshot_of(PLAIN, ["n1", "c1"]).config, "PluginDir") or ""
    line = f"PluginDir={without_lua(state_folder / 'plugins', stock)}\n"
    now = snapshot_of({**PLAIN, "slurm.conf": line + PLAIN["slurm.conf"]}, ["n1", "c1"])
    proposal = proposed(now)
    assert "JobSubmitPlugins" not in proposal.files["slurm.conf"]
    assert [name for name in proposal.files if name.endswith(".lua")] == []
    said = " ".join(proposal.notes)
    assert "slurm-wlm-basic-plugins" in said
    assert "gpusbatch asks for shares by itself" in said
    assert passes(tried(proposal, now))
    files = {**proposal.files, "slurm.conf": proposal.files["slurm.conf"] + "JobSubmitPlugins=lua\n"}
    verdict = tried(replace(proposal, files=files), now)
    assert "does not start" in verdict.broken[0]
    assert "job_submit" in verdict.broken[0]


TWO_TYPES = "NodeName=n1 CPUs=16 RealMemory=64000 Gres={}\nPartitionName=gpu Nodes=ALL Default=YES\n"
SIZES = ("n1=a100:2:40G", "n1=v100:2:16G")


def two_types(gres_conf: str, gres: str = "gpu:a100:2,gpu:v100:2") -> Dict[str, str]:
    return {"slurm.conf": HEAD + TWO_TYPES.format(gres), "gres.conf": gres_conf}


def devices(running: Any, gres: str) -> str:
    return str(running.devices(["-pgpu", "--mem=1", f"--gres={gres}"]))


def test_shares_of_two_types_are_on_the_devices_that_gres_conf_names() -> None:
    lines = "Name=gpu Type=v100 File=/dev/nvidia[0-1]\nName=gpu Type=a100 File=/dev/nvidia[2,3]\n"
    now = snapshot_of(two_types(lines), ["n1"])
    proposal = proposed(now, SetupOptions(gpus=SIZES, slurm_root=SLURM_ROOT))
    assert "Gres=gpu:v100:2,gpu:a100:2,shard:v100:30,shard:a100:78" in proposal.files["slurm.conf"]
    assert "Name=shard Type=a100 Count=39 File=/dev/nvidia2\n" in proposal.files["gres.conf"]
    assert passes(tried(proposal, now))
    with trial.started(after(proposal, now), ["n1"], SLURM_ROOT) as running:
        found = {gres: devices(running, gres) for gres in ("shard:v100:15", "shard:a100:39", "gpu:a100:2")}
    assert found == {"shard:v100:15": "0", "shard:a100:39": "2", "gpu:a100:2": "2,3"}
    swapped = proposal.files["slurm.conf"].replace(
        "gpu:v100:2,gpu:a100:2,shard:v100:30,shard:a100:78",
        "gpu:a100:2,gpu:v100:2,shard:a100:78,shard:v100:30",
    )
    verdict = tried(replace(proposal, files={**proposal.files, "slurm.conf": swapped}), now)
    assert "--gres=shard:a100:39 on n1 got GPU 0, not one of a100" in verdict.broken


def test_two_types_that_slurm_cannot_keep_apart_are_refused() -> None:
    in_turn = "Name=gpu Type=v100 File=/dev/nvidia[0,2]\nName=gpu Type=a100 File=/dev/nvidia[1,3]\n"
    options = SetupOptions(gpus=SIZES)
    with pytest.raises(UsageError, match=r"n1 has GPUs of several types in turn \(v100, a100, v100, a100\)"):
        proposed(snapshot_of(two_types(in_turn), ["n1"]), options)
    with pytest.raises(UsageError, match="does not say which GPU is which"):
        proposed(snapshot_of(two_types("AutoDetect=nvml\n"), ["n1"]), options)


def test_a_configuration_that_does_not_start_now_is_not_called_tried() -> None:
    now = snapshot_of(PLAIN, ["n1", "c1"])
    twice = {**PLAIN, "slurm.conf": PLAIN["slurm.conf"] + GPU_NODE}
    verdict = tried(proposed(now), replace(now, files=twice))
    assert verdict.broken_before
    assert "Duplicated Node" in verdict.not_tried
    assert "--untried" in verdict.not_tried


def test_a_job_submit_lua_that_would_not_load_stops_the_proposal() -> None:
    own = "function slurm_job_submit(job_desc, part_list, uid)\n  return slurm.SUCCESS\n"
    now = snapshot_of({**PLAIN, "job_submit.lua": own}, ["n1", "c1"])
    proposal = proposed(now)
    assert (
        "job_submit.lua is there and not in use now; JobSubmitPlugins=lua puts its own rules in use too"
        in (proposal.notes)
    )
    assert tried(proposal, now).broken[0].startswith("job_submit.lua does not load: ")
    good = replace(now, files={**PLAIN, "job_submit.lua": own + "end\n"})
    assert passes(tried(proposed(good), good))


def test_hooks_that_a_site_has_are_chained_or_joined(tmp_path: Path) -> None:
    (tmp_path / "prolog.d").mkdir()
    (tmp_path / "ours.sh").write_text(data_path("prolog", "epilog.sh").read_text())
    now = snapshot_of(PLAIN, ["n1", "c1"])
    config = {
        **now.config,
        "Epilog": f"{tmp_path}/ours.sh",
        "Prolog": f"{tmp_path}/prolog.d/*",
        "TaskProlog": "/site/task_prolog",
        "EpilogSlurmctld[0]": "/site/a",
        "EpilogSlurmctld[1]": "/site/b",
        "EpilogSlurmctld": "/site/a",
    }
    notes = proposed(replace(now, config=config)).notes
    assert (
        "TaskProlog=/site/task_prolog stays in use with next_task_prolog=/site/task_prolog in "
        in " ".join(notes)
    )
    assert (
        f"Prolog runs several programs ({tmp_path}/prolog.d/*): leave it as it is, and link "
        f"/etc/slurm/gpumem/prolog.sh into {tmp_path}/prolog.d" in notes
    )
    assert any(note.startswith("EpilogSlurmctld runs several programs (/site/a, /site/b)") for note in notes)
    assert "ours.sh" not in " ".join(notes)


def test_where_slurmctld_is_not_installed_it_says_where_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = snapshot_of(PLAIN, ["n1", "c1"])
    proposal = proposed(now)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation, "SYSTEM_FOLDERS", str(tmp_path))
    now = replace(now, config={**now.config, "SlurmctldHost": "ctl1(10.0.0.1)"})
    if SLURM_ROOT is None:
        said = tried(proposal, now).not_tried
        assert said.startswith("slurmctld: not found")
        assert said.endswith("or run gpumem setup on ctl1")
    assert "slurm.conf cannot be read here; run gpumem setup on ctl1" in (
        tried(proposal, replace(now, files={})).not_tried
    )
