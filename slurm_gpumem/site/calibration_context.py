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
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import slurm_gpumem
from slurm_gpumem.errors import CalibrationError, ConfigError
from slurm_gpumem.estimators.environment import LEAST_CONTEXT_MIB, MOST_CONTEXT_MIB
from slurm_gpumem.estimators.gpus import closest_gpu, gpu_table
from slurm_gpumem.files import replaced
from slurm_gpumem.formats.kit_file import KitContext, KitFile, KitGpu, read_kit_file
from slurm_gpumem.units import MIB

_PROBE = "slurm_gpumem.site.calibration_probe"
_TIMEOUT_S = 120
_MOST_WORKSPACE = 1024 * MIB
_LEAST_MEMORY_MIB, _MOST_MEMORY_MIB, _MOST_SMS = 512, 1 << 20, 4096


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
    gpu, context = measured(conv_then_matmul, matmul_only)
    notes = _notes(matmul_only, matmul_only["workspaces"])
    return entry_of(gpu, context, name=name, by=f"gpumem calibrate, {date}", notes=notes)


def measured(
    conv_then_matmul: Mapping[str, Any], matmul_only: Mapping[str, Any]
) -> Tuple[KitGpu, KitContext]:
    """What two probes say of the GPU; CalibrationError where that is not to be relied on."""
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
    workspaces: List[int] = matmul_only["workspaces"]
    gpu = KitGpu(
        name=conv_then_matmul["gpu"],
        driver=conv_then_matmul["driver"],
        memory_mib=conv_then_matmul["memory_mib"],
        compute_capability=conv_then_matmul["compute_capability"],
        sms=conv_then_matmul["sms"],
        torch=conv_then_matmul["torch"],
        cuda=conv_then_matmul["cuda"],
        cudnn=conv_then_matmul["cudnn"],
    )
    context = KitContext(
        bare_mib=max(both["bare"], single["bare"]),
        conv_mib=both["conv"],
        matmul_mib=single["matmul"],
        both_mib=both["matmul"],
        cublas_workspace_bytes=max(workspaces, default=None),
        rounds_as_simulated=not _rounded_otherwise(matmul_only),
    )
    return gpu, context


def entry_of(gpu: KitGpu, context: KitContext, *, name: str, by: str, notes: Sequence[str]) -> Calibration:
    """The entry that a measurement makes; with an empty `name` it is named after the GPU."""
    fields: List[Tuple[str, object]] = [
        ("memory_mib", gpu.memory_mib),
        ("memory_source", "measured"),
        ("compute_capability", gpu.compute_capability),
        ("sms", gpu.sms),
        ("context_bare_mib", context.bare_mib),
        ("context_conv_mib", context.conv_mib),
        ("context_matmul_mib", context.matmul_mib),
        ("context_mib", context.both_mib),
    ]
    if context.cublas_workspace_bytes:
        fields.append(("cublas_workspace_bytes", context.cublas_workspace_bytes))
    source = f"{by}: {gpu.name}, driver {gpu.driver}, CUDA {gpu.cuda}, cuDNN {gpu.cudnn}, torch {gpu.torch}"
    fields += [("measured", True), ("source", source)]
    known = closest_gpu(gpu.name, gpu.memory_mib)
    # What is measured on a MIG instance says nothing of the whole GPU.
    entry = f"{known.entry}_{known.profile}" if known.entry and known.profile else known.entry
    return Calibration((name or entry or _slug(gpu.name)).lower(), tuple(fields), tuple(notes))


def entry_of_kit(path: Path, name: str) -> Calibration:
    """The entry that a kit's file makes: a stranger's numbers are bounded as those of environments are."""
    kit = read_kit_file(path)
    if kit.gpu is None or kit.context is None:
        raise ConfigError(f"{path}: no context was measured in that run; run gpumem sitekit again")
    seen, gpu = kit.context, kit.gpu
    contexts = (seen.bare_mib, seen.conv_mib, seen.matmul_mib, seen.both_mib)
    if not all(LEAST_CONTEXT_MIB <= mib <= MOST_CONTEXT_MIB for mib in contexts):
        raise ConfigError(
            f"{path}: a context is from {LEAST_CONTEXT_MIB} to {MOST_CONTEXT_MIB} MiB, not {contexts}"
        )
    if not (_LEAST_MEMORY_MIB <= gpu.memory_mib <= _MOST_MEMORY_MIB and 1 <= gpu.sms <= _MOST_SMS):
        raise ConfigError(f"{path}: no GPU has {gpu.memory_mib} MiB and {gpu.sms} multiprocessors")
    capability = re.fullmatch(r"[0-9]{1,2}\.[0-9]", gpu.compute_capability)
    if (seen.cublas_workspace_bytes or 0) > _MOST_WORKSPACE or not capability:
        raise ConfigError(f"{path}: no GPU has such a compute capability, or such cuBLAS workspaces")
    notes = [
        *warnings_of(kit),
        f"{sum(one.compared for one in kit.trainings)} trainings compared with estimates",
    ]
    return entry_of(gpu, seen, name=name, by=f"gpumem sitekit, {kit.date}", notes=notes)


def warnings_of(kit: KitFile) -> List[str]:
    """What somebody should know who relies on that file."""
    found = []
    low = [one.name for one in kit.trainings if one.below_need]
    failed = [f"{row.part}: {row.what} ({row.held} of {row.tried})" for row in kit.rows if row.failed]
    if not kit.complete:
        found.append("warning: that run was interrupted")
    if low:
        found.append(f"warning: requests of {len(low)} of its trainings were below need: {', '.join(low)}")
    if failed:
        found.append(f"warning: did not hold there: {'; '.join(failed)}")
    if kit.context is not None and not kit.context.rounds_as_simulated:
        found.append("warning: the allocator rounds differently there")
    return found


def environment_for(variables: Mapping[str, str]) -> Dict[str, str]:
    """An environment for an interpreter that has torch, and may not have this package installed."""
    package = str(Path(slurm_gpumem.__file__).resolve().parent.parent)
    before = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, [package, before]))}


def run_probe(python: str, stages: List[str]) -> Dict[str, Any]:
    """The result of one probe process; raises CalibrationError with the reason if there is none."""
    environment = environment_for(os.environ)
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
    differing = _rounded_otherwise(probe)
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


def _rounded_otherwise(probe: Mapping[str, Any]) -> List[List[int]]:
    return [row for row in probe["rounding"] if row[:2] != row[2:]]


def _slug(gpu_name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    return re.sub(r"^nvidia-", "", words) or "gpu"
