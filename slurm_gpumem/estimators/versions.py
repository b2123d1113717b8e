"""What older and newer versions of PyTorch do differently with memory, each with where it is known from.

A job's version comes from `--torch` or from its trace; where nobody says, the rules are those of the measured
version (2.11).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings, cublas_workspace_of
from slurm_gpumem.units import MIB

if TYPE_CHECKING:
    from slurm_gpumem.estimators.types import Gpu, TrainingJob

Version = Tuple[int, int]

KNOWN = ("measured", "traced", "read")
"""Measured on a GPU, traced on meta tensors under the same settings, or read in PyTorch's sources."""


class VersionRule(NamedTuple):
    """Something that changed with a version."""

    since: Version
    """The first version that does it as it is modelled by default."""
    before: str
    """What versions before it do, in words."""
    known: str
    """One of KNOWN."""
    source: str
    """Where it is written."""


GRADIENTS_FREED = VersionRule(
    (2, 0),
    "zero_grad() keeps the gradients through the forward pass",
    "traced",
    "pytorch pull request 92731",
)
FOREACH = VersionRule(
    (2, 0),
    "the optimizer updates one parameter after the other (no foreach)",
    "traced",
    "pytorch pull requests 92306 and 95862",
)
FUSED_ATTENTION = VersionRule(
    (2, 0),
    "attention holds its whole matrix (no fused kernel)",
    "read",
    "PyTorch 2.0 release notes: scaled_dot_product_attention is new",
)
CUBLAS_WORKSPACE = VersionRule(
    (2, 0),
    "cuBLAS workspaces of 4 MiB on every GPU",
    "read",
    "pytorch pull requests 89027 and 91564",
)
CUBLAS_BLACKWELL = VersionRule(
    (2, 12),
    "cuBLAS workspaces of 8.125 MiB on Blackwell",
    "read",
    "pytorch pull request 175344",
)
EXPANDABLE_SEGMENTS = VersionRule(
    (2, 1),
    "the allocator knows no expandable_segments and stops at the word",
    "read",
    "PyTorch 2.1 release notes, pytorch pull request 96995",
)
RULES = (
    GRADIENTS_FREED,
    FOREACH,
    FUSED_ATTENTION,
    CUBLAS_WORKSPACE,
    CUBLAS_BLACKWELL,
    EXPANDABLE_SEGMENTS,
)

_OLD_WORKSPACE = 4 * MIB
SMALL_WORKSPACE = 8_519_680
LARGE_WORKSPACE = 32 * MIB
_HOPPER, _BLACKWELL = ("9",), ("10", "12")


def version_of(torch: str) -> Optional[Version]:
    """Major and minor of "2.6.0+cu124"; None where nothing is known."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", torch)
    return (int(found[1]), int(found[2])) if found else None


def follows(rule: VersionRule, torch: str) -> bool:
    """Whether this version does it the new way; an unknown one does."""
    version = version_of(torch)
    return version is None or version >= rule.since


def cublas_workspace_bytes(compute_capability: str, torch: str = "") -> int:
    """One cuBLAS workspace as PyTorch allocates it by default on such a GPU."""
    if not follows(CUBLAS_WORKSPACE, torch):
        return _OLD_WORKSPACE
    major = compute_capability.split(".")[0]
    large = major in _HOPPER or (major in _BLACKWELL and follows(CUBLAS_BLACKWELL, torch))
    return LARGE_WORKSPACE if large else SMALL_WORKSPACE


def in_version(gpu: Gpu, torch: str) -> Gpu:
    """The GPU with the cuBLAS workspaces of that PyTorch; what a site measured stays."""
    usual = cublas_workspace_bytes(gpu.compute_capability)
    if gpu.calibrated or not gpu.compute_capability or gpu.cublas_workspace_bytes != usual:
        return gpu
    return gpu._replace(cublas_workspace_bytes=cublas_workspace_bytes(gpu.compute_capability, torch))


def differences(torch: str, *, attention: bool) -> Tuple[str, ...]:
    """What of an estimate follows this version and not the measured one, in words."""
    named = (GRADIENTS_FREED, FOREACH, *((FUSED_ATTENTION,) if attention else ()))
    return tuple(
        f"as PyTorch {torch} does: {rule.before} ({rule.known})" for rule in named if not follows(rule, torch)
    )


# -- Variables of the job's environment: what they change in an estimate, and what of them is not simulated


def with_workspaces(gpu: Gpu, job: TrainingJob) -> Gpu:
    """The GPU with the cuBLAS workspaces that the job sets, else those of its PyTorch."""
    size = cublas_workspace_of(job.cublas_workspace)
    return in_version(gpu, job.torch) if size < 0 else gpu._replace(cublas_workspace_bytes=size)


def not_simulated(job: TrainingJob, gpu: Gpu) -> Tuple[str, ...]:
    """What the job sets that the estimate does not follow, in words."""
    settings = allocator_settings(job.alloc_conf)
    found: List[str] = list(settings.notes)
    if settings.expandable and not follows(EXPANDABLE_SEGMENTS, job.torch):
        found.append(
            f"PyTorch {job.torch} has no expandable_segments (since 2.1): the job would stop at its start"
        )
    if job.module_loading == "eager" and gpu.calibrated:
        found.append(
            f"modules are loaded eagerly, but the context is the one that this site measured on {gpu.name}: "
            "calibrate with CUDA_MODULE_LOADING=EAGER, or ask for more (on an H200 it is 1.3 GiB)"
        )
    if job.cublas_workspace and cublas_workspace_of(job.cublas_workspace) < 0:
        found.append(
            f"CUBLAS_WORKSPACE_CONFIG={job.cublas_workspace} is not like :4096:8; PyTorch takes its default"
        )
    return tuple(found)
