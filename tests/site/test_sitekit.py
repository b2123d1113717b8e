"""`gpumem sitekit` with stand-ins for the GPU, PyTorch and MPS: its rows, its file, what is left of it."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import pytest

from slurm_gpumem.cli.commands import sitekit
from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.errors import CalibrationError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.formats.kit_file import KitContext, KitFile, KitGpu, KitRow, KitTraining, read_kit_file
from slurm_gpumem.node.nvml import MigDevice
from slurm_gpumem.site.calibration_context import entry_of_kit, put_entry, warnings_of
from slurm_gpumem.site.kit import children, driver_cgroup, mps, run
from slurm_gpumem.site.kit.run import Kit
from slurm_gpumem.site.kit.text import HEAD, page_row, table_lines
from slurm_gpumem.site.kit.trainings import TRAININGS
from tests.node.conftest import MPS_STANDIN
from tests.support.waiting import until

REAL_FOREIGN, REAL_LIBRARY = mps.foreign_server, mps.end_library
UUID = "GPU-00000000-1111-2222-3333-444444444444"
PROBE = {
    "outside_mib": {"bare": 400, "conv": 410, "matmul": 480},
    "workspaces": [8519680],
    "rounding": [[512, 2097152, 512, 2097152]],
    "how": "NVML, own process",
    "crowded": False,
    "gpu": "NVIDIA A100-SXM4-40GB",
    "driver": "550.1",
    "memory_mib": 40960,
    "compute_capability": "8.0",
    "sms": 108,
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": "91900",
    "alloc_conf": "",
}
# In Python's place: the kit's processes as they answer on a GPU. What it must do otherwise is in FOLDER.
INTERPRETER = """#!/usr/bin/python3 -I
import json, os, signal, sys, time
folder = {folder!r}
module, rest = sys.argv[2], sys.argv[3:]
def odd(what): return os.path.exists(os.path.join(folder, what))
def say(**what): print(json.dumps(what), flush=True)
if module.endswith("calibration_probe"):
    say(**json.load(open(os.path.join(folder, "probe.json"))))
elif module.endswith("training_probe"):
    if odd("no training"): sys.exit("RuntimeError: /home/secret/" + "x")
    say(mib=2000)
elif module == "slurm_gpumem":
    open(os.path.join(folder, "trace-environment"), "w").write("\\n".join(os.environ))
    if odd("no trace"): sys.exit("gpumem: cannot trace safely here: /home/secret")
    say(peak_mib=1900, request_mib=1990 if odd("low") else 2200)
elif rest[0] == "grow":
    cap, text = int(rest[1]), os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    limit = min(1536, int(text.split("=")[1][:-1])) if "=" in text else 99999 if text else 1536
    if odd("no limit"): limit = 99999
    say(held=min(cap, limit - 16), process=min(cap, limit), refused="OutOfMemoryError" if limit < cap else "")
else:
    say(ready=300)
    if odd("hang"):
        open(os.path.join(folder, "hangs"), "w").write(str(os.getpid()))
        while sys.stdin.readline(): pass
        sys.exit(3)
    import select
    computing, steps = rest[0] == "compute", 0
    while True:
        if select.select([sys.stdin], [], [], 0.01)[0]:
            word = sys.stdin.readline().strip()
            if not word: os._exit(3)
            if word == "leave": sys.exit(0)
            if word == "crash": os.kill(os.getpid(), signal.SIGSEGV)
            computing = True
        if computing:
            steps += 1
            say(steps=steps)
"""


class Whole(NamedTuple):
    """A run, its folder, and what was left of it."""

    folder: Path
    kit: KitFile
    left: List[str]


class _Nvml:
    """The driver of a whole GPU, which lists whoever is told."""

    def __init__(self, instance: bool = False) -> None:
        self._instance = instance

    def instance(self, uuid: str) -> Optional[object]:
        return object() if self._instance else None

    def memory_mib(self, uuid: str) -> Tuple[float, float]:
        return 500.0, 40960.0

    def processes(self, uuid: str) -> List[Tuple[int, float]]:
        return [(pid, 300.0) for pid in _processes_below(Path("/tmp"), "mps_client")]

    mps_processes = processes


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose `python` answers for everything that needs a GPU."""
    # pytest's own folders are too long for sockets.
    with tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as folder:
        yield _standin(Path(folder), monkeypatch)


