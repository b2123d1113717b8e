from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.node import hook, jobs
from slurm_gpumem.node.hooks import inbox
from slurm_gpumem.node.sampler.slots import slot_of
from tests.node.conftest import REPOSITORY, USER, Node, needs_root
from tests.support.timing import slowness
from tests.support.waiting import until

ON_DEMAND = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
HOOKS = ("prolog", "epilog", "task_prolog", "task_epilog")


@pytest.mark.parametrize("name", [*HOOKS, "hand_over"])
def test_a_hook_has_at_most_forty_lines_and_names_no_slurm_command(name: str) -> None:
    text = (REPOSITORY / "prolog" / f"{name}.sh").read_text()
    assert len(text.splitlines()) <= 40
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"\b(squeue|scontrol|sacct|sinfo|scancel|sbatch)\b", code)


@needs_root
def test_keys_that_are_gone_are_one_line_in_the_log_and_the_sampler_serves_the_job(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0)
    path = node.root / "gpumem.toml"
    path.write_text(path.read_text().replace("[node]", '[node]\nunfenced = "requeue"\nlimits = false'))
    assert node.hook("prolog", node.env(7)).returncode == 0
    # Before that a hook that finds no sampler starts a Python of its own.
    until((node.folder.inbox / "sampler").exists)
    for number in (8, 9):
        assert node.hook("prolog", node.env(number)).returncode == 0
    gone = f"{path}: no longer settings, and without effect: node.unfenced, node.limits; remove those lines"
    told = [line for line in node.log().splitlines() if "no longer" in line]
    assert all(line.endswith(f"{gone} (ignored)") for line in told)
    # Once by the Python that started the sampler, once by the sampler: not with every job.
    assert 1 <= len(told) <= 2
    assert [jobs.get(node.folder, number) is not None for number in (7, 8, 9)] == [True] * 3


@pytest.mark.timing
@pytest.mark.parametrize("name", HOOKS)
def test_a_job_that_is_not_ours_passes_within_five_milliseconds(node: Node, name: str) -> None:
    env = {**node.env(7, comment="my own words"), "SLURM_JOB_GPUS": ""}
    bare = _seconds(["/bin/sh", "-c", ":"], env)
    assert _seconds([str(node.hooks / f"{name}.sh")], env) - bare < 0.005 * slowness()
    assert not list(node.folder.jobs.iterdir())


def _seconds(command: list[str], env: dict[str, str]) -> float:
    """The shortest of many: what the hook costs when nothing else wants the processor."""
    times = []
    for _ in range(30):
        start = time.perf_counter()
        assert subprocess.run(command, env=env, check=False).returncode == 0
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize(("name", "code"), [("prolog", 0), ("task_prolog", 3)])
def test_the_sites_own_hook_follows_with_the_environment_it_would_have_had(
    node: Node, name: str, code: int
) -> None:
    own = node.root / "own"
    own.write_text(f'#!/bin/sh\necho "ran for $SLURM_JOB_ID: $SLURM_JOB_COMMENT $SOMETHING"\nexit {code}\n')
    own.chmod(0o755)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"next_{name}={own}\n")
    done = node.hook(name, {**node.env(7, comment="words"), "SOMETHING": "else"})
    assert done.stdout == "ran for 7: words else\n"
    assert done.returncode == code


@needs_root
@pytest.mark.parametrize(("name", "python"), [("prolog", "/nonexistent/python"), ("epilog", "/bin/false")])
def test_without_a_working_python_the_exit_code_is_still_0(node: Node, name: str, python: str) -> None:
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"python={python}\n")
    (node.folder.jobs / "7.json").write_text("{}")
    assert node.hook(name, node.env(7)).returncode == 0


@needs_root
def test_a_hook_that_hangs_is_ended_and_the_job_starts(node: Node) -> None:
    """As with a spool that does not answer; it does not even end when asked to."""
    stuck = node.root / "stuck"
    stuck.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    stuck.chmod(0o755)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"python={stuck}\n")
    assert node.hook("prolog", node.env(7)).returncode == 0


