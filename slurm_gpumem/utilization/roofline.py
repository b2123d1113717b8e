"""How long a GPU is at it: every kernel against the peak rates, every launch against the CPU's time.

A kernel takes as long as its arithmetic, its bytes or its mere existence take, whichever is longest. Too few
blocks leave multiprocessors idle. The step takes the GPU's or the CPU's time, whichever is longer, and a
little more where they are alike. Which share of the peak rates kernels of a kind reach was fitted on
measured jobs (`Coefficients`); the form was not.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Tuple

from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.utilization.work import KINDS, RECURRENT, StepWork

MEASURED_TFLOPS = (67.0, 494.5, 989.0)
MEASURED_GB_S = 4800
MEASURED_SMS = 132
MEASURED_CLOCK_MHZ = 1980
"""The GPU that the coefficients were fitted on, an H200; also where a GPU's own figures are not known."""
_TERA = 1e12
_GIGA = 1e9

HOST_NAMES = ("base", "product", "attention", "norm", "point", "cast", "tensor", "pass", "cell", "view")
"""Seconds of the CPU for: a step, operations of several sorts with their backward, a parameter, a foreach
operation, a launch inside cuDNN's recurrent networks, a view."""
_TILES = ((4, 1.0), (2, 0.95), (1, 0.85))
"""Sizes of tiles in the smallest one's, and how fast products in them are: libraries take what suits best."""

START: Mapping[str, float] = {
    **{f"compute_{kind}": 0.5 for kind in KINDS},
    **{f"bandwidth_{kind}": 0.6 for kind in KINDS},
    **{f"warps_{kind}": 0.2 for kind in KINDS},
    **{f"traffic_{kind}": 0.7 for kind in KINDS},
    **{f"compute_depthwise_{width}": 0.3 for width in ("fp32", "fp16", "bf16")},
    **{f"compute_taps_{width}": 0.1 for width in ("fp32", "fp16", "bf16")},
    "compute_grouped_fp32": 0.1,
    "compute_grouped_half": 0.1,
    "warps_pointwise": 0.6,
    "warps_norm": 0.6,
    "warps_optimizer": 0.5,
    **{f"warps_depthwise_{width}": 0.5 for width in ("fp32", "fp16", "bf16")},
    **{f"warps_taps_{width}": 0.5 for width in ("fp32", "fp16", "bf16")},
    "latency": 3e-6,
    "gap": 1e-6,
    "sharpness": 4.0,
    "host_base": 1e-3,
    "host_product": 6e-5,
    "host_attention": 1.5e-4,
    "host_norm": 6e-5,
    "host_point": 4e-5,
    "host_cast": 3e-5,
    "host_tensor": 4e-6,
    "host_pass": 5e-5,
    "host_cell": 4e-6,
    "host_view": 4e-6,
}
"""Where fitting starts, and what an unfitted prediction uses: physical guesses."""
NAMES = tuple(START)


class Rates(NamedTuple):
    """What a GPU can do at best: operations and bytes a second, multiprocessors, and the host's speed."""

    by_kind: Tuple[float, ...]
    bytes_per_second: float
    sms: int
    host: float = 1.0
    """How much longer its CPU takes to start a kernel than that of the measured machine."""
    tick: float = 1.0
    """How much longer a clock cycle is than on the measured GPU."""


class Times(NamedTuple):
    """A step as the roofline sees it; seconds."""

    gpu: float
    """Kernels one after the other."""
    cpu: float
    step: float
    busy: float
    """Multiprocessor-seconds with work, as a share of all multiprocessors."""
    warps: float
    traffic: float
    """Seconds that the bytes would take at the peak bandwidth."""
    by_kind: Tuple[float, ...]
    """The GPU's time by kind."""
    short: float
    """Of the GPU's time, what kernels spend that are too short to be anything but latency."""


