"""How a site's GPUs are to be divided: the one plan that all generated files are written from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.types import RESERVE_MIB
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.slurm.client import Version
from slurm_gpumem.units import format_mib

MPS_PER_GPU = 100
ONE_SERVER, PER_USER = "shared", "per-user"
"""[node] mps: one MPS server for all users of a GPU, or one for each."""
LEVEL, SPREAD, PACK = "level", "spread", "pack"
SPREAD_WORD = "LL_SHARED_GRES"
"""In SelectTypeParameters: a share goes to the least loaded GPU of its node; without it GPUs fill up."""
SPREADING: Version = (23, 11, 0)
"""That word exists from this version on; before, it stops every command and daemon."""
SLASH_SEPARATOR: Version = (23, 11, 0)
"""From this version on job_submit/lua sees and wants gres/shard:12, before it gres:shard:12."""


@dataclass(frozen=True)
class SitePlan:
    """Everything that the generated files say."""

    groups: Tuple[NodeGroup, ...]
    gres: str = "shard"
    mode: str = "opt-in"
    shard_mib: int = 1024
    reserve_mib: int = RESERVE_MIB
    mps_per_gpu: int = MPS_PER_GPU
    partitions: Tuple[str, ...] = ()
    """All partitions of the cluster; empty when none is running."""
    default_partition: Optional[str] = None
    placement: str = PACK
    """SPREAD or PACK."""
    unknown_share: Optional[float] = None
    """The part of a GPU that a job of unknown activity takes in plain sbatch; None: its memory decides."""
    level: bool = False
    """Whether no share goes beside another while any GPU of its partition is idle."""
    version: Optional[Version] = None
    mps: Optional[str] = None
    """[node] mps; None: what gpumem.toml says, of a new site PER_USER."""
    shared: Tuple[str, ...] = ()
    """The partitions that `mode` is for, the others observe; empty: all."""

    def __post_init__(self) -> None:
        for group in self.groups:
            for gpus in group.gpus:
                if self.shares(gpus) < 1 and not gpus.instance:
                    raise UsageError(
                        f"{group.nodes}: a GPU of {format_mib(gpus.memory_mib)} has no room for one share "
                        f"beside a reserve of {format_mib(self.reserve_mib)}; see --shard, --reserve"
                    )

    def shares(self, gpus: GpuGroup) -> int:
        """Shards (or mps units) of one of these GPUs; none of a MIG instance."""
        if gpus.shares:
            return gpus.shares
        if gpus.instance:
            return 0
        if self.gres == "mps":
            return self.mps_per_gpu
        return max(0, gpus.memory_mib - self.reserve_mib) // self.shard_mib

    def usable_mib(self, gpus: GpuGroup) -> int:
        """GPU memory that the shares of one of these GPUs stand for, or that a MIG instance has."""
        if gpus.instance:
            return gpus.memory_mib
        if self.gres == "mps":
            return max(0, gpus.memory_mib - self.reserve_mib)
        return self.shares(gpus) * self.shard_mib

    @property
    def idle_first(self) -> bool:
        """Whether a share goes to an idle GPU of its node while there is one."""
        return self.placement == SPREAD or all(
            group.gpu_count - sum(gpus.count for gpus in group.gpus if gpus.instance) <= 1
            for group in self.groups
        )

    @property
    def placed(self) -> str:
        """LEVEL, SPREAD or PACK: where shares go with what is proposed."""
        return LEVEL if self.level else SPREAD if self.idle_first else PACK

    @property
    def separator(self) -> str:
        """What stands between "gres" and its name in job_submit/lua of this version."""
        return "/" if self.version is None or self.version >= SLASH_SEPARATOR else ":"
