"""What the submission filter costs: a CPU job, a known one, one with a summary, and many at once.

Run it with `make bench-filter`; exits 1 if a ratio is over its limit, or if of the submissions at once one
failed or went unchanged. Clusters and commands take turns, and the median of the turns' ratios counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Dict, List

from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.remembered import Recipe, write_remembered
from tests.bench.bench import _in_turns, _milliseconds, _ratio, _report

CPU_LIMIT, CPU_MORE_MS = 1.05, 1.0
KNOWN_LIMIT, SUMMARY_LIMIT = 6.0, 9.0
ROUNDS, CPU_ROUNDS, SUBMISSIONS, PROCESSES = 20, 200, 500, 8
SUMMARY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
EMPTY = "".join(
    f"function slurm_cli_{name}() return slurm.SUCCESS end\n"
    for name in ("setup_defaults", "pre_submit", "post_submit")
)
"""What Slurm's own plug-in costs, which is not ours."""
GPU = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"


def main() -> int:
    """Take all figures and print them."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plain = up(ClusterSpec(state=folder / "plain"))
        empty = up(ClusterSpec(state=folder / "empty", cli_filter=True))
        (empty.layout.conf / "cli_filter.lua").write_text(EMPTY)
        filtered = up(ClusterSpec(state=folder / "filtered", cli_filter=True))
        try:
            within = _figures(folder, plain, empty, filtered)
        finally:
            for cluster in (filtered, empty, plain):
                cluster.stop()
    return 0 if all(within) else 1


def _figures(folder: Path, plain: Cluster, empty: Cluster, filtered: Cluster) -> List[bool]:
    env = _environment(folder)
    site = filtered.layout.site_config
    site.write_text(site.read_text().replace('mode = "opt-in"', 'mode = "known"'))
    (folder / "cpu.sh").write_text("#!/bin/bash\ntrue\n")
    (folder / "known.sh").write_text(f"{GPU}python train.py\n")
    (folder / "summary.sh").write_text(f"{GPU}#GPUMEM model={SUMMARY} batch-size=128\ntrue\n")
    remembered = Path(env["GPUMEM_REMEMBERED"])
    write_remembered(remembered, {})
    record = parse_record(_comment(filtered, _submit(filtered, "known.sh", folder, env)))
    assert record is not None, "the filter recorded nothing"
    write_remembered(remembered, {Recipe(record.fingerprint, "", "", "", ""): {"a100": [5000, 5000]}})
    for name in ("known.sh", "summary.sh"):
        job = _submit(filtered, name, folder, env)
        # A filter that does nothing would be quick and prove nothing.
        assert "shard" in filtered.run(["scontrol", "show", "job", job], check=True).stdout, name
    return [
        _cpu_job(folder, env, plain, empty, filtered),
        _gpu_job("a known job", "known.sh", KNOWN_LIMIT, folder, env, plain, filtered),
        _gpu_job("a job with a summary", "summary.sh", SUMMARY_LIMIT, folder, env, plain, filtered),
        _at_once(folder, env, filtered),
    ]


def _cpu_job(folder: Path, env: Dict[str, str], plain: Cluster, empty: Cluster, filtered: Cluster) -> bool:
    without, with_empty, with_filter = _in_turns(
        CPU_ROUNDS,
        lambda: _send(plain, "cpu.sh", folder, env),
        lambda: _send(empty, "cpu.sh", folder, env),
        lambda: _send(filtered, "cpu.sh", folder, env),
    )
    less = [one - CPU_MORE_MS / 1000 for one in with_filter]
    times = (f"{statistics.median(one) * 1000:.1f}" for one in (with_filter, with_empty, without))
    note = "{} ms; with an empty filter {}, without {}".format(*times)
    found = _ratio(less, with_empty)
    return _report("sbatch of a CPU job - 1 ms / empty filter", found, CPU_LIMIT, "x", note)


def _gpu_job(
    what: str, script: str, limit: float, folder: Path, env: Dict[str, str], plain: Cluster, filtered: Cluster
) -> bool:
    """What the filter adds to the same submission without it, in starts of a Python that does nothing."""
    bare, without, with_filter = _in_turns(
        ROUNDS,
        lambda: _bare(folder, env),
        lambda: _send(plain, script, folder, env),
        lambda: _send(filtered, script, folder, env),
    )
    note = (
        f"{_milliseconds(with_filter)}; without {_milliseconds(without)}; bare Python {_milliseconds(bare)}"
    )
    return _report(f"sbatch of {what} / python3 -c pass", _ratio(with_filter, bare), limit, "x", note)


def _at_once(folder: Path, env: Dict[str, str], cluster: Cluster) -> bool:
    """500 submissions of known jobs, eight at a time."""
    failed: List[str] = []
    unchanged: List[str] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        argv = ["sbatch", "--parsable", "-H", "known.sh", "--seed", str(number)]
        done = cluster.run(argv, cwd=folder, env=env)
        with lock:
            if done.returncode:
                failed.append(done.stderr)
            elif "asking for" not in done.stderr:
                unchanged.append(done.stderr)

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(one, range(SUBMISSIONS)))
    for text in [*failed, *unchanged][:3]:
        print(text, file=sys.stderr)
    print(
        f"{SUBMISSIONS} submissions by {PROCESSES} processes at once: {len(failed)} failed, "
        f"{len(unchanged)} went unchanged",
        flush=True,
    )
    return not failed and not unchanged


def _submit(cluster: Cluster, script: str, folder: Path, env: Dict[str, str]) -> str:
    return cluster.run(["sbatch", "--parsable", "-H", script], cwd=folder, env=env, check=True).stdout.strip()


def _send(cluster: Cluster, script: str, folder: Path, env: Dict[str, str]) -> None:
    _submit(cluster, script, folder, env)


def _bare(folder: Path, env: Dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True, cwd=folder, env={**os.environ, **env})


def _comment(cluster: Cluster, job: str) -> str:
    shown = cluster.run(["scontrol", "show", "job", job], check=True).stdout
    return next(line.split("=", 1)[1] for line in shown.splitlines() if line.strip().startswith("Comment="))


def _environment(folder: Path) -> Dict[str, str]:
    """As an installed command runs: compiled once, no configuration or cache of this user."""
    return {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "GPUMEM_REMEMBERED": str(folder / "remembered.json"),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
    }


if __name__ == "__main__":
    sys.exit(main())
