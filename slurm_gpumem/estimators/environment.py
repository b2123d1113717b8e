"""The CUDA context of a GPU that nobody calibrated here: the nearest measured environment, and a margin.

The context belongs to the environment (CUDA, lazy or eager loading of modules, library sizes) more than to
the GPU: an A100 has been seen with 522 and with 1,727 MiB. models/environments holds what was measured where.

Facts that are stated (versions, the GPU, a setting) leave one or both ways to load modules open. The peak has
the median of what was documented on the nearest such GPUs and is not ruled out, which has the least expected
error (of an even number the upper one: too little costs a job more than too much); the request covers all.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.data import data_file
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.types import CPU_BUILD, Estimate, Gpu, TrainingJob
from slurm_gpumem.toml_file import load_toml

FOLDER = "environments"
LOADING = ("lazy", "eager")
LEAST_CONTEXT_MIB, MOST_CONTEXT_MIB = 64, 4096
"""What a file may claim: a stranger's number outside this is refused."""
_CONTEXTS = ("context_bare_mib", "context_conv_mib", "context_matmul_mib", "context_mib")
_TEXTS = ("gpu", "compute_capability", "torch", "cuda", "driver", "loading", "known", "source")
_FIRST_LAZY_TORCH, _FIRST_LAZY_CUDA = (1, 13), (11, 7)
"""PyTorch asks for lazy loading itself from 1.13 on; CUDA has it from 11.7 on. Sources, with their addresses:
models/environments/README.md."""
_SURELY_LAZY_TORCH, _SURELY_LAZY_CUDA, _SURELY_LAZY_CAPABILITY = (2, 8), (12, 0), (9, 0)
"""Lazy loading needs a driver from 515 on. CUDA 11 runs on older ones (from 450 on), CUDA 12 does not (from
525 on); PyTorch 2.8 is the first without a build for CUDA 11. That Hopper needs such a driver was not found
in a document: not checked."""
_SIZE_CAP = 4096
_LEFT_OPEN = "left open: "
WORKSPACE_MARGIN = 8
"""Added to a traced request at least, in per cent of the peak, where convolutions run on a GPU whose cuDNN
choices nobody measured: of 292 public runs on A100s it left 1.7 % too small, and 8.6 % without. A model that
depends on workspaces more gets what larger ones would add (`Margin.workspace_mib`)."""
HELD_ELSEWHERE = 0.96
"""The share of those runs that requests so widened held at least: 1 to 4 % were too small."""
OTHER_MARGIN = 2
"""The same without convolutions, and beside those workspaces: almost everything else carries over exactly.
A choice, not a fit."""


class Environment(NamedTuple):
    """Where a job's Python runs, as far as it is known."""

    torch: str = ""
    cuda: str = ""
    loading: str = ""
    """"lazy", "eager", or "" where nobody said."""

    def possible_loading(self, compute_capability: str = "") -> Tuple[str, ...]:
        """The ways that the facts leave open: an old driver loads eagerly whatever PyTorch asks for."""
        torch, cuda = _version(self.torch), _version(self.cuda)
        if self.loading:
            return (self.loading,)
        if (torch and torch < _FIRST_LAZY_TORCH) or (cuda and cuda < _FIRST_LAZY_CUDA):
            return ("eager",)
        return ("lazy",) if self._is_surely_lazy(compute_capability) else LOADING

    def _is_surely_lazy(self, compute_capability: str) -> bool:
        return (
            _version(self.torch) >= _SURELY_LAZY_TORCH
            or _version(self.cuda) >= _SURELY_LAZY_CUDA
            or _version(compute_capability) >= _SURELY_LAZY_CAPABILITY
        )


class Measured(NamedTuple):
    """A file of models/environments."""

    gpu: str
    compute_capability: str
    torch: str
    cuda: str
    driver: str
    loading: str
    known: str
    source: str
    contexts: Tuple[Optional[int], ...]
    """Bare, with convolutions, with matrix products, with both."""


def environment_of(job: TrainingJob) -> Environment:
    """What the job says of its environment: "2.6.0+cu124" names PyTorch and CUDA.

    A build without CUDA traced the job elsewhere: it says nothing of the one that runs on the GPU.
    """
    torch, _, build = job.torch.partition("+")
    found = re.fullmatch(r"cu(\d{2})(\d)", build)
    loading = "" if job.module_loading == "auto" else job.module_loading
    known = "" if job.torch.endswith(CPU_BUILD) else torch
    return Environment(known, f"{found[1]}.{found[2]}" if found else "", loading)