def rates_of(gpu: Gpu) -> Rates:
    """The peak rates of a GPU; those of the measured one where the table does not know them."""
    fp32, tf32, half = (rate * _TERA for rate in gpu.tflops or MEASURED_TFLOPS)
    by_name = {"gemm_fp32": fp32, "gemm_tf32": tf32, "conv_tf32": tf32, "weight_tf32": tf32}
    by_name.update(grouped_fp32=tf32, gemm_half=half, conv_half=half, weight_half=half, grouped_half=half)
    by_name.update(attention_half=half, rnn_half=half)
    return Rates(
        # Depthwise convolutions, elementwise kernels and recurrent cells run on the ordinary units.
        tuple(by_name.get(name, fp32) for name in KINDS),
        (gpu.bandwidth_gb_s or MEASURED_GB_S) * _GIGA,
        gpu.sms or MEASURED_SMS,
        gpu.host_factor,
        MEASURED_CLOCK_MHZ / (gpu.clock_mhz or MEASURED_CLOCK_MHZ),
    )


def coverage(blocks: int, sms: int, whole_waves: bool) -> float:
    """The share of multiprocessors with work while such a kernel runs."""
    if not whole_waves:
        return min(1.0, blocks / sms)
    best = 0.0
    for size, speed in _TILES:
        tiles = -(-blocks // size)
        best = max(best, speed * tiles / (-(-tiles // sms) * sms))
    return best


IN_WAVES = tuple(name.startswith(("gemm", "conv", "weight")) for name in KINDS)
"""By kind: whether its kernels run in waves of large tiles, the last of which may be nearly empty."""


def kernel_seconds(
    flops: Any,
    moved: Any,
    covered: Any,
    rates: Tuple[Any, Any],
    latency: Any,
    maximum: Callable[..., Any] = max,
) -> Any:
    """One kernel's time: arithmetic or bytes at the rates its kind reaches, but never less than `latency`."""
    compute, bandwidth = rates
    # A multiprocessor alone can draw about four times its share of the bandwidth.
    return maximum(
        maximum(flops / (compute * covered), moved / (bandwidth * (1 - (1 - covered) ** 4))), latency
    )


def host_counts(work: StepWork) -> Tuple[float, ...]:
    """What the CPU does in a step, by HOST_NAMES."""
    host = work.host
    cells = sum(count for key, count in work.kernels.items() if key[0] in RECURRENT)
    return (
        1.0,
        host.products,
        host.attention,
        host.norms,
        host.points,
        host.casts,
        host.tensors,
        host.passes,
        float(cells),
        host.views,
    )


def step_times(work: StepWork, rates: Rates, known: Mapping[str, float]) -> Times:
    """The roofline of one step."""
    reached = [
        (
            rates.by_kind[kind] * known[f"compute_{name}"],
            rates.bytes_per_second * known[f"bandwidth_{name}"],
            known[f"warps_{name}"],
            known[f"traffic_{name}"],
        )
        for kind, name in enumerate(KINDS)
    ]
    latency, gap = known["latency"] * rates.tick, known["gap"] * rates.tick
    by_kind = [0.0] * len(KINDS)
    busy = warps = traffic = short = 0.0
    for (kind, flops, moved, blocks), count in work.kernels.items():
        compute, bandwidth, warp, bytes_share = reached[kind]
        covered = coverage(blocks, rates.sms, IN_WAVES[kind])
        seconds = kernel_seconds(flops, moved, covered, (compute, bandwidth), latency)
        by_kind[kind] += count * (seconds + gap)
        active = count * seconds * covered
        busy += active
        warps += active * warp
        traffic += count * moved * bytes_share
        if seconds <= latency:
            short += count * (seconds + gap)
    gpu = sum(by_kind)
    cpu = rates.host * sum(
        known[f"host_{name}"] * count for name, count in zip(HOST_NAMES, host_counts(work))
    )
    step = together(gpu, cpu, known["sharpness"])
    return Times(gpu, cpu, step, busy, warps, traffic / rates.bytes_per_second, tuple(by_kind), short)


def with_host(times: Times, factor: float, known: Mapping[str, float]) -> Times:
    """The same step where the CPU takes `factor` times as long."""
    cpu = times.cpu * factor
    return times._replace(cpu=cpu, step=together(times.gpu, cpu, known["sharpness"]))


def together(gpu: float, cpu: float, sharpness: float) -> float:
    """The longer of two times that overlap, and a little more where they are alike."""
    longer, shorter = (gpu, cpu) if gpu >= cpu else (cpu, gpu)
    if longer <= 0:
        return 1e-6
    return float(longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness))
