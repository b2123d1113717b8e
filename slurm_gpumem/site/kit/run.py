"""One run of the kit: probe after probe, each a process; what is found is kept whatever ends it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, Optional

import slurm_gpumem
from slurm_gpumem.errors import CalibrationError, ConfigError
from slurm_gpumem.formats.kit_file import KitContext, KitFile, KitGpu, KitRow, KitTraining, anonymous
from slurm_gpumem.node.nvml import NvmlError
from slurm_gpumem.site.calibration_context import entry_of, environment_for, measured, put_entry, run_probe
from slurm_gpumem.site.calibration_probe import VisibleGpu
from slurm_gpumem.site.kit import mps
from slurm_gpumem.site.kit.children import ChildError, Children, KitStopError
from slurm_gpumem.site.kit.driver_cgroup import driver_limit
from slurm_gpumem.site.kit.trainings import TRAININGS

_MOST_S = 570.0
"""What has not begun by then is not tried."""
_TRACE_S, _TRAINING_S = 150.0, 90.0
_MOST_TRACES = 6
_PROBE = "slurm_gpumem.site.kit.training_probe"
_SCRIPT = "slurm_gpumem.site.kit.trainings"
_FAILURES = (*mps.FAILURES, NvmlError, TimeoutError)
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOLDER = "/tmp"
"""Not TMPDIR: a socket's path has 107 characters at most."""


