"""One job of the rehearsal: builds its model, takes its memory, marks when it is ready, trains its steps.

    rehearsal_worker.py KIND --steps N --ballast MIB --out PATH [--seconds S] [--played [LEDGER]]

PATH gets JSON lines as they come: {"began"}, {"ready"}, {"ends": [...]}, {"done"} or {"error"}.
Times are time.time(); the first mark is made before torch is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, List

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mode_workers import OnGpu, Played

PLAYED_SM = {"small": 0.17, "text16": 0.45, "conv32": 0.71, "conv256": 0.79, "text128": 0.88}


def main() -> int:
    """0 when all steps were done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, required=True, help="0: as many as in --seconds")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--place", default="", help="tells jobs apart that are alike")
    parser.add_argument("--ballast", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--played", nargs="?", const="", help="no GPU; in that ledger it holds memory")
    args = parser.parse_args()
    with open(args.out, "a", encoding="utf-8") as file:

        def mark(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        mark(began=time.time(), pid=os.getpid(), uid=os.getuid(), job=os.environ.get("SLURM_JOB_ID"))
        try:
            part: Any = OnGpu(args.kind) if args.played is None else Played(args.kind)
            part.hold(args.ballast)
            if args.played:
                _hold_in(args.played, args.ballast + 1024, PLAYED_SM[args.kind])
            mark(ready=time.time(), mps=os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), **part.memory())
            ends: List[float] = []
            count, began = 0, time.time()
            last = said = began
            while count < args.steps if args.steps else last - began < args.seconds:
                part.step()
                count, last = count + 1, round(time.time(), 4)
                ends.append(last)
                if last - said > 0.5:
                    mark(ends=ends)
                    ends, said = [], last
            mark(ends=ends)
            mark(done=time.time())
        except Exception as error:  # noqa: BLE001 - what ended it belongs to the result
            mark(error=(str(error).splitlines() or [type(error).__name__])[0][:300], died=time.time())
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    # Without Python's own clean-up: it takes a second and is not what is measured.
    os._exit(0)


def _hold_in(ledger: str, mib: int, active: float) -> None:
    sys.path.insert(0, os.path.dirname(ledger))
    from ledger import LedgerGpu  # the dev cluster's, copied beside the folder

    gpu = LedgerGpu(Path(ledger), os.environ.get("SLURMD_NODENAME", os.uname().nodename), 0)
    gpu.hold(mib, os.environ.get("SLURM_JOB_ID", "none"), active)


if __name__ == "__main__":
    main()