def in_environment(gpu: Gpu, environment: Environment) -> Gpu:
    """The GPU with the context that a job in this environment has, as far as anybody knows."""
    ways = environment.possible_loading(gpu.compute_capability)
    if gpu.measured and (gpu.calibrated or ways != ("eager",)):
        return gpu
    known = [entry for entry in measured_environments() if entry.loading in ways]
    documented = [_alike(gpu, [entry for entry in known if entry.loading == way]) for way in ways]
    nearest = sorted(_nearest(gpu, known), key=_whole)
    taken = nearest[len(nearest) // 2]
    bare, conv, matmul, both = contexts_of(taken)
    sizes = [_whole(entry) for entries in documented for entry in entries]
    return gpu._replace(
        context_bare_mib=bare,
        context_conv_mib=conv,
        context_matmul_mib=matmul,
        context_mib=both,
        context_margin_mib=max(0, max(sizes) - both),
        context_spare_mib=max(0, both - min(sizes)),
        source=f"context as on {taken.gpu} ({taken.source})",
    )


def _alike(gpu: Gpu, entries: Sequence[Measured]) -> List[Measured]:
    """Those of such a GPU, else of its architecture, else of its generation, else all."""
    own, family = gpu.compute_capability, gpu.entry.split("-")[0]
    same = [entry for entry in entries if entry.gpu == family]
    same = same or [entry for entry in entries if entry.compute_capability == own]
    major = own.split(".")[0]
    same = same or [entry for entry in entries if entry.compute_capability.split(".")[0] == major]
    return same or list(entries)


def _nearest(gpu: Gpu, entries: Sequence[Measured]) -> List[Measured]:
    """Those of such a GPU, else of the nearest architecture."""
    same = [entry for entry in entries if entry.gpu == gpu.entry.split("-")[0]]
    if same:
        return same
    apart = [_apart(entry.compute_capability, gpu.compute_capability) for entry in entries]
    return [entry for entry, distance in zip(entries, apart) if distance == min(apart)]


def _apart(one: str, other: str) -> int:
    """How far two compute capabilities are apart; 0 where one is not known."""
    a, b = _version(one), _version(other)
    return abs(a[0] - b[0]) * 10 + abs(a[1] - b[1]) if a and b else 0


def _whole(entry: Measured) -> int:
    """Its context with both libraries, which every file has."""
    return entry.contexts[3] or 0


def measured_where(gpu: Gpu, estimate: Estimate) -> Dict[str, Any]:
    """What of an estimate for this GPU was measured where, for programs."""
    here = in_environment(gpu, environment_of(estimate.job))
    taken = here.context_mib
    own = "here" if gpu.calibrated else "on such a GPU"
    context = own if here.measured and here.context_mib == gpu.context_mib else "elsewhere"
    bounds = [taken - here.context_spare_mib, taken + here.context_margin_mib]
    return {
        "context": context,
        "context_mib": bounds,
        "workspaces": own if gpu.workspaces_measured else "on an H200",
    }


def widened(estimate: Estimate, gpu: Gpu, *, traced: bool, convolutions: bool) -> Estimate:
    """The request made wide enough for what was not measured on this GPU; the message says what that is."""
    found: List[str] = []
    request = estimate.request_mib + gpu.context_margin_mib
    if not gpu.entry:
        found.append(
            f"GPU type {gpu.name} is not in the table; `gpumem calibrate` on such a node asks the driver "
            "(NVML) and adds it"
        )
    if not gpu.measured:
        found.append(_said_of_context(gpu))
    if traced and not gpu.workspaces_measured:
        least = estimate.peak_mib * (WORKSPACE_MARGIN if convolutions else OTHER_MARGIN) // 100
        own = estimate.peak_mib * OTHER_MARGIN // 100 + estimate.margin.workspace_mib
        request += max(least, own)
        if convolutions:
            much = f", the request with {own} MiB more for larger ones" if own > least else ""
            found.append(f"cuDNN workspaces on {gpu.name} as measured on an H200{much}")
    if gpu.profile and not gpu.calibrated:
        whole = f"not measured on MIG: context and workspaces on {gpu.name} are those of the whole GPU"
        estimate = estimate._replace(warnings=(*estimate.warnings, whole))
    if not found and request == estimate.request_mib:
        return estimate
    # Few environments are known: the margin is the most that was seen, at any coverage.
    more = request - estimate.request_mib
    return estimate._replace(
        request_mib=request,
        floor_mib=max(1, estimate.floor_mib - gpu.context_spare_mib),
        margin=estimate.margin._replace(
            requests=tuple(at + more for at in estimate.margin.requests),
            spare_mib=min(gpu.context_spare_mib, max(0, estimate.parts["context"] - LEAST_CONTEXT_MIB)),
        ),
        assumptions=(*estimate.assumptions, *found),
    )


def left_open(assumptions: Sequence[str]) -> Tuple[str, ...]:
    """Those that tell what the stated facts leave open of the environment."""
    return tuple(text for text in assumptions if text.startswith(_LEFT_OPEN))


def without_context_margin(assumptions: Sequence[str]) -> Tuple[str, ...]:
    """What an estimate assumes where the context is known after all."""
    return tuple(text for text in assumptions if not text.startswith(_LEFT_OPEN))


def _said_of_context(gpu: Gpu) -> str:
    """Which context is taken, between which documented ones, and what would tell."""
    taken = gpu.context_mib
    least, most = taken - gpu.context_spare_mib, taken + gpu.context_margin_mib
    said = f"{_LEFT_OPEN}the CUDA context on {gpu.name}, "
    if least == most:
        return said + f"{taken} MiB elsewhere (gpumem calibrate measures it)"
    where = f"{taken} taken" if taken == most else f"{taken} in the peak, {most} in the request"
    return (
        said + f"{least} to {most} MiB elsewhere: {where} (--torch narrows it, gpumem calibrate measures it)"
    )


@lru_cache(maxsize=1)
def measured_environments() -> Tuple[Measured, ...]:
    """All that the package knows, by file name."""
    folder = data_file("models", FOLDER)
    return tuple(
        read_environment(os.path.join(folder, name))
        for name in sorted(os.listdir(folder))
        if name.endswith(".toml")
    )


def read_environment(path: Union[str, os.PathLike[str]]) -> Measured:
    """One file, checked: it may come from a stranger. ConfigError says what is wrong with it."""
    if os.stat(path).st_size > _SIZE_CAP:
        raise ConfigError(f"{path}: larger than {_SIZE_CAP} bytes")
    fields = load_toml(path)
    unknown = sorted(set(fields) - set(_TEXTS) - set(_CONTEXTS))
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}")
    for name in _TEXTS:
        if not isinstance(fields.get(name), str) or not fields[name].isprintable() or len(fields[name]) > 120:
            raise ConfigError(f"{path}: {name} must be a short text")
    if fields["loading"] not in LOADING:
        raise ConfigError(f'{path}: loading must be "lazy" or "eager", not {fields["loading"]!r}')
    return Measured(
        **{name: fields[name] for name in _TEXTS},
        contexts=tuple(_context(path, fields, name) for name in _CONTEXTS),
    )


def _context(path: Union[str, os.PathLike[str]], fields: Mapping[str, Any], name: str) -> Optional[int]:
    value = fields.get(name)
    if value is None and name != "context_mib":
        return None
    if type(value) is not int or not LEAST_CONTEXT_MIB <= value <= MOST_CONTEXT_MIB:
        raise ConfigError(
            f"{path}: {name} must be from {LEAST_CONTEXT_MIB} to {MOST_CONTEXT_MIB} MiB, not {value!r}"
        )
    return value


def contexts_of(nearest: Measured) -> Tuple[int, int, int, int]:
    """What was not measured apart differs from the whole as where all of it was, loaded the same way."""
    contexts, both = nearest.contexts, nearest.contexts[3] or 0
    whole = next(
        entry.contexts
        for entry in measured_environments()
        if entry.loading == nearest.loading and all(entry.contexts)
    )
    last = whole[3] or 0
    bare, conv, matmul = (
        known if known is not None else max(LEAST_CONTEXT_MIB, both - last + (other or 0))
        for known, other in zip(contexts[:3], whole[:3])
    )
    return bare, conv, matmul, both


def _version(text: str) -> Tuple[int, ...]:
    found = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(found[1]), int(found[2])) if found else ()
