"""Which GPUs and MIG instances this node has: Slurm counts them, MPS and NVML want UUIDs."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import read_json
from slurm_gpumem.formats.mig_profiles import MIG, profile_name

if TYPE_CHECKING:
    from slurm_gpumem.node.nvml import Nvml

UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{4,64}")
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_PROC_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
_MOST_LISTED = 4096
_INDEX_LIST = re.compile(r"[0-9]{1,4}(?:[,-][0-9]{1,4})*")


@dataclass(frozen=True)
class NodeGpu:
    """One GPU of this node."""

    number: int
    """The N of its device file; of a MIG instance, its GPU's."""
    uuid: str
    name: str = ""
    """ "NVIDIA H200", and "NVIDIA H200 MIG 1g.18gb" of an instance."""
    memory_mib: Optional[int] = None
    place: Optional[int] = None
    """What SLURM_JOB_GPUS calls it where that is not its number: Slurm counts instances like GPUs."""
    parent: str = ""
    """Of an instance: the UUID of its GPU, and its two numbers there."""
    gpu_instance: int = 0
    compute_instance: int = 0

    @property
    def listed(self) -> int:
        """Its number in SLURM_JOB_GPUS."""
        return self.number if self.place is None else self.place

    @property
    def instance(self) -> str:
        """Numbers of the GPU and compute instance, "3/0"; "" of a whole GPU."""
        return f"{self.gpu_instance}/{self.compute_instance}" if is_instance(self.uuid) else ""


def is_instance(uuid: str) -> bool:
    """Whether it is a MIG instance's."""
    return uuid.startswith("MIG-")