@pytest.fixture(scope="module")
def whole() -> Whole:
    """One run of everything."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="kt-", dir="/tmp") as name:
        folder = _standin(Path(name), patch)
        code, kit, said = _run(folder)
        assert code == 0, said
        return Whole(folder, kit, [*os.listdir(folder / "kits"), *map(str, _processes_below(folder))])


def _standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = tmp_path / "python"
    python.write_text(INTERPRETER.format(folder=str(tmp_path)))
    python.chmod(0o755)
    (tmp_path / "probe.json").write_text(json.dumps(PROBE))
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(MPS_STANDIN.read_text())
    control.chmod(0o755)
    (tmp_path / "kits").mkdir()
    gpu = SimpleNamespace(nvml=_Nvml(), uuid=UUID, driver="550.1")
    monkeypatch.setattr(run, "_visible", lambda: gpu)
    monkeypatch.setattr(run, "_FOLDER", str(tmp_path / "kits"))
    monkeypatch.setattr(run, "TRAININGS", dict(list(TRAININGS.items())[:3]))
    monkeypatch.setattr(run, "sys", SimpleNamespace(executable=str(python)))
    monkeypatch.setattr(mps, "control_program", lambda: str(control))
    monkeypatch.setattr(mps, "foreign_server", lambda uuid: False)
    monkeypatch.setattr(mps, "end_library", lambda folder: tmp_path / "end.so")
    monkeypatch.setattr(mps, "_JUDGED_S", 0.1)
    return tmp_path


def _run(folder: Path) -> Tuple[int, KitFile, List[str]]:
    said: List[str] = []
    kit = Kit(str(folder / "python"), said.append, said.append)
    return kit.run(), kit.found(), said


def _row(kit: KitFile, part: str, what: str) -> KitRow:
    return next(row for row in kit.rows if row.part == part and what in row.what)


def test_every_promise_gets_a_row_and_nothing_is_left(whole: Whole) -> None:
    kit = whole.kit
    assert kit.complete
    assert {row.part for row in kit.rows} == {"MPS", "limits", "ends", "driver limit"}
    assert not [row for row in kit.rows if row.failed], kit.rows
    assert [row for row in kit.rows if not row.tried] == [_row(kit, "driver limit", "cgroup")]
    dropped = _row(kit, "limits", "cannot drop")
    assert (dropped.tried, dropped.held, dropped.promised) == (1, 0, False)
    assert "1536 MiB" in _row(kit, "limits", "server's limit").said
    assert _row(kit, "driver limit", "cgroup").said.startswith("driver 550.1 has no such limit")
    assert [one.compared for one in kit.trainings] == [True] * 3
    assert whole.left == []


def _processes_below(folder: Path, what: str = "") -> List[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"{folder}/" in line and what in line:
                found.append(int(entry.name))
    return found


def test_a_limit_that_does_not_hold_is_said(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "ends", lambda *_: None)
    (standin / "no limit").touch()
    _, kit, _ = _run(standin)
    assert len([row for row in kit.rows if row.part == "limits" and row.failed]) == 3
    assert any("did not hold there: limits" in text for text in warnings_of(kit))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_found_is_kept_when_it_is_interrupted(
    standin: Path, monkeypatch: pytest.MonkeyPatch, number: int, request: pytest.FixtureRequest
) -> None:
    # In the background a shell has SIGINT ignored.
    request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    signal.signal(number, signal.default_int_handler)
    (standin / "hang").touch()
    monkeypatch.setattr(mps, "contexts", lambda bench, say: say(KitRow("MPS", "x", 1, 1)))
    kit = Kit(str(standin / "python"), lambda text: None, lambda text: None)

    def interrupt() -> None:
        until(lambda: (standin / "hangs").exists())
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.getsignal(number)
    assert kit.run() == number
    thread.join()
    assert signal.getsignal(number) is before
    found = kit.found()
    assert not found.complete
    assert found.context is not None
    assert found.rows[0] == KitRow("MPS", "x", 1, 1)
    assert {one.why for one in found.trainings} == {"interrupted"}
    assert os.listdir(standin / "kits") == []
    assert not list(_processes_below(standin))
    assert "warning: that run was interrupted" in warnings_of(found)


def test_what_cannot_be_tried_says_why(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no training", "no trace"):
        (standin / name).touch()
    monkeypatch.setattr(mps, "control_program", lambda: None)
    code, kit, said = _run(standin)
    assert code == 0
    for part in ("MPS", "limits", "ends"):
        assert _row(kit, part, "all").said == "no nvidia-cuda-mps-control here"
    for one in kit.trainings:
        assert sorted(one.why.split("; ")) == ["trace: this node allows none", "training: RuntimeError"]
    assert any("/home/secret" in text for text in said), "the person at the terminal sees the message"
    assert "secret" not in kit.to_json()
    assert "not tried" in page_row(kit)


def test_a_server_of_the_site_is_left_alone(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "foreign_server", lambda uuid: True)
    _, kit, _ = _run(standin)
    assert _row(kit, "ends", "all").said == "an MPS server that is not the kit's runs here"


def test_an_instance_is_measured_and_has_no_mps(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(nvml=_Nvml(instance=True), uuid="MIG-1", driver="550.1")
    monkeypatch.setattr(run, "_visible", lambda: gpu)
    _, kit, _ = _run(standin)
    assert _row(kit, "MIG", "instance").held == 1
    assert _row(kit, "limits", "all").said == "a MIG instance: jobs there have no MPS"


def test_a_missing_end_library_is_a_row(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "end_library", lambda folder: None)
    monkeypatch.setattr(mps, "limits", lambda *_: None)
    _, kit, _ = _run(standin)
    assert "no C compiler" in _row(kit, "ends", "SIGTERM, computes").said
    assert _row(kit, "ends", "taken from its server, SIGKILL; idle").held == 3


def test_a_busy_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = SimpleNamespace(processes={7: 100})
    nvml = SimpleNamespace(instance=lambda uuid: None, mig_devices=lambda uuid: None)
    monkeypatch.setattr(run, "VisibleGpu", lambda: SimpleNamespace(nvml=nvml, uuid=UUID, read=lambda: busy))
    with pytest.raises(CalibrationError, match="others use this GPU"):
        run._visible()


def test_a_divided_gpu_is_measured_in_its_first_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    listed = [MigDevice("MIG-1", UUID, 1, 0), MigDevice("MIG-2", UUID, 2, 0)]
    nvml = SimpleNamespace(
        instance=lambda uuid: listed[0] if uuid == "MIG-1" else None, mig_devices=lambda uuid: listed
    )
    monkeypatch.setattr(
        run,
        "VisibleGpu",
        lambda: SimpleNamespace(
            nvml=nvml,
            uuid=UUID if os.environ["CUDA_VISIBLE_DEVICES"] == "0" else os.environ["CUDA_VISIBLE_DEVICES"],
            read=lambda: SimpleNamespace(processes={}),
        ),
    )
    assert run._visible().uuid == "MIG-1"
    listed.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(CalibrationError, match="has no instance"):
        run._visible()


def test_a_terminal_that_is_gone_does_not_end_it_under_nohup(
    standin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: List[object] = []
    monkeypatch.setattr(Kit, "_all", lambda kit, folder: heard.append(signal.getsignal(signal.SIGHUP)))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert _run(standin)[0] == 0
        assert heard == [signal.SIG_IGN]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_while_a_process_starts_leaves_none(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: List[children.Child] = []

    def interrupted(argv: Any, environment: Any) -> children.Child:
        child = children.Child(argv, environment)
        os.kill(os.getpid(), signal.SIGTERM)
        started.append(child)
        return child

    kit = Kit(str(standin / "python"), lambda text: None, lambda text: None)
    monkeypatch.setattr(Kit, "_all", lambda kit, folder: kit._start(["sleep", "600"], os.environ))
    monkeypatch.setattr(children, "Child", mock_of(interrupted, children.Child))
    assert kit.run() == signal.SIGTERM
    assert [child.runs for child in started] == [False]


def test_a_signal_while_a_daemon_is_stopped_leaves_none(
    standin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: List[Path] = []

    def interrupted(known: children.Children, child: children.Child, grace_s: float = 10.0) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        real(known, child, grace_s)

    def contexts(bench: mps.Bench, say: mps.Say) -> None:
        with mps.served(bench) as at:
            folders.append(at.folder.root)
            at.ready(at.client("context"))

    real = children.Children.end
    kit = Kit(str(standin / "python"), lambda text: None, lambda text: None)
    monkeypatch.setattr(children.Children, "end", interrupted)
    monkeypatch.setattr(mps, "contexts", contexts)
    monkeypatch.setattr(Kit, "_trace", lambda kit, name, gpu, folder: None)
    assert kit.run() == signal.SIGTERM
    assert folders
    assert not list(_processes_below(standin))


def test_a_daemon_that_does_not_let_go_is_a_promise_that_did_not_hold(
    standin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps.Served, "take", lambda at, child: False)
    monkeypatch.setattr(mps.MpsService, "set_default_limit", lambda *how: False)
    code, kit, said = _run(standin)
    assert code == 0, said
    row = _row(kit, "ends", "SIGKILL; idle")
    assert (row.tried, row.held, row.failed, row.said) == (1, 0, True, "the daemon did not answer")
    assert _row(kit, "limits", "all").failed
    assert _row(kit, "ends", "SIGKILL alone").tried  # those after it are tried, too


def test_a_process_that_cannot_be_made_ends_no_run(standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(argv: Any, environment: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(children, "Child", refused)
    code, kit, said = _run(standin)
    assert code == 0, said
    assert {"Resource temporarily" in one.why for one in kit.trainings} == {True}


def mock_of(made: Any, real: Any) -> Any:
    """In the class's place for calls; `made` itself uses the real one."""

    def call(argv: Any, environment: Any) -> Any:
        children.Child = real
        return made(argv, environment)

    return call


