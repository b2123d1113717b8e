"""Launchers of several ranks in Python: torchrun, and what is built on it (accelerate), start rank 0 only.

Ranks that others start (Lightning, DeepSpeed, a loop in the script) wait: before they import torch where
their environment says which they are (`injected/sitecustomize.py`), else when they join the group.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Sequence

from slurm_gpumem.launchers import LAUNCHERS
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.report_folder import Report


def install(report: Report) -> None:
    """Wait for torch.distributed's launcher."""

    def torchrun(api: Any) -> None:
        api.launch_agent = lambda config, entrypoint, args, *rest, **more: _first_rank(
            report, config, entrypoint, args
        )

    def accelerate(launch: Any) -> None:
        real = launch._validate_launch_command

        def validate(args: Any) -> Any:
            # It starts several processes only where it sees several GPUs.
            Gpus.given = max(Gpus.given, int(args.num_processes or 1))
            return real(args)

        launch._validate_launch_command = validate

    changes = {"torchrun": torchrun, "accelerate": accelerate}
    AfterImport({one.module: changes[one.name] for one in LAUNCHERS if one.module}).install()


class Gpus:
    """Those that the script sees: as many as it was given, and one for each of its ranks here."""

    given = 1

    @staticmethod
    def count(*args: Any) -> int:
        """How many."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        return max(Gpus.given, int(ranks) if ranks.isdigit() else 1)


def rank_variables(nodes: int, on_node: int, run_id: str = "none") -> Dict[str, str]:
    """What torchrun tells the first of its processes."""
    world = str(nodes * on_node)
    return {
        "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "ROLE_RANK": "0", "ROLE_NAME": "default",
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": str(on_node), "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": run_id,
    }  # fmt: skip


def _first_rank(report: Report, config: Any, entrypoint: Any, args: Sequence[Any]) -> Dict[int, Any]:
    # Of an elastic job the fewest: each of its ranks holds most.
    nodes, on_node = int(config.min_nodes), int(config.nproc_per_node)
    if nodes != int(config.max_nodes):
        report.note(f"torchrun may use {nodes} to {config.max_nodes} nodes: traced for {nodes}")
    report.asked_ranks(nodes * on_node)
    variables = rank_variables(nodes, on_node, str(config.run_id or "none"))
    if callable(entrypoint):
        os.environ.update(variables)
        return {0: entrypoint(*args)}
    sys.stdout.flush()
    sys.stderr.flush()
    sys.gpumem_files_read.write()  # type: ignore[attr-defined]
    words = [str(word) for word in (entrypoint, *args)]
    os.execvpe(words[0], words, {**os.environ, **variables})
