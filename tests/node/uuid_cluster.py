"""A cluster with AutoDetect and Flags=env_uuid, inside made_driver.sh: what jobs and hooks see of GPUs.

`python -m tests.node.uuid_cluster SLURM_ROOT FOLDER`; FOLDER is empty and open to everybody.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.devcluster import config
from slurm_gpumem.devcluster.cluster import up
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes
from slurm_gpumem.node.gpus import find_gpus, pick

GRES = """AutoDetect=nvidia
NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1] Flags=nvidia_gpu_env,env_uuid
NodeName=n1 Name=shard Type=a100 Count=80
"""
SEEN = "env | grep -E '^(CUDA_VISIBLE_DEVICES|SLURM_(JOB|STEP)_GPUS)=' | sort"


def main(slurm_root: Path, folder: Path) -> None:
    hook = folder / "prolog.sh"
    hook.write_text(f"#!/bin/sh\n{SEEN} >{folder}/prolog.$SLURM_JOB_ID\n")
    hook.chmod(0o755)
    config.gres_conf = lambda spec, place: GRES
    cluster = up(
        ClusterSpec(
            state=folder / "state",
            slurm_root=slurm_root,
            nodes=default_nodes(1, gpus=2),
            extra_conf=("PrologFlags=Alloc", f"Prolog={hook}"),
        )
    )
    try:
        for number, gres in enumerate(("gpu:1", "shard:12"), start=1):
            task = cluster.run(["srun", f"--gres={gres}", "sh", "-c", SEEN], check=True).stdout
            seen = {"prolog": _table((folder / f"prolog.{number}").read_text()), "task": _table(task)}
            ours = pick(find_gpus(NodeConfig(), "n1"), seen["prolog"])
            print(json.dumps({**seen, "ours": [gpu.uuid for gpu in ours]}))
    finally:
        cluster.stop()


def _table(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