@pytest.mark.parametrize(
    ("name", "is_one"), [("nvidia-cuda-mps-server", True), ("nvidia-cuda-mps-control", False)]
)
def test_a_server_of_that_gpu_is_foreign_and_a_daemon_without_one_is_not(
    monkeypatch: pytest.MonkeyPatch, standin: Path, name: str, is_one: bool
) -> None:
    """Our own Prolog starts a daemon for the job that the kit runs in."""
    program, pipe = standin / name, standin / "pipe"
    shutil.copy(MPS_STANDIN, program)
    pipe.mkdir()
    environment = {
        "CUDA_VISIBLE_DEVICES": UUID,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(standin),
    }
    with subprocess.Popen([str(program), "-f"], env=environment) as daemon:
        until(lambda: (pipe / "control").exists())
        monkeypatch.setattr(mps.processes, "named", lambda prefix: iter([daemon.pid]))
        assert REAL_FOREIGN(UUID) == is_one
        assert not REAL_FOREIGN("GPU-another")
        daemon.kill()
    assert not REAL_FOREIGN(UUID), "one that has ended serves nobody"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_library_for_ends_is_made_where_none_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "prolog"
    shutil.copytree(Path(__file__).resolve().parents[2] / "prolog", sources)
    (sources / "libgpumem_end.so").unlink(missing_ok=True)
    monkeypatch.setattr(mps, "data_path", lambda folder, name: sources / name)
    monkeypatch.setattr(mps, "_LIBRARIES", ())
    made = REAL_LIBRARY(tmp_path)
    assert made is not None
    assert made.read_bytes().startswith(b"\x7fELF")
    assert made.is_relative_to(tmp_path / "end")


