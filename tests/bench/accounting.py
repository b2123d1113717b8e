"""The figures of `gpumem report` over a million job records: first index, summary, one user's week, memory;
and again when `gpumem collect` has moved them into the users' books.

    python tests/bench/accounting.py [--jobs 1000000] [--records DIR]

Makes the records first (some minutes, 4 GB of disk for a million) unless --records names a folder of them.
Exits 1 if a figure is over. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple

from make_records import write_files

INDEX_LIMIT_S, SUMMARY_LIMIT_S, WEEK_LIMIT_S, MEMORY_LIMIT_MIB = 300.0, 20.0, 0.3, 300.0
ROUNDS = 5
GPUMEM = str(Path(sys.executable).with_name("gpumem"))


def main(argv: List[str]) -> int:
    """Take all figures and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--records", type=Path, help="a folder of records that is there already")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-", dir="/var/tmp") as name:
        root = Path(name)
        records = args.records or root / "records"
        if args.records is None:
            print(f"making {args.jobs:,} records", flush=True)
            write_files(records, args.jobs, until=time.time())
        (root / "gpumem.toml").write_text(
            f'[node]\nspool = "{records}"\n[devcluster]\nindex = "{root}/index"\n'
        )
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM")},
            "GPUMEM_SITE_CONFIG": f"{root}/gpumem.toml",
            "GPUMEM_INDEX": f"{root}/index",
            "HOME": str(root),
            "XDG_CACHE_HOME": str(root),
            # Modules are compiled once, by the first call, as they are when pip installs them.
            "PYTHONPYCACHEPREFIX": f"{root}/compiled",
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        within = _figures(env)
        if args.records is None:
            within += _after_collect(env, args.jobs)
        size = sum(path.stat().st_size for path in (root / "index").iterdir())
        print(f"the index has {size / 1e6:,.0f} MB; load of this machine {os.getloadavg()[0]:.1f}")
    return 0 if all(within) else 1


def _figures(env: Dict[str, str]) -> List[bool]:
    seconds, mib, cpu = _run(["--summary"], env)
    found = [
        _report("first index and its summary", seconds, INDEX_LIMIT_S, "s", f"{cpu:.0f} s of processor time"),
        _report("memory of all its processes", mib, MEMORY_LIMIT_MIB, "MiB", "the most at any moment"),
    ]
    for what, argv, limit in (
        ("report --summary", ["--summary"], SUMMARY_LIMIT_S),
        ("report --summary --by user", ["--summary", "--by", "user"], SUMMARY_LIMIT_S),
        ("report --summary --by day", ["--summary", "--by", "day"], SUMMARY_LIMIT_S),
        ("report -u usr3 -S now-7days", ["-u", "usr3", "-S", "now-7days"], WEEK_LIMIT_S),
    ):
        times = [_run(argv, env) for _ in range(ROUNDS)]
        best, most = min(taken for taken, _, _ in times), max(used for _, used, _ in times)
        note = f"best of {ROUNDS}; {min(cpu for _, _, cpu in times):.2f} s of processor time, {most:.0f} MiB"
        found.append(_report(what, best, limit, "s", note))
    return found


def _after_collect(env: Dict[str, str], jobs: int) -> List[bool]:
    """One second for 100,000 records: nothing is new, and 200 users have a folder each."""
    where = Path(env["HOME"])
    with (where / "gpumem.toml").open("a") as file:
        file.write(f'dir = "{where}/store"\n')
    (where / "store").mkdir()
    subprocess.run([GPUMEM, "collect", "--older", "0s"], env=env, stdout=subprocess.DEVNULL, check=True)
    times = [_run(["--summary"], env) for _ in range(ROUNDS)]
    best, cpu = min(taken for taken, _, _ in times), min(used for _, _, used in times)
    note = f"best of {ROUNDS}; {cpu:.2f} s of processor time"
    return [_report("report --summary, collected", best, max(1.0, jobs / 1e5), "s", note)]


def _run(argv: List[str], env: Dict[str, str]) -> Tuple[float, float, float]:
    """Seconds, the most memory of the process and its children, and processor seconds of one call."""
    before = os.times()
    began = time.perf_counter()
    with subprocess.Popen([GPUMEM, "report", *argv], env=env, stdout=subprocess.DEVNULL) as process:
        most = 0.0
        while process.poll() is None:
            most = max(most, _memory_mib(process.pid))
            time.sleep(0.02 if time.perf_counter() - began < 2 else 0.5)
        seconds = time.perf_counter() - began
    after = os.times()
    if process.returncode != 0:
        raise SystemExit(f"gpumem report {' '.join(argv)} failed")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, most, cpu


def _memory_mib(pid: int) -> float:
    """Proportional set size: what several processes share is counted once."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    own = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return own / 1024 + sum(_memory_mib(int(child)) for child in children)


def _report(what: str, value: float, limit: float, unit: str, note: str) -> bool:
    verdict = "ok" if value <= limit else "OVER"
    print(f"{what:<30} {value:7.2f} {unit:<3}  (limit {limit:g} {unit})  {verdict:<4}  {note}", flush=True)
    return value <= limit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
