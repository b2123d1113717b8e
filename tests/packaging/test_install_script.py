"""packaging/install.sh does what docs/admin/install.md says, on a real cluster, and undoes it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Set

import pytest

import slurm_gpumem
from slurm_gpumem.data import FILTER_FILES
from tests.conftest import ClusterFactory
from tests.support.needs import needs_root
from tests.support.waiting import until
from tests.test_packaging import _build

ROOT = Path(__file__).resolve().parents[2]
INSTALL = ROOT / "packaging" / "install.sh"
HOOKS = {
    "prolog.sh", "epilog.sh", "hand_over.sh", "let_go.sh", "log_check.sh", "task_prolog.sh",
    "task_epilog.sh", "hooks.conf", "build_end.sh", "end_exports.sh", "gpumem_end.c", "libgpumem_end.so",
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The folders that the script writes to, and the wheel that it installs."""

    root: Path
    wheel: Path

    @property
    def slurm(self) -> Path:
        return self.root / "slurm"

    def install(self, *words: str, code: int = 0) -> str:
        folders = [
            "--prefix",
            f"{self.root}/opt",
            "--slurm",
            f"{self.slurm}",
            "--local",
            f"{self.root}/local",
        ]
        command = [str(INSTALL), "--wheel", str(self.wheel), *folders, *words]
        environ = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def files(self) -> Set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", reason="building a wheel needs setuptools")
    return _build(tmp_path_factory.mktemp("build"))


@pytest.fixture
def machine(state_folder: Path, wheel: Path) -> Machine:
    (state_folder / "slurm").mkdir()
    return Machine(state_folder, wheel)


def test_a_check_says_what_would_change_and_changes_nothing(machine: Machine) -> None:
    before = machine.files()
    said = machine.install("--check", "login", "node", code=1)
    assert f"would write {machine.slurm}/gpumem/prolog.sh" in said
    assert f"would link {machine.root}/local/bin/gpusbatch" in said
    assert machine.files() == before


def test_it_installs_once_and_removes_everything(machine: Machine) -> None:
    before = machine.files()
    machine.install("login", "node")
    gpumem = machine.root / "local/bin/gpumem"
    done = subprocess.run([gpumem, "--help"], env={}, cwd="/", capture_output=True, text=True, check=True)
    assert "gpumem COMMAND" in done.stdout
    assert (machine.root / "local/share/man/man1/gpusbatch.1").exists()
    assert {path.name for path in (machine.slurm / "gpumem").iterdir()} == HOOKS
    assert {path.name for path in machine.slurm.iterdir() if path.is_file()} == {*FILTER_FILES}
    settings = (machine.slurm / "gpumem" / "hooks.conf").read_text()
    python = settings.splitlines()[-1].partition("python=")[2]
    command = [python, "-I", "-m", "slurm_gpumem.cli.cli_filter", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{slurm_gpumem.__version__}\n"

    # Settings belong to the site; a hook that was changed is brought up to date.
    conf = machine.slurm / "gpumem" / "hooks.conf"
    conf.write_text(conf.read_text() + "next_prolog=/bin/true\n")
    assert machine.install("login", "node").splitlines()[-1] == "nothing to change"
    assert machine.install("--check", "login", "node").splitlines()[-1] == "nothing to change"
    (machine.slurm / "gpumem" / "prolog.sh").write_text("exit 0\n")
    assert f"write {machine.slurm}/gpumem/prolog.sh" in machine.install("login", "node")
    assert conf.read_text().endswith("next_prolog=/bin/true\n")

    slurm_conf = machine.slurm / "slurm.conf"
    slurm_conf.write_text(f"Prolog={machine.slurm}/gpumem/prolog.sh\n")
    assert "still names the hooks" in machine.install("--uninstall", code=2)
    assert (machine.slurm / "gpumem" / "prolog.sh").exists()
    # This host would submit nothing without it.
    slurm_conf.write_text("CliFilterPlugins=user_defaults,lua\n")
    assert "cli_filter.lua" not in machine.install("--check", "--uninstall", code=1)
    slurm_conf.unlink()
    assert "cli_filter.lua" in machine.install("--check", "--uninstall", code=1)
    (machine.slurm / "site.conf").touch()
    machine.install("--uninstall")
    assert machine.files() - before == {"slurm/site.conf"}


def test_a_machine_without_a_compiler_is_installed_and_told_what_it_lacks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = machine.root / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            if program.name not in ("cc", "gcc") and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tools))
    said = machine.install("node")
    (line,) = [line for line in said.splitlines() if "no C compiler" in line]
    assert line.endswith(f"install gcc, then run {machine.slurm}/gpumem/build_end.sh")
    assert not (machine.slurm / "gpumem" / "libgpumem_end.so").exists()
    assert "nothing to change" in machine.install("node").splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which role?"),
        (["nodes"], "nodes is no option and no role"),
        (["--prefix"], "--prefix needs a value"),
        (["--prefix", "relative", "login"], "give an absolute path"),
        (["--uninstall"], "nothing was installed from here"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(machine: Machine, words: list[str], said: str) -> None:
    before = machine.files()
    assert said in machine.install(*words, code=2)
    assert machine.files() == before


def test_the_sites_own_files_are_left_to_setup(machine: Machine) -> None:
    own = {"slurm.conf": "ClusterName=big\n", "job_submit.lua": "-- rules\n", "gpumem.toml": "# ours\n"}
    for name, text in own.items():
        (machine.slurm / name).write_text(text)
    said = machine.install("login", "controller")
    assert "next: gpumem setup where slurmctld runs" in said
    assert {name: (machine.slurm / name).read_text() for name in own} == own


@needs_root
def test_a_job_runs_through_what_was_installed_on_a_cluster(
    state_folder: Path, wheel: Path, make_cluster: ClusterFactory
) -> None:
    cluster = make_cluster()
    conf, opt, records = cluster.layout.conf, state_folder / "opt", state_folder / "records"
    folders = ["--prefix", str(opt), "--slurm", str(conf), "--local", str(state_folder / "local")]
    command = [str(INSTALL), "--wheel", str(wheel), *folders, "node", "controller"]
    said = cluster.run(command, check=True, timeout_s=300).stdout
    assert "next: gpumem setup" in said
    again = cluster.run(command, check=True, timeout_s=300)
    assert again.stdout.splitlines()[-1] == "nothing to change"

    hooks_conf = conf / "gpumem" / "hooks.conf"
    with hooks_conf.open("a") as file:
        file.write(f"site_config={cluster.layout.site_config}\nrun_dir={state_folder}/run\n")
    with cluster.layout.site_config.open("a") as file:
        file.write(
            f'[node]\nmps = "timeslice"\nsource = "standin"\nspool = "{records}"\n'
            f'[devcluster]\nledger = "{cluster.layout.ledger}"\nidle_exit_s = 1\n'
        )
    with cluster.layout.slurm_conf.open("a") as file:
        file.write(f"Prolog={conf}/gpumem/prolog.sh\nEpilog={conf}/gpumem/epilog.sh\n")
    cluster.run(["scontrol", "reconfigure"], check=True)
    script = state_folder / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    gpusbatch = str(state_folder / "local/bin/gpusbatch")
    cluster.run([gpusbatch, "--gpu-mem", "4G", "--mem=64", "-o", "/dev/null", str(script)], check=True)
    until(lambda: any(records.glob("*.json")))
    refused = cluster.run([str(INSTALL), *folders, "--uninstall"])
    assert refused.returncode == 2
    assert f"Prolog={conf}/gpumem/prolog.sh" in refused.stderr
