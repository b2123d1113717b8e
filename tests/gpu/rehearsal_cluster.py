"""A dev cluster of one node and one stand-in GPU, for rehearsals: `rehearsal_cluster.py up|down FOLDER`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.devcluster.cluster import down, up
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec

GPU_MIB = 139 * 1024


def main() -> int:
    """Bring it up and print what a shell must export, as the script for real GPUs does; or take it down."""
    state = Path(sys.argv[2])
    if sys.argv[1] == "down":
        down(state)
        return 0
    lines = Path(os.environ["SLURM_EXTRA"]).read_text().splitlines() if os.environ.get("SLURM_EXTRA") else []
    node = NodeSpec(os.uname().nodename, gpus=1, gpu_memory_mib=GPU_MIB, cpus=16, memory_mib=64_000)
    cluster = up(ClusterSpec(nodes=(node,), extra_conf=tuple(lines), state=state, cred_expire_s=5))
    shutil.copy(ledger.__file__, state / "ledger.py")
    print(f"export SLURM_CONF={cluster.layout.slurm_conf} LD_LIBRARY_PATH=")
    return 0


if __name__ == "__main__":
    sys.exit(main())
