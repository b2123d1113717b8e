"""One job of the rehearsal: builds its model, takes its memory, marks when it is ready, trains its steps.

    rehearsal_worker.py KIND --steps N --ballast MIB --out PATH [--played]

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


def main() -> int:
    """0 when all steps were done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--ballast", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--played", action="store_true")
    args = parser.parse_args()
    with open(args.out, "a", encoding="utf-8") as file:

        def mark(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        mark(began=time.time(), pid=os.getpid(), uid=os.getuid(), job=os.environ.get("SLURM_JOB_ID"))
        try:
            part: Any = Played(args.kind) if args.played else OnGpu(args.kind)
            part.hold(args.ballast)
            mark(ready=time.time(), mps=os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), **part.memory())
            ends: List[float] = []
            said = time.time()
            for _ in range(args.steps):
                part.step()
                ends.append(round(time.time(), 4))
                if ends[-1] - said > 0.5:
                    mark(ends=ends)
                    ends, said = [], ends[-1]
            mark(ends=ends)
            mark(done=time.time())
        except Exception as error:  # noqa: BLE001 - what ended it belongs to the result
            mark(error=(str(error).splitlines() or [type(error).__name__])[0][:300], died=time.time())
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    # Without Python's own clean-up: it takes a second and is not what is measured.
    os._exit(0)


if __name__ == "__main__":
    main()
