"""What Pythons of a job report of PyTorch: real processes, with a stand-in for torch where CUDA is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from slurm_gpumem.data import package_folder
from slurm_gpumem.formats.comment import Used
from slurm_gpumem.recovery.process_reports import take_reports
from tests.support.needs import needs_torch
from tests.support.standin_torch import CODE, write_torch
from tests.support.timing import slowness

HOOK = package_folder("injected")
PYENV = Path("~/.pyenv/versions").expanduser()
OTHER_PYTHONS = sorted(str(path) for path in PYENV.glob("*/bin/python") if os.access(path, os.X_OK))


class Job:
    """A job's Pythons, as the task prolog sets up their environment."""

    def __init__(self, folder: Path) -> None:
        self.reports = folder / "reports"
        self.reports.mkdir(mode=0o700)
        self.torch = write_torch(folder / "packages")
        self.folder = folder

    def python(self, code: str, *options: str, check: bool = True, **more: Any) -> Any:
        """Run it; `path` are folders behind the hook's, `python` another interpreter, others variables."""
        path: List[str] = [HOOK, *map(str, more.pop("path", [self.torch]))]
        interpreter = more.pop("python", sys.executable)
        env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(path)}
        env.update({"GPUMEM_REPORT_DIR": str(self.reports), "PYTHONDONTWRITEBYTECODE": "1", **more})
        return subprocess.run(
            [interpreter, *options, "-c", code],
            env=env, cwd=self.folder, capture_output=True, text=True, check=check,
        )  # fmt: skip

    def files(self) -> List[Dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.reports.iterdir())]

    def used(self) -> Optional[Used]:
        return take_reports(str(self.reports), 0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


TRAIN = "import torch; torch.cuda.hold(1200); torch.cuda.hold(18310)"


def test_a_python_that_trains_reports_what_pytorch_reserved_and_its_environment(job: Job) -> None:
    done = job.python(TRAIN, CUDA_MODULE_LOADING="LAZY")
    assert (done.stdout, done.stderr) == ("", "")
    (report,) = job.files()
    assert report["devices"] == [[18310 << 20, 18310 << 20]]
    assert job.used() == Used(0, 18310, "2.6.0+cu124", "lazy")
    assert not job.reports.exists()


def test_a_version_without_its_build_gets_the_cuda_that_torch_names(job: Job) -> None:
    write_torch(job.torch, CODE.replace("2.6.0+cu124", "2.1.2"))
    job.python(TRAIN)
    used = job.used()
    assert used is not None
    assert used.torch == "2.1.2+cu124"


@pytest.mark.parametrize(
    "code",
    [
        "print('no torch')",
        "import torch",
        # Some programs only ask.
        "import torch; torch.cuda.device_count()",
    ],
)
def test_a_python_that_does_not_use_cuda_leaves_nothing(job: Job, code: str) -> None:
    job.python(code)
    assert job.files() == []
    assert job.used() is None


@pytest.mark.parametrize(
    "end",
    [
        "import os; os._exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.execv('/bin/true', ['true'])",
    ],
)
def test_a_process_that_ends_otherwise_leaves_an_unfinished_report_and_the_run_says_nothing(
    job: Job, end: str
) -> None:
    job.python(TRAIN)
    done = job.python(f"{TRAIN}; {end}", check=False)
    assert done.returncode in (0, -9)
    assert sorted("ended" in report for report in job.files()) == [False, True]
    assert job.used() is None


@pytest.mark.parametrize("error", ["raise KeyError(1)", "import sys; sys.exit(3)"])
def test_a_job_that_fails_reports_too_and_its_exit_code_and_output_stay(job: Job, error: str) -> None:
    done = job.python(f"{TRAIN}; {error}", check=False)
    plain = subprocess.run([sys.executable, "-c", error], capture_output=True, text=True, check=False)
    assert done.returncode == plain.returncode
    assert done.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert job.used() is not None


def test_processes_one_after_the_other_say_what_the_largest_reserved(job: Job) -> None:
    for mib in (900, 4000, 1500):
        job.python(f"import torch; torch.cuda.hold({mib})")
    assert job.used() == Used(0, 4000, "2.6.0+cu124", "")


def test_processes_beside_each_other_say_nothing(job: Job) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TRAIN!r}], check=True)"
    job.python(f"import torch; torch.cuda.hold(100); {child}")
    assert len(job.files()) == 2
    assert job.used() is None


def test_a_forked_child_does_not_report_its_parents_memory(job: Job) -> None:
    # A child that ends as Python does, with its parent's exit handlers: not as multiprocessing ends one.
    fork = "import os, sys; child = os.fork(); child or sys.exit(0); os.waitpid(child, 0)"
    job.python(f"{TRAIN}; {fork}")
    assert len(job.files()) == 1
    assert job.used() == Used(0, 18310, "2.6.0+cu124", "")


def test_children_that_use_cuda_themselves_report_themselves(job: Job) -> None:
    fork = f"import os; child = os.fork(); child or ({TRAIN.split('; ', 1)[1].replace('; ', ', ')})"
    done = job.python(f"import torch; {fork}; child and os.waitpid(child, 0)")
    assert done.stderr == ""
    assert job.used() == Used(0, 18310, "2.6.0+cu124", "")