class Kit:
    """One run."""

    def __init__(self, python: str, progress: Callable[[str], None], tell: Callable[[str], None]) -> None:
        self._python = python
        self._progress, self._tell = progress, tell
        self._began = time.monotonic()
        self._date = time.strftime("%Y-%m-%d")
        self._children = Children()
        self._rows: List[KitRow] = []
        self._trainings = {name: KitTraining(name) for name in TRAININGS}
        self._gpu: Optional[KitGpu] = None
        self._context: Optional[KitContext] = None
        self._complete = False
        self._guard = threading.Lock()

    def run(self) -> int:
        """0, or the number of the signal that ended it; `found` has what there is either way."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpumem-kit-", dir=_FOLDER))
        except OSError as error:
            raise ConfigError(f"{_FOLDER}: no folder can be made there: {error.strerror}") from None
        # nohup has the kit go on when its terminal is gone.
        heard = [number for number in _STOPPING if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._stop) for number in heard}
        try:
            self._all(folder)
            self._complete = True
            return 0
        except KitStopError as stop:
            return stop.number
        finally:
            # Nothing of the kit is left, however often somebody asks for its end.
            _ignore(before)
            self._children.end_all()
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def found(self) -> KitFile:
        """All that is known by now."""
        known = [
            one if one.compared or one.why else replace(one, why="interrupted")
            for one in self._trainings.values()
        ]
        return KitFile(
            date=self._date,
            version=slurm_gpumem.__version__,
            seconds=round(time.monotonic() - self._began),
            complete=self._complete,
            gpu=self._gpu,
            context=self._context,
            rows=tuple(self._rows),
            trainings=tuple(known),
        )

    # -- Probes ----------------------------------------------------------------------------------------

    def _all(self, folder: Path) -> None:
        gpu = _visible()
        self._progress("context, cuBLAS workspaces, rounding")
        name = self._calibrate(folder)
        pool = ThreadPoolExecutor(max(1, min(_MOST_TRACES, _cpus() // 2)))
        try:
            traced = {one: pool.submit(self._trace, one, name, folder) for one in TRAININGS}
            self._mps(gpu, folder)
            for number, one in enumerate(TRAININGS, 1):
                self._progress(f"training {number} of {len(TRAININGS)}: {one}")
                self._train(one)
            for number, one in enumerate(TRAININGS, 1):
                self._progress(f"estimate {number} of {len(TRAININGS)}: {one}")
                traced[one].result()
        finally:
            # One that runs ends with its process; those that wait find none.
            self._children.end_all()
            pool.shutdown()

    def _calibrate(self, folder: Path) -> str:
        """The entry's name; it stands in a table for the estimates of this run."""
        first = run_probe(self._python, ["conv", "matmul"])
        second = run_probe(self._python, ["matmul"])
        self._gpu, self._context = measured(first, second)
        entry = entry_of(self._gpu, self._context, name="", by=f"gpumem sitekit, {self._date}", notes=())
        put_entry(folder / "gpumem-gpus.toml", entry)
        (folder / "gpumem.toml").touch()
        return entry.name

    def _mps(self, gpu: VisibleGpu, folder: Path) -> None:
        control = mps.control_program()
        why = ""
        if gpu.nvml.instance(gpu.uuid) is not None:
            why = "a MIG instance: jobs there have no MPS"
            self._rows.append(KitRow("MIG", "measured inside an instance", 1, 1, True, "nothing was changed"))
        elif control is None:
            why = "no nvidia-cuda-mps-control here"
        elif mps.foreign_server(gpu.uuid):
            why = "an MPS server that is not the kit's runs here"
        bench = mps.Bench(self._python, gpu.uuid, control or "", folder, self._children, gpu.nvml, self._late)
        if why:
            for part in ("MPS", "limits", "ends"):
                self._rows.append(KitRow(part, "all", 0, 0, True, why))
        else:
            self._probe("MPS", lambda: mps.contexts(bench, self._rows.append))
            self._probe("limits", lambda: mps.limits(bench, self._rows.append))
            self._probe("ends", lambda: mps.ends(bench, mps.end_library(folder), self._rows.append))
        self._probe("driver limit", lambda: driver_limit(bench, gpu.driver, self._rows.append))

    def _probe(self, part: str, body: Callable[[], None]) -> None:
        self._progress(part)
        try:
            if self._late():
                raise ChildError("no time left")
            body()
        except _FAILURES as error:
            self._tell(f"{part}: {error}")
            self._rows.append(KitRow(part, "the rest", 0, 0, True, anonymous(str(error))))

    def _train(self, name: str) -> None:
        if self._late():
            self._keep(name, why="no time left")
            return
        try:
            child = self._start([self._python, "-m", _PROBE, name], os.environ)
        except (ChildError, OSError) as error:
            self._keep(name, why=f"training: {anonymous(str(error))}")
            return
        try:
            child.wait(_TRAINING_S)
            mib = child.answer("mib")
            if mib is None:
                self._tell(f"training {name}: {' / '.join(child.last[-3:])}")
                self._keep(name, why=f"training: {mps.why_not(child)}")
            else:
                self._keep(name, measured_mib=int(mib))
        finally:
            self._children.end(child)

    def _trace(self, name: str, gpu: str, folder: Path) -> None:
        """Through the product's own command, as a user would estimate this script."""
        script = [self._python, "-m", _SCRIPT, name]
        argv = ["-m", "slurm_gpumem", "trace", "--json", "--gpu", gpu, "--time-limit", f"{_TRACE_S:.0f}"]
        try:
            if self._late():
                raise ChildError("no time left")
            # What the user has set about jobs is not about these.
            variables = {key: value for key, value in os.environ.items() if not key.startswith("GPUMEM_")}
            variables["GPUMEM_SITE_CONFIG"] = str(folder / "gpumem.toml")
            child = self._start([sys.executable, *argv, "--", *script], variables)
        except (ChildError, OSError) as error:
            self._keep(name, why=f"trace: {anonymous(str(error))}")
            return
        try:
            child.wait(_TRACE_S + 30)
            peak, request = child.answer("peak_mib"), child.answer("request_mib")
            if self._children.closed and not request:
                return  # interrupted
            if peak is None or request is None:
                self._tell(f"trace of {name}: {' / '.join(child.last[-3:])}")
                self._keep(name, why="trace: " + _why_no_trace(child.last))
            else:
                self._keep(name, peak_mib=int(peak), request_mib=int(request))
        finally:
            self._children.end(child)

    def _start(self, argv: List[str], variables: Mapping[str, str]) -> Any:
        return self._children.start(argv, environment_for(variables))

    def _keep(self, name: str, **changes: Any) -> None:
        """The training and its trace come from two threads."""
        with self._guard:
            known = self._trainings[name]
            why = "; ".join(filter(None, (known.why, changes.pop("why", ""))))
            self._trainings[name] = replace(known, why=why, **changes)

    def _late(self) -> bool:
        return time.monotonic() - self._began > _MOST_S

    def _stop(self, number: int, frame: object) -> None:
        _ignore(_STOPPING)
        self._children.stop(number)


def _ignore(numbers: Iterable[int]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _visible() -> VisibleGpu:
    """The GPU that is tried: of a divided one its first instance; CalibrationError where there is none."""
    try:
        gpu = VisibleGpu()
        instances = gpu.nvml.mig_devices(gpu.uuid) if gpu.nvml.instance(gpu.uuid) is None else None
        if instances:
            os.environ["CUDA_VISIBLE_DEVICES"] = instances[0].uuid
            gpu = VisibleGpu()
        if instances == []:
            raise CalibrationError("this GPU is in MIG mode and has no instance; the kit makes none")
        busy = bool(gpu.read().processes)
    except (OSError, NvmlError) as error:
        raise CalibrationError(
            f"there is no GPU to measure here: {error}.\n"
            "Run it on a GPU node: srun --gres=gpu:1 --exclusive gpumem sitekit"
        ) from None
    if busy:
        raise CalibrationError(
            "others use this GPU: the kit needs an idle one.\n"
            "Run it alone: srun --gres=gpu:1 --exclusive gpumem sitekit"
        )
    return gpu


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _why_no_trace(last: List[str]) -> str:
    """In words that any site may read: the message itself may name its paths."""
    text = " ".join(last)
    return "this node allows none" if "cannot trace safely" in text else "failed"