@needs_root
def test_the_users_environment_does_not_reach_roots_python(node: Node) -> None:
    trap = node.root / "trap"
    trap.mkdir()
    (trap / "json.py").write_text("raise SystemExit('trapped')")
    (trap / "sitecustomize.py").write_text(f"open({str(node.root / 'trapped')!r}, 'w')")
    env = {
        **node.env(7),
        "PYTHONPATH": str(trap),
        "PYTHONSTARTUP": str(trap / "json.py"),
        "LD_PRELOAD": "/nonexistent.so",
    }
    node.hook("prolog", env, cwd=trap)
    assert not (node.root / "trapped").exists()
    assert jobs.get(node.folder, 7) is not None


@needs_root
@pytest.mark.parametrize(
    "nasty",
    ["$(touch {0})", "\n touch {0}", "'\"; touch {0} #", "%s%n" + "x" * 30000],
)
def test_no_text_of_a_job_is_ever_run(node: Node, nasty: str) -> None:
    target = node.root / "touched"
    text = nasty.replace("{0}", str(target))
    env = node.env(7, comment=f"gpumem/1:est=5,req=6,by={text} gpumem/1:req={text}")
    env.update(SLURM_JOB_USER=text, SLURM_JOB_PARTITION=text, SLURM_CLUSTER_NAME=text, SLURM_JOB_SLUID=text)
    for name in ("prolog", "task_prolog", "epilog"):
        assert node.hook(name, {**env, "SLURM_SHARDS_ON_NODE": "6"}).returncode == 0
    assert not target.exists()
    assert node.mps.daemons() == []


@needs_root
@pytest.mark.parametrize(
    ("key", "value"),
    [("SLURM_JOB_ID", "7;x"), ("SLURM_JOB_UID", "0x0"), ("SLURM_JOB_GPUS", "0;1")],
)
def test_an_id_that_is_none_is_left_alone(node: Node, key: str, value: str) -> None:
    assert node.hook("prolog", {**node.env(7), key: value}).returncode == 0
    assert jobs.all_jobs(node.folder) == ()
    assert node.mps.daemons() == []


@needs_root
def test_a_task_is_pointed_at_mps_with_a_limit_from_its_shards(node: Node) -> None:
    node.hook("prolog", node.env(7, gpu="3"))
    uuid = node.gpus[3].uuid
    assert _exports(node, gpu="3", SLURM_SHARDS_ON_NODE="12", SLURM_RESTART_COUNT="2") == {
        "CUDA_MPS_PIPE_DIRECTORY": str(node.folder.pipe(uuid, USER)),
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuid}=12288M",
    }


