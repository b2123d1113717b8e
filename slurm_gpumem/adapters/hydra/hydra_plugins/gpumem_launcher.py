"""Hydra's launcher `gpumem`: sweeps through submitit, each job with a share of a GPU.

    python train.py -m hydra/launcher=gpumem +hydra.launcher.share.model=resnet50.txt lr=0.1,0.01

Hydra looks for launchers in this namespace only, and loads them in a way that dataclasses with annotations as
text (`from __future__ import annotations`) do not survive. It needs hydra-submitit-launcher; without it there
is none.
"""

from dataclasses import dataclass, field
from typing import Any, Dict

from hydra.core.config_store import ConfigStore

try:
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
except ImportError:
    pass  # Hydra imports every module here, whatever launcher somebody uses
else:

    @dataclass
    class GpumemQueueConf(SlurmQueueConf):  # type: ignore[misc]
        """The options of submitit_slurm, and what gpusbatch's options say about the job."""

        _target_: str = "hydra_plugins.gpumem_launcher.GpumemLauncher"
        share: Dict[str, Any] = field(default_factory=dict)

    class GpumemLauncher(SlurmLauncher):  # type: ignore[misc]
        """Slurm's launcher with our executor (slurm_gpumem.adapters.submitit, an entry point of submitit)."""

        _EXECUTOR = "gpumem"

    ConfigStore.instance().store(
        group="hydra/launcher", name="gpumem", node=GpumemQueueConf(), provider="slurm_gpumem"
    )