class _LimitingNvml(_Nvml):
    """Driver 615."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: List[Optional[int]] = []

    def limit_memory(self, uuid: str, cgroup: str, mib: Optional[int]) -> None:
        self.limits.append(mib)

    def memory_limit_mib(self, uuid: str, cgroup: str) -> Optional[float]:
        return self.limits[-1]


def test_the_drivers_limit_is_tried_in_a_cgroup_of_its_own(
    standin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroups = standin / "cgroup"
    cgroups.mkdir()
    (cgroups / "cgroup.controllers").touch()
    monkeypatch.setattr(driver_cgroup, "CGROUPS", cgroups)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nvml, rows = _LimitingNvml(), []  # type: Any, List[KitRow]
    bench = mps.Bench(str(standin / "python"), UUID, "", standin, children.Children(), nvml, lambda: False)
    driver_cgroup.driver_limit(bench, "615.10", rows.append)
    assert (rows[0].tried, rows[0].held, rows[0].promised) == (1, 1, False)
    assert nvml.limits == [mps.LIMIT_MIB, None], "the limit is taken away again"
    (cgroup,) = [path for path in cgroups.iterdir() if path.is_dir()]
    assert (cgroup / "cgroup.procs").read_text().strip().isdigit()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    driver_cgroup.driver_limit(bench, "615.10", rows.append)
    assert (rows[1].tried, rows[1].said) == (0, "only root may")


def test_the_command_writes_the_file_and_says_how_to_use_it(
    standin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("contexts", "limits", "ends"):
        monkeypatch.setattr(mps, name, lambda *_: None)
    monkeypatch.setattr(sitekit, "python_of", lambda folder: str(folder / "python"))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("GPUMEM_BATCH_SIZE", "7")
    (standin / "low").touch()
    path = standin / "out.json"
    assert main(["sitekit", "--environment", str(standin), "-o", str(path)]) == 0
    said = capsys.readouterr()
    assert "PYTORCH_CUDA_ALLOC_CONF is left out" in said.err
    assert "requests of 3 of its trainings were below need: cnn, cnn-bf16, cnn-wide" in said.err
    assert said.out.count("BELOW NEED") == 3
    assert f"gpumem calibrate --kit {path}" in said.err
    assert read_kit_file(path).complete
    seen = (standin / "trace-environment").read_text()
    assert "GPUMEM_BATCH_SIZE" not in seen
    assert "GPUMEM_SITE_CONFIG" in seen
    assert main(["sitekit", "--environment", str(standin), "-o", str(standin / "no" / "folder.json")]) == 2
    said = capsys.readouterr()
    assert '"schema": "gpumem-kit/1"' in said.out, "what was measured is not lost"
    assert "cannot be written" in said.err


# -- The file ----------------------------------------------------------------------------------------


def test_the_file_names_nothing_of_the_site(whole: Whole) -> None:
    text = whole.kit.to_json()
    # Whoever is called "user" has a name that says nothing.
    names = {getpass.getuser(), socket.gethostname(), str(whole.folder), UUID, os.environ["PATH"]} - {"user"}
    assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    assert "/" not in re.sub(r"gpumem-kit/1", "", text), text


def test_it_is_read_back_as_it_was_written(whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "kit.json"
    path.write_text(whole.kit.to_json())
    assert read_kit_file(path) == whole.kit


GPU = KitGpu("NVIDIA A100-SXM4-40GB", "550.1", 40960, "8.0", 108, "2.11.0+cu130", "13.0", "91900")


def _kit(**changes: Any) -> KitFile:
    values: Dict[str, Any] = {
        "date": "2026-11-19",
        "version": "1.0.0",
        "seconds": 300,
        "complete": True,
        "gpu": GPU,
        "context": KitContext(402, 410, 470, 480, 8519680, True),
        "rows": (KitRow("ends", "SIGTERM", 3, 3), KitRow("ends", "SIGKILL alone", 2, 0, False)),
        "trainings": (KitTraining("a", 2000, 1900, 2100), KitTraining("b", 2000, 2200, 2500)),
    }
    return KitFile(**{**values, **changes})


def _written(folder: Path, **changes: Any) -> Path:
    path = folder / "kit.json"
    path.write_text(_kit(**changes).to_json())
    return path


def test_calibrate_takes_the_file_and_the_type_is_a_measured_one(tmp_path: Path) -> None:
    entry, path = entry_of_kit(_written(tmp_path), ""), tmp_path / "gpumem-gpus.toml"
    assert not find_gpu("a100", path).measured
    put_entry(path, entry)
    gpu = find_gpu("a100", path)
    assert gpu.calibrated
    assert (gpu.context_bare_mib, gpu.context_conv_mib, gpu.context_matmul_mib, gpu.context_mib) == (
        402, 410, 470, 480,
    )  # fmt: skip
    assert gpu.cublas_workspace_bytes == 8519680
    assert gpu.source.startswith("gpumem sitekit, 2026-11-19: NVIDIA A100-SXM4-40GB, driver 550.1")


def test_calibrate_writes_prints_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = _written(tmp_path), tmp_path / "gpumem-gpus.toml"
    assert main(["calibrate", "--kit", str(path), "--print"]) == 0
    assert capsys.readouterr().out.startswith("[a100]\nmemory_mib = 40960\n")
    assert not out.exists()
    assert main(["calibrate", "--kit", str(path), "--name", "Big", "--output", str(out)]) == 0
    assert find_gpu("big", out).context_mib == 480
    assert "warning" not in capsys.readouterr().err


def test_what_was_below_need_is_said_and_the_entry_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _written(tmp_path, trainings=(KitTraining("small", 2000, 1500, 1900),))
    assert main(["calibrate", "--kit", str(path), "--print"]) == 0
    assert "requests of 1 of its trainings were below need: small" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "its schema is"),
        ('{"schema": "gpumem-job/2"}', "its schema is 'gpumem-job/2'"),
        ('{"schema": "gpumem-kit/1"}', "date must be a text"),
        (_kit(gpu=None).to_json(), "no context was measured"),
        (_kit(context=KitContext(402, 410, 470, 999_999, None, True)).to_json(), "from 64 to 4096 MiB"),
        (_kit(context=KitContext(402, 410, 470, 480, 1 << 39, True)).to_json(), "such cuBLAS workspaces"),
        (_kit(gpu=replace(GPU, memory_mib=1 << 39)).to_json(), "no GPU has 549755813888 MiB"),
        (_kit(gpu=replace(GPU, sms=0)).to_json(), "and 0 multiprocessors"),
        (_kit(rows=(KitRow("ends", "of /home/anna/x", 1, 1),)).to_json(), "holds a path"),
        (_kit(rows=(KitRow("ends", "<img src=x>", 1, 1),)).to_json(), "or markup"),
        (_kit(rows=(KitRow("ends", "[x](javascript:y)", 1, 1),)).to_json(), "or markup"),
        (_kit().to_json().replace('"held": 3', '"held": 3, "user": "anna"'), "must have part, what"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "kit.json"
    path.write_text(text)
    assert main(["calibrate", "--kit", str(path), "--print"]) == 2
    assert why in capsys.readouterr().err


def test_the_table_and_the_row_say_what_held(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "\n".join(table_lines(_kit()))
    assert "SIGTERM        3 of 3" in text
    assert "0 of 2  not promised" in text
    assert "2 of 2 trainings: peak off by 7.5%, 10.0%; 0 below need" in text
    path = _written(tmp_path)
    assert main(["sitekit", "--rows", str(path)]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == page_row(_kit())
        == ("| NVIDIA A100-SXM4-40GB | 550.1, 2.11.0+cu130 | 480 | not tried | 3 of 3 | 2: 7.5%, 10.0% | 0 |")
    )
    assert main(["sitekit", "--show", str(path)]) == 0
    assert "BELOW NEED" not in capsys.readouterr().out


def test_without_a_gpu_it_says_where_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sitekit"]) == 1
    assert "srun --gres=gpu:1 --exclusive gpumem sitekit" in capsys.readouterr().err


def test_the_page_has_a_row_for_each_file_and_no_others() -> None:
    root = Path(__file__).resolve().parents[2]
    kits = [read_kit_file(path) for path in sorted((root / "lab" / "data" / "kits").glob("*.json"))]
    lines = (root / "docs" / "measured-gpus.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("|")] == [*HEAD, *map(page_row, kits)]
    assert all(kit.complete for kit in kits)