@needs_root
def test_tasks_of_one_step_share_the_limit(node: Node) -> None:
    node.with_config(headroom_mib=256).hook("prolog", node.env(7))
    exports = _exports(node, SLURM_SHARDS_ON_NODE="12", SLURM_GTIDS="0,1,2,3", SLURM_STEP_GPUS="0")
    assert exports["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{node.gpus[0].uuid}={(12 * 1024 + 256) // 4}M"


@needs_root
def test_a_task_with_several_gpus_gets_none_of_their_daemons(node: Node) -> None:
    node.hook("prolog", node.env(7, gpu="0,1"))
    assert _exports(node, gpu="0,1", SLURM_SHARDS_ON_NODE="50") == {}
    assert (
        _exports(node, gpu="0,1", SLURM_STEP_GPUS="1", SLURM_SHARDS_ON_NODE="10")["CUDA_VISIBLE_DEVICES"]
        == node.gpus[1].uuid
    )


@needs_root
def test_a_task_finds_its_gpu_where_slurm_writes_uuids(node: Node) -> None:
    """As 25.11 and later do with Flags=env_uuid in gres.conf."""
    third = node.gpus[2].uuid
    for listed in ("2", third):
        node.hook("prolog", node.env(7, gpu=listed))
        for step in ("2", third):
            given = {"CUDA_VISIBLE_DEVICES": third, "SLURM_STEP_GPUS": step}
            said = _exports(node, gpu=step, SLURM_SHARDS_ON_NODE="8", **given)
            assert said["CUDA_VISIBLE_DEVICES"] == third
            assert said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{third}=8192M"
        node.hook("epilog", node.env(7))


@needs_root
def test_gres_mps_takes_the_limit_from_the_record_and_no_part_of_the_sms(node: Node) -> None:
    node.hook("prolog", node.env(7))
    exports = _exports(node, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")
    assert exports["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{node.gpus[0].uuid}=8192M"
    assert exports["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "unset"


@needs_root
def test_a_percentage_of_the_users_own_stays(node: Node) -> None:
    node.hook("prolog", node.env(7))
    own = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "SLURM_SHARDS_ON_NODE": "8"}
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in _exports(node, **own)
    # With a whole GPU it is the sign of an MPS of their own: such a job is told nothing.
    env = node.env(7, comment="")
    node.hook("prolog", env)
    assert node.hook("task_prolog", {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}).stdout == ""


@needs_root
@pytest.mark.parametrize(("mps", "active", "low"), [("shared", "72", True), ("shared", "59", False)])
def test_at_one_server_for_all_a_busy_job_runs_below_light_ones(
    node: Node, mps: str, active: str, low: bool
) -> None:
    word = f"gpumem/1:est=7000,req=8192,sm={active}"
    node.with_config(mps=mps).hook("prolog", node.env(7, comment=word))
    said = _exports(node, SLURM_SHARDS_ON_NODE="8")
    assert "CUDA_MPS_PIPE_DIRECTORY" in said
    assert said.get("CUDA_MPS_CLIENT_PRIORITY") == ("1" if low else None)


@needs_root
def test_steps_of_a_share_do_not_ask_for_the_gpu_that_it_was_submitted_with(node: Node) -> None:
    node.with_config(mps="timeslice").hook("prolog", node.env(7))
    submitted = {"SLURM_GPUS_PER_NODE": "a100:1"}
    assert _exports(node, SLURM_SHARDS_ON_NODE="8", **submitted) == {"SLURM_GPUS_PER_NODE": "unset"}
    assert "SLURM_GPUS_PER_NODE" not in node.hook("task_prolog", {**node.env(7), **submitted}).stdout


@needs_root
def test_in_timeslice_mode_nothing_is_exported_for_mps(node: Node) -> None:
    node.with_config(mps="timeslice").hook("prolog", node.env(7))
    assert _exports(node, SLURM_SHARDS_ON_NODE="12") == {}
    assert node.mps.daemons() == []


def _exports(node: Node, *, gpu: str = "0", **more: str) -> dict[str, str]:
    given = {"PATH": os.environ["PATH"], "SLURM_SUBMIT_DIR": "/submitted"}
    done = node.hook("task_prolog", {**node.env(7, gpu=gpu), **given, **more})
    assert done.returncode == 0
    assert done.stderr == ""
    exports = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        exports[name] = "unset" if word == "unset" else value
    assert exports.pop("GPUMEM_ATTEMPT") == str(int(more.get("SLURM_RESTART_COUNT", "0")) + 1)
    assert exports.pop("GPUMEM_SLOT_DIR") == "/submitted/gpumem-checkpoints/7"
    on_demand = {name: exports.pop(name) for name in ON_DEMAND if name in exports}
    # All that this is asked about are shares.
    assert on_demand == ON_DEMAND
    return exports


@needs_root
@pytest.mark.parametrize(
    ("own", "left"),
    [
        ({}, {"XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"}),
        ({"XLA_CLIENT_MEM_FRACTION": ".2"}, {"TF_FORCE_GPU_ALLOW_GROWTH"}),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".2"}, {"TF_FORCE_GPU_ALLOW_GROWTH"}),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, {"TF_FORCE_GPU_ALLOW_GROWTH"}),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, {"TF_FORCE_GPU_ALLOW_GROWTH"}),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, {"XLA_PYTHON_CLIENT_PREALLOCATE"}),
        ({"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, {"XLA_PYTHON_CLIENT_PREALLOCATE"}),
    ],
)
def test_frameworks_in_a_share_take_what_they_need_unless_their_user_said_otherwise(
    node: Node, own: dict[str, str], left: set[str]
) -> None:
    node.hook("prolog", node.env(7))
    given = {**node.env(7), "PATH": os.environ["PATH"], **own}
    assert "XLA" not in node.hook("task_prolog", given).stdout  # a whole GPU
    told = node.hook("task_prolog", {**given, "SLURM_SHARDS_ON_NODE": "12"}).stdout
    lines = {line.removeprefix("export ") for line in told.splitlines() if "XLA" in line or "TF_" in line}
    assert lines == {f"{name}={ON_DEMAND[name]}" for name in left}


