"""Keep the results of a run without serial numbers, UUIDs and paths of the machine it ran on.

python3 tests/gpu/life_publish.py node_life.json [folder of the jobs' own results] lab/docs/node-life.json
python3 tests/gpu/life_publish.py recovery_life.json lab/docs/recovery-life.json
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SOME_GPU = "GPU-11111111-2222-3333-4444-555555555555"
_DROPPED = ("Serial Number", "loading NVIDIA", "Clearing it", "Persistence mode")
_STATE = re.compile(r"(?<![\w/])/[\w./-]*?/(?:glife|grecover)\b")


def public(value: Any) -> Any:
    """The same tree with nothing in it that names the machine; NaN, which JSON does not have, is null."""
    if isinstance(value, dict):
        return {public(key): public(_short(key, entry)) for key, entry in value.items()}
    if isinstance(value, list):
        return [public(entry) for entry in value if not _dropped(entry)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return _STATE.sub("STATE", UUID.sub(SOME_GPU, value))
    return value


def with_pids(results: Dict[str, Any], jobs: Path) -> None:
    """Who was which process: from the jobs' own results, for a run that did not note it."""
    for part in ("overrun", "device-side assert", "illegal access"):
        word = {"device-side assert": "assert", "illegal access": "illegal"}.get(part, part)
        entry = results["parts"].get(part, {})
        entry.setdefault("pids", {})
        for path in sorted(jobs.glob(f"work-{word}-*.json")):
            entry["pids"][path.stem[len("work-") :]] = json.loads(path.read_text())["pid"]


def _short(key: str, entry: Any) -> Any:
    """What its builder called a kernel names the machine; of many steps, how many and when is enough."""
    if key == "kernel" and isinstance(entry, str):
        return entry.partition("-")[0]
    if key == "steps" and isinstance(entry, list) and len(entry) > 10:
        return {"count": len(entry), "first": entry[0], "last": entry[-1]}
    return entry


def _dropped(entry: Any) -> bool:
    return isinstance(entry, str) and any(word in entry for word in _DROPPED)


def main(argv: List[str]) -> int:
    """Write the last file."""
    results = json.loads(Path(argv[0]).read_text())
    if len(argv) > 2:
        with_pids(results, Path(argv[1]))
    Path(argv[-1]).write_text(json.dumps(public(results), indent=1, allow_nan=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
