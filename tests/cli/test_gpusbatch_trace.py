"""`gpusbatch --trace job.sh`: the script as it is, traced without a GPU, then submitted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.demo import show_job
from slurm_gpumem.formats.comment import parse_record
from tests.support.needs import needs_torch
from tests.support.other_user import as_user, own, user_id, user_python
from tests.support.timing import slowness
from tests.support.waiting import remove_tree, until

pytestmark = needs_torch

GPUSBATCH = "import sys; from slurm_gpumem.cli.gpusbatch import main; sys.exit(main())"
HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1 -c 3\n"
TRAIN = """
import argparse, os, sys, torch, torch.nn as nn
parser = argparse.ArgumentParser(); parser.add_argument("--width", type=int, default=256)
width = parser.parse_args().width
model = nn.Sequential(nn.Linear(width, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    loss = model(torch.randn(64, width, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step == 3:
        model.eval(); model(torch.randn(64, width, device="cuda")); model.train()
"""


class TraceDesk:
    """The folder of a user who is not root, with train.py, and gpusbatch at hand."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        found = user_python()
        if found is None:
            pytest.skip("no Python that a user other than root may start has torch")
        self.python, self.python_env = found
        self.folder, self.cluster = folder, cluster
        self.write("train.py", TRAIN)
        self.jobs: List[str] = []

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return own(path)

    def job(self, body: str, head: str = HEAD, name: str = "job.sh") -> Path:
        return self.write(name, f"{head}\n{body}\n")

    def environment(self, more: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_", "GPUMEM_"))}
        home = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache"), "LC_ALL": "C.UTF-8"}
        return {**clean, **self.cluster.env, **home, **self.python_env, "PYTHON": self.python, **(more or {})}

    def start(self, *argv: str, env: Optional[Mapping[str, str]] = None, **how: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", GPUSBATCH, *argv],
            cwd=self.folder,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **as_user(),
            **how,
        )

    def call(self, *argv: str, env: Optional[Mapping[str, str]] = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*argv, env=env)
        out, err = process.communicate(timeout=200)
        words = out.split()
        if process.returncode == 0 and words and words[-1].isdigit():
            self.jobs.append(words[-1])
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def shown(self, job: str) -> Dict[str, str]:
        return show_job(self.cluster, job)

    def queue(self) -> List[str]:
        return self.cluster.run(["squeue", "-h", "-u", str(user_id()), "-o", "%i"], check=True).stdout.split()

    def left(self) -> List[str]:
        """Processes of the user that still run."""
        found = subprocess.run(
            ["pgrep", "-u", str(user_id()), "-f", str(self.folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.split()

    def nothing_runs(self) -> bool:
        end = time.monotonic() + 60
        while self.left() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.left()


@pytest.fixture
def desk(cluster: Cluster) -> Iterator[TraceDesk]:
    folder = own(Path(tempfile.mkdtemp(prefix="gpumem-")))
    found = TraceDesk(folder, cluster)
    yield found
    if found.jobs:
        cluster.run(["scancel", *found.jobs])
        # The next test finds an empty queue, also where a job takes its time to end.
        until(lambda: found.queue() == [])
    remove_tree(folder)


def test_an_unmodified_script_is_traced_and_asks_for_what_it_needs(desk: TraceDesk) -> None:
    desk.job("$PYTHON train.py\necho after > after.txt")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "job.sh (traced in" in done.stderr
    assert "Sequential, batch 64, Adam, fp32" in done.stderr
    job = done.stdout.split()[-1]
    assert "shard:" in desk.shown(job)["TresPerNode"]
    record = parse_record(desk.shown(job)["Comment"])
    assert record is not None
    assert (record.model, record.batch, record.estimator) == ("Sequential", 64, "trace")
    assert not (desk.folder / "after.txt").exists()
    assert desk.nothing_runs()


def test_the_script_sees_a_jobs_world_and_nothing_of_it_acts_on_the_cluster(desk: TraceDesk) -> None:
    other = desk.folder / "conda" / "bin"
    other.mkdir(parents=True)
    for name in ("srun", "sbatch", "mpirun"):
        (other / name).write_text(f"#!/bin/sh\necho the wrong {name} >&2; exit 9\n")
        (other / name).chmod(0o755)
    (other / "python3").write_text('#!/bin/sh\nexec "$PYTHON" "$@"\n')
    (other / "python3").chmod(0o755)
    desk.job(
        f"""set -e
        PATH={other}:$PATH   # as `conda activate` and `module load` do
        test "$SLURM_CPUS_PER_TASK" = 3 -a "$SLURM_NTASKS" = 1 -a -n "$SLURM_JOB_ID"
        test "$SLURM_SUBMIT_DIR" = "$PWD" -a "$(scontrol show hostnames "$SLURM_JOB_NODELIST")" = localhost
        test "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits)" -gt 30000
        nvidia-smi -L | grep -q "NVIDIA A100"
        sbatch --dependency=afterok:$SLURM_JOB_ID next.sh
        echo done | mail -s ready me@example.org
        scancel 1
        mpirun -np 1 --bind-to none -x A=1 sh -c 'test "$OMPI_COMM_WORLD_SIZE" = 1'
        export PYTHONPATH={desk.python_env.get("PYTHONPATH", "")}   # the tracer's folder is gone
        timeout 100 srun --cpu-bind=none -c 3 -n 1 env A=1 python3 train.py --width "$1"
        """,
        head="#!/bin/bash\n#SBATCH -c 3 --gres=gpu:1\n#GPUMEM trace",
    )
    done = desk.call("--dry-run", "job.sh", "512")
    assert done.returncode == 0, done.stderr
    for text in ("sbatch --dependency=afterok:", "mail -s ready me@example.org", "scancel 1"):
        assert f"recorded, not run: {text}" in done.stderr
    assert "the wrong" not in done.stderr
    assert "shard:" in done.stdout
    assert desk.queue() == []


def test_modules_and_an_environment_with_its_own_python_are_as_the_script_says(desk: TraceDesk) -> None:
    subprocess.run(
        [desk.python, "-m", "venv", "--without-pip", str(desk.folder / "env")],
        env=desk.environment(),
        check=True,
        **as_user(),
    )
    torch_at = subprocess.run(
        [desk.python, "-c", "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"],
        env=desk.environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    (packages,) = (desk.folder / "env" / "lib").glob("python*/site-packages")
    (packages / "torch-of-another.pth").write_text(torch_at)
    desk.write(
        "profile.sh",
        """module() {
            case "$1 ${2-}" in
                "purge ") unset PYTHONPATH ;;
                "load pytorch/2") export PYTHONPATH=/nowhere LOADED=1 ;;
                *) echo "module: $*: unknown" >&2; return 1 ;;
            esac
        }
        conda() { test "$1" = activate && . "$2/bin/activate"; }
        """,
    )
    desk.job(
        """set -eu
        . ./profile.sh
        module purge; module load pytorch/2
        conda activate "$PWD/env"
        test "$LOADED" = 1 -a "$VIRTUAL_ENV" = "$PWD/env"
        python -c 'import os, sys; assert sys.prefix == os.environ["VIRTUAL_ENV"]'
        python train.py
        """
    )
    done = desk.call("--trace", "--dry-run", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "Sequential, batch 64, Adam, fp32" in done.stderr
    assert "shard:" in done.stdout
    desk.job(". ./profile.sh\nset -e\nmodule load cuda/99\npython train.py")
    done = desk.call("--trace", "job.sh")
    assert done.returncode == 2
    assert "module: load cuda/99: unknown" in done.stderr
    assert desk.queue() == []


def test_a_script_submitted_again_is_not_traced_again_until_a_file_of_it_changes(desk: TraceDesk) -> None:
    desk.write("config.json", '{"width": 256}')
    reads = TRAIN.replace(
        "parser.parse_args().width", "__import__('json').load(open('config.json'))['width']"
    )
    desk.write("train.py", reads)
    desk.job("$PYTHON train.py")
    first = desk.call("--trace", "--dry-run", "job.sh")
    again = desk.call("--trace", "--dry-run", "job.sh")
    assert "traced in" in first.stderr, first.stderr
    assert "traced before" in again.stderr, again.stderr
    assert again.stdout == first.stdout
    desk.write("config.json", '{"width": 262144}')
    changed = desk.call("--trace", "--dry-run", "job.sh")
    assert "traced in" in changed.stderr, changed.stderr
    assert changed.stdout != first.stdout


def test_a_script_submitted_with_another_variable_is_traced_again(desk: TraceDesk) -> None:
    desk.job("$PYTHON train.py")
    for env in ({}, {"LEARNING_RATE": "1"}):
        done = desk.call("--trace", "--dry-run", "job.sh", env=env)
        assert "traced in" in done.stderr, done.stderr


@pytest.mark.timing
def test_a_script_that_was_traced_before_is_submitted_as_quickly_as_with_a_size_by_hand(
    desk: TraceDesk,
) -> None:
    desk.job("$PYTHON train.py")
    assert "traced in" in desk.call("--trace", "--dry-run", "job.sh").stderr

    def median_s(*argv: str) -> float:
        taken = []
        for _ in range(7):
            begin = time.perf_counter()
            assert desk.call(*argv, "--dry-run", "job.sh").returncode == 0
            taken.append(time.perf_counter() - begin)
        return sorted(taken)[3]

    by_hand, traced = median_s("--gpu-mem", "12G"), median_s("--trace")
    print(f"by hand {by_hand:.2f} s, traced before {traced:.2f} s")
    assert traced - by_hand < 0.3 * slowness()


def test_an_array_is_traced_at_its_ends_and_asks_for_the_larger(desk: TraceDesk) -> None:
    desk.job("widths=(256 1024 262144)\n$PYTHON train.py --width ${widths[$SLURM_ARRAY_TASK_ID]}")
    done = desk.call("--trace", "--dry-run", "--array=0-2", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "tasks 0 and 2 are traced for all 3" in done.stderr
    assert "task 2 needs most" in done.stderr
    one = desk.call("--trace", "--trace-tasks", "0", "--dry-run", "--array=0-2", "job.sh")
    assert "traced before" in one.stderr, one.stderr
    assert one.stdout != done.stdout
    wrong = desk.call("--trace", "--trace-tasks", "5", "--dry-run", "--array=0-2", "job.sh")
    assert (wrong.returncode, "the array has no task 5" in wrong.stderr) == (2, True)


INFERS = """
import torch
model = torch.nn.Linear(64, 64).cuda().eval()
with torch.no_grad(): model(torch.randn(8, 64).cuda())
"""


def test_a_job_that_only_infers_is_submitted_with_what_it_needs(desk: TraceDesk) -> None:
    desk.write("infer.py", INFERS)
    desk.job("$PYTHON infer.py\ntouch after.txt")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "batch 8, inference, fp32" in done.stderr
    assert not (desk.folder / "after.txt").exists()
    # The script goes on after a command that failed; its inference does not count anyway.
    desk.write("infer.py", INFERS + "import sys; sys.exit(3)")
    failed = desk.call("--trace", "--hold", "job.sh")
    assert (failed.returncode, "Nothing was submitted" in failed.stderr) == (2, True), failed.stderr
    assert "failed after 1 forward pass" in failed.stderr


BAD = {
    "asks": ("import torch; input('go on?')", "nobody answers"),
    "several-ranks": (
        "import torch.distributed as d; d.init_process_group('gloo', 'env://', world_size=4, rank=0)\n"
        + TRAIN,
        "4 processes that train together",
    ),
    "forks-forever": (
        "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(1)",
        "more and more processes",
    ),
    "hangs": ("import torch, time; time.sleep(600)", "stopped after 12 s"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_traced_is_one_message_and_nothing_is_submitted_or_left(
    desk: TraceDesk, name: str
) -> None:
    code, words = BAD[name]
    desk.write("train.py", code)
    desk.job("$PYTHON train.py\ntouch after.txt")
    done = desk.call("--trace", "--trace-limit", "12" if name == "hangs" else "100", "job.sh")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Nothing was submitted" in done.stderr
    assert done.stdout == ""
    assert desk.queue() == []
    assert not (desk.folder / "after.txt").exists()
    assert desk.nothing_runs()


def test_a_user_may_choose_a_whole_gpu_for_what_cannot_be_traced(desk: TraceDesk) -> None:
    desk.job("true")
    done = desk.call("--trace", "--trace-or", "whole-gpu", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "imported torch" in done.stderr
    assert "asking for a whole GPU" in done.stderr
    assert "as --trace-or asks" in done.stderr


def test_ctrl_c_ends_the_trace_and_everything_in_it(desk: TraceDesk) -> None:
    desk.job("sleep 314 & setsid sleep 314 & $PYTHON -c 'import time; time.sleep(300)'")
    # Shells let what they start in the background ignore Ctrl-C; these tests may run there.
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process = desk.start("--trace", "job.sh", start_new_session=True, preexec_fn=heeds)
    end = time.monotonic() + 120
    # Other tests run as this user, too.
    while not any("sleep 314" in line for line in _commands(desk)) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "interrupted while it was traced: nothing was submitted" in errors
    assert desk.nothing_runs()
    assert [line for line in _commands(desk) if "sleep 314" in line] == []
    assert desk.queue() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP], ids=["kill -9", "a closed terminal"])
def test_a_gpusbatch_that_is_killed_leaves_neither_processes_nor_folders(
    desk: TraceDesk, number: int
) -> None:
    desk.job("touch started; sleep 315 & $PYTHON -c 'import time; time.sleep(300)'")
    temporary = own(desk.write("tmp/x", "").parent)
    (temporary / "x").unlink()
    process = desk.start("--trace", "job.sh", env={"TMPDIR": str(temporary)})
    until(lambda: any("sleep 315" in line for line in _commands(desk)))
    process.send_signal(number)
    process.communicate(timeout=180)
    assert desk.nothing_runs()
    until(lambda: list(temporary.iterdir()) == [])
    assert not (desk.folder / "started").exists()
    assert desk.queue() == []


def _commands(desk: TraceDesk) -> List[str]:
    found = subprocess.run(
        ["ps", "-u", str(user_id()), "-o", "args="], capture_output=True, text=True, check=False
    )
    return found.stdout.splitlines()


def test_one_process_that_asks_for_several_gpus_is_submitted_as_it_is_and_the_idle_ones_are_said(
    desk: TraceDesk,
) -> None:
    desk.job("$PYTHON train.py", head="#!/bin/bash\n#SBATCH --gres=gpu:2")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "the script works with 1 GPU of the 2 that it asks for" in done.stderr
    assert "keeps its 2 whole GPUs: it asks for 2 GPUs (--gres)" in " ".join(done.stderr.split())
    assert desk.shown(done.stdout.split()[-1])["TresPerNode"].endswith("gpu:2")


def test_options_that_contradict_each_other_are_refused(desk: TraceDesk) -> None:
    desk.job("true")
    done = desk.call("--trace", "--gpu-mem", "12G", "job.sh")
    assert (done.returncode, "both say what the job needs" in done.stderr) == (2, True)
    done = desk.call("--trace", "--trace-tasks", "each", "job.sh")
    assert (done.returncode, "the job is no array" in done.stderr) == (2, True)
    done = desk.call("--trace", "--trace-or", "pray", "job.sh")
    assert (done.returncode, "unknown trace-or" in done.stderr) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it is what is refused")
def test_root_may_not_trace(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\ntouch ran\n")
    done = cluster.run([str(Path(sys.executable).with_name("gpusbatch")), "--trace", "job.sh"], cwd=tmp_path)
    assert done.returncode == 2
    assert "refused for root" in done.stderr
    assert not (tmp_path / "ran").exists()


def _site(desk: TraceDesk, text: str) -> Dict[str, str]:
    """The environment of a site whose gpumem.toml says this, too."""
    site = Path(desk.cluster.env["GPUMEM_SITE_CONFIG"])
    known = site.read_text() if site.exists() else ""
    return {"GPUMEM_SITE_CONFIG": str(desk.write("gpumem.toml", f"{known}\n{text}\n"))}


def _await_state(desk: TraceDesk, job: str, wanted: List[str], timeout_s: float = 120) -> Dict[str, str]:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        shown = desk.shown(job)
        if shown["JobState"] in wanted:
            return shown
        logs = [path.read_text() for path in desk.folder.glob("gpumem-trace-*")]
        assert shown["JobState"] in ("PENDING", "RUNNING", "COMPLETING"), (logs, shown)
        time.sleep(0.2)
    raise AssertionError(f"job {job} is {shown['JobState']} ({shown['Reason']})")


def test_where_login_nodes_are_closed_a_job_traces_and_the_real_one_follows_by_itself(
    desk: TraceDesk,
) -> None:
    env = _site(desk, '[trace]\nwhere = "job"\nmemory_mib = 4000\ncpus = 1')
    desk.job('test -z "$GPUMEM_TRACING" || $PYTHON train.py', head="#!/bin/bash\n#SBATCH --gres=gpu:1")
    done = desk.call("--trace", "job.sh", env=env)
    assert done.returncode == 0, done.stderr
    assert "traces the script" in done.stderr
    job = done.stdout.split()[-1]
    shown = _await_state(desk, job, ["COMPLETED"])
    record = parse_record(shown["Comment"])
    assert record is not None
    assert record.request_mib is not None
    assert record.request_mib < 2048
    # What its activity takes, where users' servers take turns: more than its memory, less than half a GPU.
    assert re.search(rf"shard:(a100:)?{record.shards}$", shown["TresPerNode"]), shown["TresPerNode"]
    assert record.shards in range(1, 20)
    assert (record.estimator, record.model) == ("trace", "Sequential")
    assert list(desk.folder.glob("gpumem-trace-*")) == []
    again = desk.call("--trace", "--dry-run", "job.sh", env=env)
    assert "traced before" in again.stderr, again.stderr


@pytest.mark.parametrize(("choice", "states"), [("whole-gpu", ["COMPLETED"]), ("stop", ["CANCELLED"])])
def test_a_failed_trace_job_never_leaves_the_real_job_waiting(
    desk: TraceDesk, choice: str, states: List[str]
) -> None:
    env = _site(desk, '[trace]\nwhere = "job"\nmemory_mib = 4000\ncpus = 1')
    desk.job("true", head="#!/bin/bash\n#SBATCH --gres=gpu:1")
    done = desk.call("--trace", "--trace-or", choice, "job.sh", env=env)
    assert done.returncode == 0, done.stderr
    shown = _await_state(desk, done.stdout.split()[-1], states)
    assert re.search(r"shard:a100:40$", shown["TresPerNode"]), shown["TresPerNode"]
    logs = [path.read_text() for path in desk.folder.glob("gpumem-trace-*")]
    assert len(logs) == 1
    assert "imported torch" in logs[0]


def test_a_trace_job_that_is_killed_lets_the_real_job_go(desk: TraceDesk) -> None:
    env = _site(desk, '[trace]\nwhere = "job"\nmemory_mib = 4000\ncpus = 1')
    desk.job('if [ -n "$GPUMEM_TRACING" ]; then sleep 300; fi', head="#!/bin/bash\n#SBATCH --gres=gpu:1")
    done = desk.call("--trace", "--trace-or", "whole-gpu", "job.sh", env=env)
    assert done.returncode == 0, done.stderr
    trace_job = re.search(r"job (\d+) traces", done.stderr)
    assert trace_job
    _await_state(desk, trace_job[1], ["RUNNING"])
    desk.cluster.run(["scancel", trace_job[1]], check=True)
    _await_state(desk, done.stdout.split()[-1], ["COMPLETED"])
    assert desk.nothing_runs()


def test_a_strangers_job_that_waits_for_the_trace_is_not_taken_for_the_real_one(desk: TraceDesk) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the stranger is another user")
    env = _site(desk, '[trace]\nwhere = "job"\nmemory_mib = 4000\ncpus = 1')
    desk.job('test -z "$GPUMEM_TRACING" || $PYTHON train.py', head="#!/bin/bash\n#SBATCH --gres=gpu:1")
    started, go = desk.folder / "started", desk.folder / "go"
    wait = f"touch {started}; until test -e {go}; do sleep 0.1; done"

    def submit(*words: str) -> str:
        """As root, who is another user than the one who traces."""
        argv = ["sbatch", "--parsable", *words]
        number = desk.cluster.run(argv, check=True, cwd=desk.folder).stdout.strip()
        desk.jobs.append(number)
        return number

    # The trace job starts when the stranger's waits for it, before the real one in every list.
    submit("--exclusive", "--nodes=2", "--wrap", wait)
    until(started.exists)
    done = desk.call("--trace", "job.sh", env=env)
    trace_job = re.search(r"job (\d+) traces", done.stderr)
    assert trace_job, done.stderr
    behind = f"--dependency=afterany:{trace_job[1]}"
    stranger = submit(behind, "--nice=-1000", "--gres=shard:a100:40", "--wrap", "true")
    go.touch()
    shown = _await_state(desk, done.stdout.split()[-1], ["COMPLETED"])
    record = parse_record(shown["Comment"])
    assert record is not None
    assert record.estimator == "trace"
    assert desk.shown(stranger)["TresPerNode"].endswith("shard:a100:40")


RANKS = """
import os, sys, torch, torch.nn as nn, torch.distributed as dist
world = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
dist.init_process_group("nccl", rank=int(os.environ["SLURM_PROCID"]), world_size=world)
assert torch.cuda.device_count() == int(os.environ["SLURM_GPUS_ON_NODE"])
model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(8)])
if "--fsdp2" in sys.argv:
    from torch.distributed.fsdp import fully_shard
    model = fully_shard(model)
model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[0])
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    loss = model(torch.randn(8, 4096, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_a_job_of_several_ranks_gets_a_verdict_and_keeps_its_whole_gpus(desk: TraceDesk) -> None:
    desk.write("train.py", RANKS)
    desk.job("srun -n 2 $PYTHON train.py", "#!/bin/bash\n#SBATCH --gres=gpu:2 -N 1\n")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "it asks for 2 GPUs (--gres); each needs" in said
    assert desk.shown(done.stdout.split()[-1])["TresPerNode"].endswith("gpu:2")


def test_one_rank_on_each_of_two_nodes_gets_a_traced_share_of_each_nodes_gpu(desk: TraceDesk) -> None:
    desk.write("train.py", RANKS)
    desk.job("srun $PYTHON train.py", "#!/bin/bash\n#SBATCH --gres=gpu:1 -N 2 --ntasks-per-node=1\n")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "on each of 2 nodes" in said
    assert "its ranks are on 2 nodes: the first was traced" in said
    assert "shard:" in desk.shown(done.stdout.split()[-1])["TresPerNode"]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_that_is_seen_to_shard_its_model_is_submitted_with_its_whole_gpus(
    desk: TraceDesk, gpus: int
) -> None:
    desk.write("train.py", RANKS)
    desk.job(f"srun -n {gpus} $PYTHON train.py --fsdp2", f"#!/bin/bash\n#SBATCH --gres=gpu:{gpus} -N 1\n")
    done = desk.call("--trace", "--hold", "job.sh")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "it shards its model over GPUs (FSDP): its peak is not estimated; it keeps whole GPUs" in said
    assert desk.shown(done.stdout.split()[-1])["TresPerNode"].endswith(f"gpu:{gpus}")


@pytest.mark.parametrize(
    ("gres", "tasks", "words"),
    [("gpu:2", 4, "4 processes that train together, for 2 GPUs"), ("gpu:1", 2, "Ask for 2 GPUs")],
)
def test_a_script_with_more_ranks_than_gpus_is_refused_and_never_shares_one(
    desk: TraceDesk, gres: str, tasks: int, words: str
) -> None:
    desk.write("train.py", RANKS)
    desk.job(f"srun -n {tasks} $PYTHON train.py", f"#!/bin/bash\n#SBATCH --gres={gres} -N 1\n")
    done = desk.call("--trace", "job.sh")
    assert (done.returncode, done.stdout, desk.queue()) == (2, "", [])
    assert words in " ".join(done.stderr.split())
    assert "Nothing was submitted" in done.stderr