@needs_root
@pytest.mark.timing
def test_the_hooks_stay_within_their_time(node: Node) -> None:
    """150 ms and 300 ms on top of bare Python, in processor time: other load does not count.

    So much for the first hooks on an idle node; where a sampler runs, a hook costs less than Python does.
    The stand-in for MPS is a Python program where the real one is C: its own starts do not count either.
    """
    node = node.with_config(idle_exit_s=60.0)
    python = min(_cpu([_python(node), "-I", "-c", "pass"], {}) for _ in range(5))
    mps = min(_cpu([node.config.mps_control], {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}) for _ in range(5))
    spent: dict[str, list[float]] = {"prolog": [], "epilog": []}
    node.hook("prolog", node.env(1, gpu="1"))  # keeps the sampler running: its start is the first job's
    for job_id in range(10, 15):
        for name in spent:
            spent[name].append(_cpu([str(node.hooks / f"{name}.sh")], node.env(job_id)) - python)
    node.hook("epilog", node.env(1, gpu="1"))
    # Started and told the default limit; asked to quit.
    slower = slowness()
    assert min(spent["prolog"]) - 2 * mps < 0.150 * slower
    assert min(spent["epilog"]) - mps < 0.300 * slower


def _python(node: Node) -> str:
    return (node.hooks / "hooks.conf").read_text().splitlines()[0].partition("=")[2]


def _cpu(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@needs_root
def test_the_record_is_opened_and_closed_with_the_exit_code(node: Node) -> None:
    node.hook("prolog", node.env(7))
    record = node.root / "spool" / "7.0.n1.json"
    until(record.exists)
    opened = json.loads(record.read_text())
    assert (opened["end"], opened["claim"]) == (None, "gpumem/1:est=7000,req=8192")
    node.hook("epilog", {**node.env(7), "SLURM_JOB_EXIT_CODE2": "1:0"})
    until(lambda: json.loads(record.read_text())["end"] is not None)
    closed = json.loads(record.read_text())
    assert (closed["exit_code"], closed["signal"]) == (1, 0)
    assert closed["end"] >= closed["start"]
    assert list(Path(node.folder.jobs).iterdir()) == []


@needs_root
def test_where_a_sampler_runs_a_hook_starts_no_python(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0).without_haste()
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write("python=/bin/false\n")
    assert node.hook("prolog", node.env(7)).returncode == 0
    assert jobs.get(node.folder, 7) is not None
    assert node.folder.task_file(7).exists()
    node.hook("epilog", {**node.env(7), "SLURM_JOB_EXIT_CODE2": "3:0"})
    assert jobs.get(node.folder, 7) is None
    record = node.root / "spool" / "7.0.n1.json"
    until(lambda: record.exists() and json.loads(record.read_text())["exit_code"] == 3)


@needs_root
def test_of_many_prologs_on_an_idle_node_a_few_start_python(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0).without_haste()
    counting, starts = node.root / "counting", node.root / "starts"
    counting.write_text(f'#!/bin/sh\necho >>{starts}\nexec {node.hooks}/python-without-haste "$@"\n')
    counting.chmod(0o755)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"python={counting}\n")
    command = [str(node.hooks / "prolog.sh")]
    hooks = [subprocess.Popen(command, env=node.env(job_id)) for job_id in range(1, 41)]
    assert {hook.wait(timeout=240) for hook in hooks} == {0}
    assert len(jobs.all_jobs(node.folder)) == 40
    assert 1 <= len(starts.read_text()) <= 10


@needs_root
def test_a_request_whose_hook_was_killed_is_not_served(node: Node) -> None:
    """The job may be over by now, or be another run of it."""
    node = node.with_config(idle_exit_s=60.0).without_haste()
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    sampler = int((node.folder.inbox / "sampler").read_text())
    os.kill(sampler, signal.SIGSTOP)
    hook = subprocess.Popen(
        [str(node.hooks / "prolog.sh")], env=node.env(7), start_new_session=True, stdin=subprocess.DEVNULL
    )
    until(lambda: list(node.folder.inbox.glob("prolog.7.*[0-9]")))
    os.killpg(hook.pid, signal.SIGKILL)
    hook.wait()
    os.kill(sampler, signal.SIGCONT)
    node.hook("prolog", node.env(8))
    assert jobs.get(node.folder, 8) is not None
    until(lambda: not list(node.folder.inbox.glob("prolog.7.*")))
    assert jobs.get(node.folder, 7) is None


