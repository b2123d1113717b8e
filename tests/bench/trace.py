"""What a trace costs and how well it scales: time, memory, file size, other batch sizes.

    make bench-trace        (needs torch, timm and transformers in the environment)

Each figure is measured in a process of its own. Batch scaling compares the estimate of one trace at ¼, ½, 2
and 4 times its batch with fresh traces at those sizes.
"""

from __future__ import annotations

import gzip
import logging
import resource
import subprocess
import sys
import time
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.tracing.model.inputs import Inputs
from slurm_gpumem.tracing.model.live import summarize

META = torch.device("meta")
BATCH = 16
FACTORS = (0.25, 0.5, 2, 4)
Made = Tuple[torch.nn.Module, Callable[[int], Inputs]]
IMAGES = (
    "resnet50", "convnext_tiny", "efficientnet_b0", "vit_small_patch16_224", "swin_tiny_patch4_window7_224",
    "mobilenetv3_large_100", "densenet121", "regnety_016", "mixer_s16_224",
)  # fmt: skip
TEXTS: Dict[str, Dict[str, Any]] = {
    "BertForSequenceClassification": {"num_hidden_layers": 4},
    "GPT2LMHeadModel": {"n_layer": 4},
    "LlamaForCausalLM": {
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
    },
    "T5ForConditionalGeneration": {"num_layers": 2, "decoder_start_token_id": 0},
    "DistilBertForMaskedLM": {"n_layers": 3},
}
RECURRENT = ("LSTM", "GRU")


def image(name: str) -> Made:
    """A timm model and its batches."""
    import timm

    def batch(rows: int) -> Inputs:
        return Inputs((torch.empty(rows, 3, 224, 224, device=META),), {}, _whole(rows))

    return timm.create_model(name, pretrained=False), batch


def text(name: str, **options: Any) -> Made:
    """A transformers model on the meta device and its batches."""
    import transformers

    kind = getattr(transformers, name)
    with META:
        model = kind(kind.config_class(**options))

    def batch(rows: int) -> Inputs:
        labels = _whole(rows) if "Sequence" in name else _whole(rows, 128)
        return Inputs((), {"input_ids": _whole(rows, 128), "labels": labels})

    return model, batch


def recurrent(name: str) -> Made:
    """A recurrent network over series of numbers."""

    class Series(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = getattr(torch.nn, name)(64, 256, 2, batch_first=True)
            self.head = torch.nn.Linear(256, 10)

        def forward(self, data: torch.Tensor) -> Any:
            return self.head(self.cells(data)[0][:, -1])

    return Series(), lambda rows: Inputs((torch.empty(rows, 100, 64, device=META),), {}, _whole(rows))


def _whole(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=META)


def resnet50() -> str:
    """Seconds of tracing alone; the first trace also loads what PyTorch loads late."""
    model, batch = image("resnet50")
    times = []
    for _ in range(3):
        started, cpu = time.monotonic(), time.process_time()
        summarize(model, batch, batch_size=64, optimizer="adam")
        times.append((time.monotonic() - started, time.process_time() - cpu))
    first, best = times[0], min(times)
    said = f"ResNet-50 traced in {best[0]:.2f} s ({best[1]:.2f} s of CPU)"
    return f"{said}, the first time {first[0]:.2f} s (< 1 s)"


def resnet152() -> str:
    """Bytes of the summary file."""
    model, batch = image("resnet152")
    content = to_json(summarize(model, batch, batch_size=64, optimizer="adam")).encode()
    packed = len(gzip.compress(content))
    return f"ResNet-152's summary: {len(content) / 1e6:.2f} MB, compressed {packed / 1e6:.2f} MB (< 2 MB)"


def llama() -> str:
    """Memory of tracing seven billion parameters."""
    model, batch = text("LlamaForCausalLM")
    count = sum(p.numel() for p in model.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    summarize(model, batch, batch_size=1, optimizer="adamw", precision="amp-bf16")
    cpu = time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (
        f"Llama with {count / 1e9:.1f} billion parameters: {after / 2**20:.2f} GiB of memory in all, "
        f"{before / 2**20:.2f} GiB before the trace, {cpu:.1f} s of CPU (< 2 GB)"
    )


def scaling(name: str) -> str:
    """The worst of the four other batch sizes."""
    if name in TEXTS:
        model, batch = text(name, **TEXTS[name])
    else:
        model, batch = recurrent(name) if name in RECURRENT else image(name)
    gpu = find_gpu("h200")

    def traced(rows: int) -> Any:
        return summarize(model, batch, batch_size=rows, optimizer="adam").trace

    one = traced(BATCH)
    errors: List[float] = []
    for factor in FACTORS:
        rows = int(BATCH * factor)
        context = gpu.context_for(conv=one.uses_conv, matmul=one.uses_matmul) << 20
        fresh = replay(traced(rows), rows, gpu).stats
        scaled = replay(one, rows, gpu).stats
        errors.append((scaled.peak_reserved + context) / (fresh.peak_reserved + context) - 1)
    said = ", ".join(f"x{factor:g} {error:+.2%}" for factor, error in zip(FACTORS, errors))
    return f"{name}: {said}"


def main(argv: List[str]) -> int:
    """One figure in this process, or all of them in children."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    figures = {"resnet50": resnet50, "resnet152": resnet152, "llama": llama}
    if argv[:1] == ["figure"]:
        print(figures[argv[1]]() if argv[1] in figures else "")
        return 0
    if argv[:1] == ["scaling"]:
        for name in (*IMAGES, *TEXTS, *RECURRENT):
            print(scaling(name), flush=True)
        return 0
    for arguments in (*(["figure", name] for name in figures), ["scaling"]):
        subprocess.run([sys.executable, __file__, *arguments], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
