"""What EpilogSlurmctld costs jobs that are not ours: a 200-task array with the hook and without.

Run it with `make bench-recovery`; exits 1 when the ratio is over its limit. The two controllers take turns, a
third without the hook shows this machine's noise, and the median of the turns' ratios counts.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec

LIMIT, TASKS, AT_A_TIME, ROUNDS = 1.05, 200, 16, 7


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        hook = folder / "hooks" / "epilog_slurmctld.sh"
        hook.parent.mkdir()
        shutil.copy(data_path("prolog", hook.name), hook)
        hook.chmod(0o755)
        clusters = {
            "without": up(ClusterSpec(state=folder / "a")),
            "again": up(ClusterSpec(state=folder / "b")),
            "with": up(ClusterSpec(state=folder / "c", extra_conf=(f"EpilogSlurmctld={hook}",))),
        }
        try:
            times = _measure(clusters)
        finally:
            for cluster in clusters.values():
                cluster.stop()
    ratio, noise = _ratio(times["with"], times["without"]), _ratio(times["again"], times["without"])
    fine = ratio <= LIMIT
    print(
        f"array of {TASKS} with EpilogSlurmctld / without {ratio:.3f} x  (limit {LIMIT:g} x)  "
        f"{'ok' if fine else 'OVER'}  median of {ROUNDS}, {statistics.median(times['without']):.1f} s each; "
        f"without / without {noise:.3f} x"
    )
    return 0 if fine else 1


def _measure(clusters: Dict[str, Cluster]) -> Dict[str, List[float]]:
    times: Dict[str, List[float]] = {name: [] for name in clusters}
    names = list(clusters)
    for cluster in clusters.values():
        _array(cluster)
    for round_ in range(ROUNDS):
        for at in range(len(names)):
            name = names[(at + round_) % len(names)]
            times[name].append(_array(clusters[name]))
    return times


def _array(cluster: Cluster) -> float:
    """Seconds from the submission until the last task is out of the queue, its epilog included."""
    options = ["-o", "/dev/null", "--mem=10", f"--array=0-{TASKS - 1}%{AT_A_TIME}", "--wrap", "true"]
    began = time.monotonic()
    cluster.run(["sbatch", *options], check=True, cwd=Path("/"))
    while cluster.run(["squeue", "-h"], check=True).stdout.strip():
        time.sleep(0.02)
    return time.monotonic() - began


def _ratio(one: List[float], other: List[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other))


if __name__ == "__main__":
    sys.exit(main())