@needs_root
@pytest.mark.parametrize(
    ("record", "lead"),
    [
        ("est=7000,slots=3,slot=7200,oom=requeue", 300),
        ("slot=7200,save=200", 400),
        ("slot=600,save=400 gpumem-end/1:run=0,saw=slot,save=9", 300),
        ("slot=08", None),
    ],
)
def test_a_prolog_that_gives_up_says_when_to_save_and_its_epilog_forgets_that(
    node: Node, record: str, lead: Optional[int]
) -> None:
    node.folder.make()
    node.folder.task_file(7).write_text("record yes\nslot 8200 8100\n")  # of an earlier run
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write("python=/bin/false\n")
    given = node.env(7, comment=f"mine gpumem/1:{record}")
    assert node.hook("prolog", given).returncode == 0
    late = inbox.late_prolog(node.folder.inbox, 7)
    assert late is not None
    told = node.hook("task_prolog", given).stdout
    if lead is not None:
        job = hook.job_from(node.config, given, node.gpus)
        assert job is not None
        end, save_at = slot_of(replace(job, started=float(int(late.at)))) or (0, 0)
        assert f"export GPUMEM_SLOT_END={end}\nexport GPUMEM_SAVE_AT={end - lead}\n" in told
        assert end - lead <= save_at
    else:
        assert "GPUMEM_SLOT_END" not in told
    assert hook.epilog(node.folder, node.config, {**given, "SLURM_JOB_EXIT_CODE2": "0:0"})
    assert list(Path(node.folder.jobs).iterdir()) == []


@needs_root
def test_a_requeued_job_goes_on_from_its_checkpoint_though_slurm_ran_no_prolog(
    node: Node, tmp_path: Path
) -> None:
    saves = tmp_path / "7"
    saves.mkdir()
    (saves / "state.json").write_text("{}")
    (saves / "latest").symlink_to(saves / "state.json")
    given = {**node.env(7), "GPUMEM_CHECKPOINTS": str(tmp_path)}
    assert node.hook("task_prolog", given).stdout == ""
    told = node.hook("task_prolog", {**given, "SLURM_RESTART_COUNT": "1"}).stdout
    assert told.splitlines() == [
        f"export GPUMEM_SLOT_DIR={saves}",
        "export GPUMEM_RESUME=1",
        f"export GPUMEM_RESUME_FILE={saves}/state.json",
    ]


@needs_root
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_hook_that_the_sampler_serves_starts_one_process_at_most(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0, mps="timeslice").without_haste()
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    trace = node.root / "trace"
    for name in ("prolog", "epilog"):
        command = ["strace", "-f", "-e", "trace=execve", "-o", str(trace), str(node.hooks / f"{name}.sh")]
        subprocess.run(command, env={**node.env(7), "PATH": os.environ["PATH"]}, check=True, timeout=120)
        programs = re.findall(r'execve\("([^"]*)"', trace.read_text())
        # The answer may be there before the hook has to wait for it.
        assert programs[0] == str(node.hooks / f"{name}.sh")
        assert programs[1:] in ([], ["/bin/sleep"])


@needs_root
def test_a_job_with_one_log_is_judged_without_asking_slurm(node: Node) -> None:
    given = {"SLURM_JOB_STDOUT": "/home/u/%j.out"}
    node.hook("prolog", {**node.env(7), **given})
    node.hook("prolog", {**node.env(8), **given, "SLURM_JOB_STDERR": "/home/u/%j.err"})
    node.hook("prolog", node.env(9))
    said = {number: "one_log yes\n" in node.folder.task_file(number).read_text() for number in (7, 8, 9)}
    assert said == {7: True, 8: False, 9: False}


@needs_root
def test_changed_settings_hold_for_the_next_job_though_the_sampler_stays(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0).without_haste()
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    node.with_config(mps="timeslice").hook("prolog", node.env(7))
    job = jobs.get(node.folder, 7)
    assert job is not None
    assert job.mode == "timeslice"


@needs_root
def test_the_sampler_goes_ahead_of_jobs_and_the_daemons_that_it_starts_for_users_do_not(node: Node) -> None:
    node = node.with_config(idle_exit_s=60.0).without_haste()
    node.hook("prolog", node.env(1, gpu="1"))
    until((node.folder.inbox / "sampler").exists)
    sampler = int((node.folder.inbox / "sampler").read_text())
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write("python=/bin/false\n")
    node.hook("prolog", node.env(7))
    daemons = [daemon.process.pid for daemon in node.mps.daemons(node.gpus[0].uuid, USER)]
    assert os.getpriority(os.PRIO_PROCESS, sampler) < 0
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in daemons] == [0]
