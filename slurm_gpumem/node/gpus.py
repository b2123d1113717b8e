"""Which GPUs this node has: Slurm counts device files, MPS and NVML want UUIDs."""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import read_json

UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{4,64}")
_PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_INDEX_LIST = re.compile(r"[0-9]{1,4}(?:[,-][0-9]{1,4})*")


@dataclass(frozen=True)
class NodeGpu:
    """One GPU of this node."""

    number: int
    """The N of its device file, which is what Slurm's SLURM_JOB_GPUS counts."""
    uuid: str
    name: str = ""
    memory_mib: Optional[int] = None


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
    # Only NVML knows how much memory a GPU has, which a share of its SMs is computed from.
    return nvml_gpus() or found if config.thread_percentage or not found else found


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
    found = []
    try:
        for index, uuid in nvml.devices():
            minor, memory = nvml.minor(uuid), nvml.memory_mib(uuid)
            number = index if minor is None else minor
            found.append(NodeGpu(number, uuid, nvml.name(uuid), int(memory[1]) if memory else None))
    except NvmlError:
        return ()
    finally:
        nvml.close()
    return tuple(sorted(found, key=lambda gpu: gpu.number))


def standin_gpus(ledger: Path, node: str) -> Tuple[NodeGpu, ...]:
    """The dev cluster's GPUs of that node: one ledger file each, `NODE-gpuN.json`."""
    found = []
    for path in ledger.glob(f"{node}-gpu*.json"):
        number = path.stem.rpartition("-gpu")[2]
        if number.isdigit():
            kept = read_json(path)
            # As a driver's names have it: "stand-in A100".
            name = f"stand-in {str(kept.get('type', '')).upper()}".rstrip()
            uuid = standin_uuid(node, int(number))
            found.append(NodeGpu(int(number), uuid, name, kept.get("capacity_mib")))
    return tuple(sorted(found, key=lambda gpu: gpu.number))


def standin_uuid(node: str, number: int) -> str:
    """A stand-in GPU's UUID: always the same, its number in the last group."""
    return f"GPU-{zlib.crc32(node.encode()):08x}-0000-0000-0000-{number:012x}"


def pick(gpus: Sequence[NodeGpu], listed: str) -> Tuple[NodeGpu, ...]:
    """The GPUs of SLURM_JOB_GPUS, in its order; what no GPU here is called is left out.

    Slurm writes numbers there. UUIDs are understood too: from 25.11 on, a site can have them in
    CUDA_VISIBLE_DEVICES (Flags=env_uuid), and a version that puts them here as well costs no job its fence.
    """
    by_name = {name: gpu for gpu in gpus for name in (str(gpu.number), gpu.uuid)}
    names = [str(number) for number in parse_numbers(listed)] or dict.fromkeys(listed.split(","))
    return tuple(by_name[name] for name in names if name in by_name)
