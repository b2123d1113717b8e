"""`python -m slurm_gpumem.site.kit.training_probe NAME`: run a training, and say what it took."""

from __future__ import annotations

import json
import os
import sys

from slurm_gpumem.site.calibration_probe import OwnMemory, VisibleGpu
from slurm_gpumem.site.kit.trainings import train


def main(name: str) -> int:
    """Print one JSON object; PyTorch gives nothing back: what is held at the end is the peak."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    memory = OwnMemory(VisibleGpu())
    train(name)
    mib, how = memory.read()
    print(json.dumps({"mib": mib, "how": how}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
