"""Measure what differs between GPUs and driver versions, and make a site's GPU entry from it.

Two short processes each train a tiny network: one with convolutions and then matrix products,
one with matrix products only. Their memory outside the allocator at each stage is the context
that an estimate adds; cuBLAS workspaces and rounding are checked as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

import slurm_gpumem
from slurm_gpumem.errors import CalibrationError
from slurm_gpumem.estimators.gpus import closest_gpu, gpu_table
from slurm_gpumem.files import replaced
from slurm_gpumem.units import MIB

_PROBE = "slurm_gpumem.site.calibration_probe"
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Calibration:
    """A measured GPU: an entry for the table, and notes for the admin."""

    name: str
    fields: Tuple[Tuple[str, object], ...]
    notes: Tuple[str, ...]

    def as_toml(self) -> str:
        """The entry as a section of gpumem-gpus.toml."""
        # JSON strings, numbers and booleans are valid TOML.
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in self.fields]
        # An instance's name has a dot: "h200_1g.18gb".
        section = f'"{self.name}"' if "." in self.name else self.name
        return "\n".join([f"[{section}]", *lines, ""])


def calibrate(python: str, name: str, date: str) -> Calibration:
    """Measure with the interpreter `python`; with an empty `name` the entry is named after the GPU."""
    first = run_probe(python, ["conv", "matmul"])
    second = run_probe(python, ["matmul"])
    return calibration(first, second, name=name, date=date)


def calibration(
    conv_then_matmul: Mapping[str, Any], matmul_only: Mapping[str, Any], *, name: str, date: str
) -> Calibration:
    """The entry that the results of two probes make."""
    both = conv_then_matmul["outside_mib"]
    single = matmul_only["outside_mib"]
    if conv_then_matmul["crowded"] and "whole GPU" in conv_then_matmul["how"]:
        raise CalibrationError(
            "others use this GPU, and the driver does not report each process's memory.\n"
            "Calibrate on an idle GPU: srun --gres=gpu:1 --exclusive gpumem calibrate"
        )
    low = min(both["bare"], single["bare"])
    if low < 1:
        raise CalibrationError(
            f"the process's GPU memory cannot be read here ({conv_then_matmul['how']} gave {low} MiB)."
        )
    gpu = closest_gpu(conv_then_matmul["gpu"], conv_then_matmul["memory_mib"])
    workspaces: List[int] = matmul_only["workspaces"]
    fields: List[Tuple[str, object]] = [
        ("memory_mib", conv_then_matmul["memory_mib"]),
        ("memory_source", "measured"),
        ("compute_capability", conv_then_matmul["compute_capability"]),
        ("sms", conv_then_matmul["sms"]),
        ("context_bare_mib", max(both["bare"], single["bare"])),
        ("context_conv_mib", both["conv"]),
        ("context_matmul_mib", single["matmul"]),
        ("context_mib", both["matmul"]),
    ]
    if workspaces:
        fields.append(("cublas_workspace_bytes", max(workspaces)))
    fields += [("measured", True), ("source", _source(conv_then_matmul, date))]
    # What is measured on a MIG instance says nothing of the whole GPU.
    entry = f"{gpu.entry}_{gpu.profile}" if gpu.entry and gpu.profile else gpu.entry
    return Calibration(
        name=(name or entry or _slug(conv_then_matmul["gpu"])).lower(),
        fields=tuple(fields),
        notes=tuple(_notes(matmul_only, workspaces)),
    )


def run_probe(python: str, stages: List[str]) -> Dict[str, Any]:
    """The result of one probe process; raises CalibrationError with the reason if there is none."""
    environment = dict(os.environ)
    package = str(Path(slurm_gpumem.__file__).resolve().parent.parent)
    # The interpreter that has torch may not have this package installed.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [python, "-m", _PROBE, *stages],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise CalibrationError(f"{python}: cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CalibrationError(
            f"the measurement did not end within {_TIMEOUT_S} s; is the GPU hung?"
        ) from None
    try:
        result: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CalibrationError(f"the measurement failed: {last}") from None
    if result.get("error") == "no-torch":
        raise CalibrationError(
            f"{python} has no PyTorch ({result['detail']}).\n"
            "Run gpumem in the training environment, or name it: --environment DIR"
        )
    if result.get("error") == "no-gpu":
        raise CalibrationError(
            f"there is no GPU to measure here: {result['detail']}.\n"
            "Run it on a GPU node: srun --gres=gpu:1 gpumem calibrate"
        )
    return result


def put_entry(path: Path, calibration: Calibration) -> None:
    """Write the entry into the site's file: its own section is replaced, every other line is kept."""
    text = path.read_text() if path.exists() else ""
    kept = _without_section(text, calibration.name).rstrip("\n")
    new = (f"{kept}\n\n" if kept else "") + calibration.as_toml()
    with replaced(path, mode=0o644) as draft:
        draft.write_text(new)
        gpu_table(draft)


def _without_section(text: str, name: str) -> str:
    lines: List[str] = []
    inside = False
    for line in text.splitlines():
        header = re.fullmatch(r"\s*\[\s*\"?([^\]\"]+?)\"?\s*\]\s*(?:#.*)?", line)
        if header:
            inside = header[1].lower() == name
        if not inside:
            lines.append(line)
    return "\n".join(lines)


def _notes(probe: Mapping[str, Any], workspaces: List[int]) -> List[str]:
    notes = [f"read by {probe['how']}"]
    if probe["alloc_conf"]:
        notes.append(f"allocator settings in use: {probe['alloc_conf']} (estimates assume the defaults)")
    differing = [row for row in probe["rounding"] if row[:2] != row[2:]]
    if differing:
        real, simulated = differing[0][:2], differing[0][2:]
        notes.append(
            f"the allocator rounds differently here: {real[0]:,} allocated and {real[1]:,} reserved bytes "
            f"where the simulator says {simulated[0]:,} and {simulated[1]:,}"
        )
    else:
        notes.append("the allocator rounds as simulated")
    sizes = ", ".join(f"{size / MIB:.4g} MiB" for size in workspaces) or "none"
    notes.append(f"cuBLAS workspaces in the allocator: {sizes}")
    return notes


def _source(probe: Mapping[str, Any], date: str) -> str:
    return (
        f"gpumem calibrate, {date}: {probe['gpu']}, driver {probe['driver']}, "
        f"CUDA {probe['cuda']}, cuDNN {probe['cudnn']}, torch {probe['torch']}"
    )


def _slug(gpu_name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    return re.sub(r"^nvidia-", "", words) or "gpu"