def test_workers_of_multiprocessing_that_use_no_gpu_change_nothing(job: Job) -> None:
    code = (
        f"{TRAIN}\nimport multiprocessing\nif __name__ == '__main__':\n"
        " with multiprocessing.get_context('fork').Pool(2) as pool: print(sum(pool.map(abs, range(5))))"
    )
    assert job.python(code).stdout == "10\n"
    assert job.used() == Used(0, 18310, "2.6.0+cu124", "")


@pytest.mark.parametrize(
    "code", [f"{TRAIN}; torch.cuda.hold(600)", "import torch; torch.cuda.hold(9); torch.cuda.hold(9, 1)"]
)
def test_memory_that_was_given_back_or_on_two_gpus_says_nothing(job: Job, code: str) -> None:
    job.python(code)
    assert "ended" in job.files()[0]
    assert job.used() is None


def test_the_users_own_sitecustomize_runs_as_before(job: Job) -> None:
    own = job.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.MINE = __name__ + ' ' + __file__\n")
    done = job.python(f"print(MINE); {TRAIN}", path=[own, job.torch])
    assert done.stdout == f"sitecustomize {own / 'sitecustomize.py'}\n"
    assert job.used() is not None


def test_an_error_in_the_users_own_sitecustomize_is_said_as_python_says_it(job: Job) -> None:
    own = job.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    done = job.python(TRAIN, path=[own, job.torch])
    assert "Error in sitecustomize" in done.stderr
    assert "RuntimeError: mine" in done.stderr


@pytest.mark.parametrize("folder", ["/nonexistent", "/proc", "/dev/null", "x" * 5000])
def test_a_folder_that_cannot_be_written_to_is_not_heard_of(job: Job, folder: str) -> None:
    done = job.python(f"{TRAIN}; print('trained')", GPUMEM_REPORT_DIR=folder)
    assert (done.stdout, done.stderr) == ("trained\n", "")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("def _lazy_call(", "def _other("),
        ("def max_memory_reserved(self, device):", "def max_memory_reserved(self):"),
        ("return self._peak[device]", "raise SystemError('CUDA error: unspecified launch failure')"),
    ],
)
def test_a_pytorch_that_answers_otherwise_is_left_alone(job: Job, ours: str, theirs: str) -> None:
    write_torch(job.torch, CODE.replace(ours, theirs))
    done = job.python(f"{TRAIN}; print('trained')")
    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert job.used() is None


def test_a_torch_that_cannot_be_imported_fails_as_before(job: Job) -> None:
    write_torch(job.torch, "raise ImportError('libcudart.so.12')\n")
    done = job.python("import torch", check=False)
    assert done.stderr.endswith("ImportError: libcudart.so.12\n")
    done = job.python("import torch", path=[], check=False)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'torch'\n") or done.returncode == 0


@pytest.mark.parametrize("python", OTHER_PYTHONS, ids=lambda path: Path(path).parents[1].name)
def test_every_python_starts_silently_and_those_from_3_6_on_report(job: Job, python: str) -> None:
    own = job.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.mine = 1\n")
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
    if "2.7" in version.stdout + version.stderr:
        done = job.python("import sys; sys.stdout.write(str(sys.mine))", python=python, path=[own])
        assert (done.stdout, done.stderr) == ("1", "")
        return
    done = job.python(f"import sys; print(sys.mine); {TRAIN}", python=python, path=[own, job.torch])
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert job.used() is not None


@needs_torch
def test_real_pytorch_has_what_the_hook_uses_and_reports_nothing_without_cuda(job: Job) -> None:
    code = (
        "import sys, torch; print(sys.modules['gpumem_report'].VERSION, "
        "any('_Report.begin' in str(call[0]) for call in torch.cuda._queued_calls), "
        "torch.cuda.max_memory_reserved(0) if torch.cuda.is_available() else 0)"
    )
    done = job.python(code, path=[p for p in sys.path if p.endswith("site-packages")])
    assert done.stdout == "1 True 0\n", done.stderr
    assert job.files() == []


@pytest.mark.timing
def test_the_start_of_python_takes_at_most_a_few_milliseconds_longer(job: Job) -> None:
    """As Python itself counts it; the best of some, since other processes of the machine only add to it."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": HOOK, "GPUMEM_REPORT_DIR": str(job.reports)}
    argv = [sys.executable, "-X", "importtime", "-c", "pass"]
    taken = []
    for _ in range(10):
        lines = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stderr.splitlines()
        (line,) = (line for line in lines if line.split("|")[-1].strip() == "sitecustomize")
        taken.append(int(line.split("|")[1]) / 1000)
    print(f"start of Python with the hook: +{min(taken):.2f} ms")
    assert min(taken) < 3 * slowness()


def test_a_package_that_was_removed_while_the_job_runs_breaks_no_import(job: Job) -> None:
    alone = job.folder / "alone"
    alone.mkdir()
    shutil.copy(Path(HOOK) / "sitecustomize.py", alone)
    done = job.python(f"{TRAIN}; print('trained')", PYTHONPATH=os.pathsep.join([str(alone), str(job.torch)]))
    assert (done.stdout, done.stderr) == ("trained\n", "")
    assert job.files() == []
