"""What jobs report of PyTorch's memory with real CUDA, held against what the driver says of their processes.

    python3 tests/gpu/job_reports.py --out DIR [--python PYTHON]

Each case runs trainings as a job of a site with `[node] job_reports` would: report_exports.sh makes the
folder and the variables, the start-up hook writes, the task epilog's reader reads. The context is the largest
memory that NVML saw less what PyTorch reserved, as `gpumem learn` has it. Rows go to DIR/job-reports.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Dict, List, NamedTuple, Set, TextIO

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from slurm_gpumem.formats.comment import format_used, parse_used  # noqa: E402
from slurm_gpumem.recovery.process_reports import report_folder, take_reports  # noqa: E402
from slurm_gpumem.site.calibration.nvml import NvmlGpu  # noqa: E402
from slurm_gpumem.units import MIB  # noqa: E402

WORKER = Path(__file__).with_name("job_reports_worker.py")
HOOK = ROOT / "slurm_gpumem" / "injected"
EVERY_S, LONGEST_S = 0.1, 90.0


class Case(NamedTuple):
    """Processes of one job: "kind" or "kind end", one after the other or side by side."""

    name: str
    processes: List[str]
    variables: Dict[str, str]
    beside: bool = False


EAGER = {"CUDA_MODULE_LOADING": "EAGER"}
KINDS = ("mlp", "convolutions", "cnn", "cnn-amp", "transformer", "fft-sparse", "linalg", "loader")
ENDS = ("raise", "3", "out-of-memory", "os-exit", "SIGKILL", "SIGTERM")
CASES = [
    *(Case(kind, [kind], {}) for kind in KINDS),
    *(Case(f"{kind}, eager", [kind], EAGER) for kind in ("mlp", "cnn")),
    *(Case(f"mlp, then {end}", [f"mlp {end}"], {}) for end in ENDS),
    Case("cnn, then empty-cache", ["cnn empty-cache"], {}),
    Case("one after the other", ["mlp", "cnn"], {}),
    Case("side by side", ["mlp", "cnn"], {}, beside=True),
]


class Watch:
    """The most memory that the driver saw of each process."""

    def __init__(self) -> None:
        self._gpu, self._most = NvmlGpu(), dict[int, int]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(EVERY_S):
            for pid, size in self._gpu.processes().items():
                self._most[pid] = max(self._most.get(pid, 0), size or 0)

    def most_mib(self, pids: Set[int]) -> int:
        """Of these processes, the largest."""
        return max((self._most.get(pid, 0) for pid in pids), default=0) // MIB


def play(number: int, case: Case, python: str, parent: str, watch: Watch) -> Dict[str, object]:
    """Run a case; its row."""
    folder = report_folder(parent, number + 1, 0)
    exports = subprocess.run(
        ["sh", "-c", f". {HOOK}/report_exports.sh"],
        env={"PATH": "/usr/bin:/bin", "reports": folder, "hook": str(HOOK), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    words = [line.removeprefix("export ").partition("=") for line in exports.stdout.splitlines()]
    environment = {**os.environ, **case.variables, **{key: value for key, _, value in words}}
    running: List[subprocess.Popen[bytes]] = []
    for process in case.processes:
        command = [python, str(WORKER), *process.split(), "-"][:4]
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        if not case.beside:
            running[-1].wait(LONGEST_S)
    codes = [process.wait(LONGEST_S) for process in running]
    used = take_reports(folder, 0)
    reported = None if used is None else parse_used(format_used(used))
    peak = watch.most_mib({process.pid for process in running})
    row: Dict[str, object] = {"case": case.name, "codes": codes, "process_mib": peak}
    if reported is not None:
        row.update(reserved_mib=reported.reserved_mib, context_mib=peak - reported.reserved_mib)
        row.update(torch=reported.torch, loading=reported.loading)
    return {**row, "folder_left": os.path.exists(folder)}


def play_all(out: TextIO, python: str) -> None:
    """A row for each case, as soon as it is there."""
    with tempfile.TemporaryDirectory() as parent, Watch() as watch:
        for number, case in enumerate(CASES):
            print(json.dumps(play(number, case, python, parent, watch)), file=out, flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has PyTorch")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "job-reports.jsonl", "w", encoding="utf-8") as out:
        play_all(out, options.python)


if __name__ == "__main__":
    main()
