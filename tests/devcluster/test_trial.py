"""A trial of a configuration is harmless: nothing of the site is in it, and nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster import processes, trial
from slurm_gpumem.devcluster.config import Place
from slurm_gpumem.devcluster.sandbox import Configuration, sandboxed
from slurm_gpumem.devcluster.spec import Layout
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.slurm.conf_file import Where
from tests.support.needs import needs_root
from tests.support.site_files import SLURM_ROOT

PROGRAMS = [
    "Prolog", "Epilog", "PrologSlurmctld", "EpilogSlurmctld", "TaskProlog", "TaskEpilog", "SrunProlog",
    "SrunEpilog", "SuspendProgram", "ResumeProgram", "ResumeFailProgram", "HealthCheckProgram",
    "RebootProgram", "MailProg", "SlurmctldPrimaryOnProg", "SlurmctldPrimaryOffProg",
    "UnkillableStepProgram", "JobCompLoc", "PlugStackConfig",
]  # fmt: skip
PLACES = [
    "StateSaveLocation", "SlurmdSpoolDir", "SlurmctldPidFile", "SlurmdPidFile", "SlurmctldLogFile",
    "SlurmdLogFile", "SlurmSchedLogFile", "AccountingStorageHost", "AccountingStoragePass",
    "AccountingStorageBackupHost", "SlurmctldHost", "SlurmctldAddr", "AuthInfo", "AuthAltParameters",
    "JobCompHost", "JobCompPass", "TLSParameters", "SlurmctldPort", "SlurmdPort", "ClusterName",
    "SwitchParameters", "TopologyParam", "CommunicationParameters", "FederationParameters",
    "SlurmctldParameters", "CliFilterPlugins", "SomethingNew",
]  # fmt: skip
SITE = (
    "".join(f"{key}=/marked/{key}\n" for key in (*PROGRAMS, *PLACES))
    + "GresTypes=gpu\nSelectType=select/cons_tres\n"
    "SlurmctldHost=marked\nJobSubmitPlugins=marked,lua,throttle\nPrologFlags=Contain,Alloc,X11\n"
    "NodeName=n[1-9] NodeAddr=marked[1-9] NodeHostname=marked[1-9] Port=6818 CPUs=4 RealMemory=1000 \\\n"
    "  State=DOWN Reason=marked Gres=gpu:a:2\n"
    "DownNodes=n1 Reason=marked\n"
    "PartitionName=p Nodes=n[1-9] AllowGroups=marked AllowAccounts=marked State=DOWN Default=YES\n"
)


def sandbox(texts: dict[str, str]) -> dict[str, str]:
    layout = Layout(Path("/tmp/trial"))
    place = Place(
        "here", "bin", False, 20001, {"n1": 20002, "n2": 20003}, 0, [f"/dev/tty{n}" for n in range(8)]
    )
    return sandboxed(Configuration(texts, Where("/etc/slurm")), ["n1", "n2"], layout, place, (22, 5, 8))


def test_no_program_path_address_or_port_of_the_site_is_in_the_copy() -> None:
    odd = SITE + "prolog=/marked/a MaxJobCount=7 EPILOG=/marked/b\n"
    files = sandbox({"slurm.conf": odd, "gres.conf": "AutoDetect=nvml\n", "job_submit.lua": "marked()"})
    for name, text in files.items():
        assert "marked" not in text, name
        assert "6818" not in text, name
    lines = files["slurm.conf"].splitlines()
    node = "NodeHostname=here NodeAddr=127.0.0.1 Port=[20002,20003]"
    assert any(line.endswith(node) for line in lines)
    assert "JobSubmitPlugins=lua" in lines
    assert "PrologFlags=Alloc" in lines
    assert any(line.startswith("PartitionName=p Nodes=n1,n2") for line in lines)
    assert files["gres.conf"] == (
        "AutoDetect=off\nNodeName=n1 Name=gpu Type=a File=/dev/tty0,/dev/tty1\n"
        "NodeName=n2 Name=gpu Type=a File=/dev/tty0,/dev/tty1\n"
    )


def test_files_from_elsewhere_are_copied_beside_the_others() -> None:
    files = sandbox(
        {
            "slurm.conf": SITE + "Include /shared/nodes.conf\nInclude ../up.conf\n",
            "/shared/nodes.conf": "Epilog=/marked/x\n",
            "../up.conf": "MaxJobCount=7\n",
        }
    )
    assert (
        "Include /tmp/trial/conf/shared/nodes.conf\nInclude /tmp/trial/conf/up.conf\n" in files["slurm.conf"]
    )
    assert (files["shared/nodes.conf"], files["up.conf"]) == ("", "MaxJobCount=7\n")


@pytest.mark.slurm
def test_a_trial_runs_without_privileges_and_leaves_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    short = Path(os.path.realpath("/tmp")) / f"gpumem-t{os.getpid()}"
    short.mkdir(mode=0o755)
    monkeypatch.setenv("TMPDIR", str(short))
    conf = Configuration({"slurm.conf": SITE}, Where())
    try:
        with trial.started(conf, ["n1", "n2"], SLURM_ROOT) as running:
            (folder,) = short.iterdir()
            daemons = [
                processes.identify(pid)
                for name in ("munged", "slurmctld", "slurmd")
                for pid in processes.working_in(folder, name)
            ]
            owners = {os.stat(f"/proc/{daemon.pid}").st_uid for daemon in daemons if daemon}
            assert running.test_only(["-pp", "--gres=gpu:2"]).accepted
            refused = running.test_only(["-pp", "--gres=gpu:3"])
            assert (refused.accepted, "not available" in refused.said) == (False, True)
        assert 0 not in owners
        assert [daemon for daemon in daemons if daemon and processes.alive(daemon)] == []
        assert list(short.iterdir()) == []
        broken = Configuration(
            {**conf.texts, "slurm.conf": conf.texts["slurm.conf"] + "Gres=gpu:1\n"}, Where()
        )
        with (
            pytest.raises(DevClusterError, match="slurmctld exited"),
            trial.started(broken, ["n1"], SLURM_ROOT),
        ):
            pass
        assert list(short.iterdir()) == []
    finally:
        monkeypatch.setattr("tempfile.tempdir", None)
        short.rmdir()


@pytest.mark.slurm
def test_a_node_that_slurm_drains_is_reported_with_the_reason() -> None:
    conf = Configuration(
        {
            "slurm.conf": SITE,
            "gres.conf": "Name=gpu Type=a File=/dev/nvidia0\n",
        },
        Where(),
    )
    with (
        pytest.raises(DevClusterError, match=r"node n1 is .*gres/gpu count"),
        trial.started(conf, ["n1"], SLURM_ROOT),
    ):
        pass


def trial_program(first: str = "") -> str:
    """A program that starts a trial of the site's configuration and runs a job in it."""
    conf = {"slurm.conf": SITE}
    return (
        "import os\n"
        "from pathlib import Path\n"
        "from slurm_gpumem.devcluster import sandbox, trial\n"
        "from slurm_gpumem.slurm.conf_file import Where\n"
        f"{first}\n"
        f"conf = sandbox.Configuration({conf!r}, Where())\n"
        f"root = {str(SLURM_ROOT or '')!r}\n"
        "with trial.started(conf, ['n1'], Path(root) if root else None) as running:\n"
        "    print(running.test_only(['-pp', '--gres=gpu:2']).accepted)\n"
        "    print(running.devices(['-pp', '--gres=gpu:2']))\n"
    )


@pytest.mark.slurm
@needs_root
def test_a_trial_starts_where_cgroups_cannot_be_changed() -> None:
    # 22.05's slurmd loads a plug-in for cgroups even if nothing uses it.
    inside = 'mount -t cgroup2 -o ro cgroup2 /sys/fs/cgroup && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh"]
    if subprocess.run([*argv, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mounts may be made here")
    done = subprocess.run(
        [*argv, sys.executable, "-c", trial_program()], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True\n0,1\n", done.stderr
