"""`gpumem devcluster` as people use it: up, status, env, down, as root and as an ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Optional

import pytest

import slurm_gpumem
from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import Cluster, load
from slurm_gpumem.devcluster.spec import Layout
from tests.support.waiting import until

pytestmark = pytest.mark.slurm
ROOT = os.environ.get("GPUMEM_TEST_SLURM_ROOT") or None


def run_gpumem(
    *args: str, user: Optional[str] = None, package: Optional[Path] = None
) -> subprocess.CompletedProcess[str]:
    code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main(sys.argv[1:]))"
    python = sys.executable
    env = dict(os.environ)
    if package is not None:
        # Another user may not enter the folders of this checkout or of its Python.
        python, env["PYTHONPATH"] = "/usr/bin/python3", str(package)
    as_user = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    return subprocess.run(
        [python, "-c", code, "devcluster", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
        cwd="/",
        check=False,
        **as_user,  # type: ignore[call-overload]
    )


def up_options(state: Path) -> list[str]:
    return ["up", "--state", str(state), "--nodes", "1", *(["--slurm-root", ROOT] if ROOT else [])]


@pytest.fixture
def state(state_folder: Path) -> Iterator[Path]:
    yield state_folder
    known = load(Layout(state_folder))
    assert known is None or not any(processes.alive(process) for process in known.processes)


def test_up_status_env_down(state: Path) -> None:
    up = run_gpumem(*up_options(state), "--gpus-per-node", "2", "--gpu-memory", "80G", "--gpu-type", "h100")
    assert up.returncode == 0, up.stderr
    assert ": 1 node with 2 stand-in GPUs (h100, 80.0 GiB)" in up.stdout
    try:
        shown = run_gpumem("status", "--state", str(state))
        assert shown.returncode == 0
        assert "slurmctld    running" in shown.stdout
        assert "gpu:h100:2,shard:h100:160" in shown.stdout

        exports = run_gpumem("env", "--state", str(state)).stdout
        done = subprocess.run(
            [
                "bash",
                "-c",
                f'{exports}\nsinfo -h -o %T; echo "$GPUMEM_SITE_CONFIG"; command -v gpumem-standin',
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [
            "idle",
            str(state / "conf" / "gpumem.toml"),
            str(state / "bin" / "gpumem-standin"),
        ]
        again = run_gpumem(*up_options(state))
        assert again.returncode == 1
        assert again.stderr.startswith("gpumem: ")
        assert "already runs" in again.stderr
        assert "gpumem devcluster down --state" in again.stderr
    finally:
        down = run_gpumem("down", "--state", str(state))
    assert down.returncode == 0
    assert run_gpumem("status", "--state", str(state)).returncode == 1


def test_status_and_down_of_nothing_say_so(state: Path) -> None:
    for action in ("status", "env", "down"):
        done = run_gpumem(action, "--state", str(state))
        assert done.returncode == 1
        assert "no dev cluster" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "0"], "at least one node"),
        (["--gpu-memory", "lots"], "not a memory size"),
        (["--gpu-memory", "100M"], "at least 1 GiB"),
        (["--conf", "nonsense"], "not one line Key=value"),
        (["--gpu-type", "a 100"], "names are letters"),
        (["--node", "big"], "write it like big=2xh100:80G"),
        (["--node", "a=1xh100:80G", "--node", "a=1xh100:80G"], "names must differ"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(state: Path, options: list[str], said: str) -> None:
    done = run_gpumem("up", "--state", str(state), *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(state.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's cluster runs other users' jobs")
def test_root_is_told_of_a_folder_that_other_users_cannot_enter(state: Path) -> None:
    state.chmod(0o700)
    done = run_gpumem(*up_options(state / "cluster"))
    assert done.returncode == 1
    assert f"other users cannot enter {state}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_another_user_may_use_roots_cluster_but_not_stop_it(cluster: Cluster, state: Path) -> None:
    package = state / "package"
    shutil.copytree(
        Path(slurm_gpumem.__file__).parent,
        package / "slurm_gpumem",
    )
    theirs = str(cluster.layout.root)
    assert run_gpumem("env", "--state", theirs, user="nobody", package=package).returncode == 0
    done = run_gpumem("down", "--state", theirs, user="nobody", package=package)
    assert done.returncode == 1
    assert "is this another user's cluster?" in done.stderr
    assert all(processes.alive(process) for process in cluster.processes())


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user every other test here proves it")
@pytest.mark.skipif(ROOT is not None, reason="an ordinary user cannot add mount points to root's tree")
def test_an_ordinary_user_can_have_a_cluster(state: Path) -> None:
    package = state / "package"
    home = state / "home" / "cluster"
    home.mkdir(parents=True)
    shutil.copytree(
        Path(slurm_gpumem.__file__).parent,
        package / "slurm_gpumem",
    )
    home.parent.chmod(0o700)  # as many machines make them
    for folder in (home, home.parent):
        shutil.chown(folder, "nobody")
    up = run_gpumem(*up_options(home), user="nobody", package=package)
    assert up.returncode == 0, up.stderr
    try:
        known = load(Layout(home))
        assert known is not None
        owners = {os.stat(f"/proc/{process.pid}").st_uid for process in known.processes}
        assert owners == {pwd.getpwnam("nobody").pw_uid}
        exports = run_gpumem("env", "--state", str(home), user="nobody", package=package).stdout
        script = (
            f"{exports}\nsbatch --parsable -o {home}/job.log --gres=shard:12 --wrap "
            "'gpumem-standin --peak 12000 --seconds 0.2'"
        )
        nobody = pwd.getpwnam("nobody")
        done = subprocess.run(
            ["bash", "-c", script],
            user="nobody",
            group=nobody.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        log = home / "job.log"
        until(lambda: log.exists() and "done: peak memory 12000 MiB" in log.read_text())
    finally:
        down = run_gpumem("down", "--state", str(home), user="nobody", package=package)
        assert down.returncode == 0, down.stderr