def parse_numbers(text: str) -> Tuple[int, ...]:
    """The GPUs of SLURM_JOB_GPUS, "0,2-3"; anything that is not such a list has none."""
    if not _INDEX_LIST.fullmatch(text):
        return ()
    numbers: List[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(dict.fromkeys(numbers))


def find_gpus(config: NodeConfig, node: str) -> Tuple[NodeGpu, ...]:
    """All GPUs: the stand-in's where configured, else from /proc, else from NVML; none is an answer.

    /proc comes first: without persistence mode NVML takes seconds to start, and a prolog has no seconds.
    """
    if config.ledger is not None:
        return standin_gpus(config.ledger, node)
    found = proc_gpus(_PROC_GPUS)
    # Only NVML knows instances, and how much memory a GPU has, which a share of its SMs is computed from.
    divided = any(_PROC_CAPABILITIES.glob("gpu*/mig/gi*"))
    return nvml_gpus() or found if divided or not found else found


def proc_gpus(folder: Path) -> Tuple[NodeGpu, ...]:
    """What the driver reports in /proc; nothing when any GPU's UUID is still unknown to it."""
    found = []
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return ()
    for entry in entries:
        try:
            text = (folder / entry / "information").read_text(errors="replace")
        except OSError:
            return ()
        pairs = dict(re.findall(r"^([A-Za-z ]+?):[ \t]+(.*?)[ \t]*$", text, re.MULTILINE))
        uuid, minor = pairs.get("GPU UUID", ""), pairs.get("Device Minor", "")
        # "GPU-????????-…" until the GPU has been used for the first time.
        if not UUID.fullmatch(uuid) or not minor.isdigit():
            return ()
        found.append(NodeGpu(int(minor), uuid, pairs.get("Model", "")))
    return tuple(sorted(found, key=lambda gpu: gpu.number))


def nvml_gpus() -> Tuple[NodeGpu, ...]:
    """What NVML reports; nothing without a driver."""
    from slurm_gpumem.node.nvml import Nvml, NvmlError

    try:
        nvml = Nvml()
    except (OSError, NvmlError):
        return ()
    try:
        return gpus_of(nvml)
    except NvmlError:
        return ()
    finally:
        nvml.close()


def gpus_of(nvml: Nvml) -> Tuple[NodeGpu, ...]:
    """The same of an open NVML; a GPU in MIG mode is its instances. NvmlError when it does not answer."""
    found: List[NodeGpu] = []
    divided = False
    for index, uuid in nvml.devices():
        minor, instances = nvml.minor(uuid), nvml.mig_devices(uuid)
        number = index if minor is None else minor
        divided = divided or instances is not None
        if instances is None:
            found.append(NodeGpu(number, uuid, nvml.name(uuid), _memory_mib(nvml, uuid)))
        for one in instances or ():
            name, memory = nvml.name(one.uuid), _memory_mib(nvml, one.uuid)
            # A driver that names no profile leaves it open which one it is.
            name = name if profile_name(name) else f"{name} {MIG}"
            found.append(NodeGpu(number, one.uuid, name, memory, None, *one[1:]))
    found.sort(key=lambda gpu: (gpu.number, gpu.gpu_instance, gpu.compute_instance))
    # As `gpumem setup` writes gres.conf: GPUs by number, instances by theirs.
    return tuple(replace(gpu, place=place) for place, gpu in enumerate(found)) if divided else tuple(found)


def _memory_mib(nvml: Nvml, uuid: str) -> Optional[int]:
    memory = nvml.memory_mib(uuid)
    return int(memory[1]) if memory else None


def standin_gpus(ledger: Path, node: str) -> Tuple[NodeGpu, ...]:
    """The dev cluster's GPUs of that node: one ledger file each, `NODE-gpuN.json`."""
    found = []
    for path in ledger.glob(f"{node}-gpu*.json"):
        number = path.stem.rpartition("-gpu")[2]
        if number.isdigit():
            kept = read_json(path)
            # As a driver's names have it: "stand-in A100", "stand-in H200 MIG 1g.18gb".
            model, profile = str(kept.get("type", "")), str(kept.get("profile", ""))
            name = " ".join(filter(None, ["stand-in", model.upper(), profile and f"{MIG} {profile}"]))
            uuid = standin_uuid(node, int(number), instance=bool(profile))
            found.append(NodeGpu(int(number), uuid, name, kept.get("capacity_mib"), gpu_instance=int(number)))
    return tuple(sorted(found, key=lambda gpu: gpu.number))


def standin_uuid(node: str, number: int, *, instance: bool = False) -> str:
    """A stand-in GPU's UUID: always the same, its number in the last group."""
    kind = MIG if instance else "GPU"
    return f"{kind}-{zlib.crc32(node.encode()):08x}-0000-0000-0000-{number:012x}"


def pick(gpus: Sequence[NodeGpu], env: Mapping[str, str]) -> Tuple[NodeGpu, ...]:
    """The GPUs that a hook's environment names, in Slurm's order; what no GPU here is called is left out.

    Slurm writes numbers into SLURM_JOB_GPUS. UUIDs are understood too: from 25.11 on, a site can have them in
    CUDA_VISIBLE_DEVICES (Flags=env_uuid), and a version that puts them here as well costs no job its limits.
    Where Slurm found MIG instances by itself (AutoDetect), their UUIDs are in CUDA_VISIBLE_DEVICES, which is
    more certain than a number.
    """
    listed = env.get("SLURM_JOB_GPUS", "")[:_MOST_LISTED]
    by_name = {name: gpu for gpu in gpus for name in _names(gpu)}
    visible = env.get("CUDA_VISIBLE_DEVICES", "")[:_MOST_LISTED].split(",")
    if any(map(is_instance, visible)) and all(name in by_name for name in visible):
        return tuple(by_name[name] for name in dict.fromkeys(visible))
    names = [str(number) for number in parse_numbers(listed)] or dict.fromkeys(listed.split(","))
    return tuple(by_name[name] for name in names if name in by_name)


def _names(gpu: NodeGpu) -> Tuple[str, ...]:
    return (str(gpu.listed), gpu.uuid, *([f"MIG-{gpu.parent}/{gpu.instance}"] if gpu.parent else []))
