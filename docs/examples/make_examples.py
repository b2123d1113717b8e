"""Makes the examples' summaries with the real tools, and tells how much memory the models take.

    python docs/examples/make_examples.py summaries   # writes the .txt files beside this one
    python docs/examples/make_examples.py trace       # without a GPU: what autograd keeps, plus weights
    python docs/examples/make_examples.py measure     # with a GPU, nothing else on it: the process's memory

Needs torch, timm, transformers, torchsummary and torchinfo.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict

import torch

HERE = Path(__file__).parent
MIB = 1024 * 1024
OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd-momentum": 1}
CONTEXT_MIB = 758
"""What a process that loads cuDNN and cuBLAS holds outside the allocator, as measured on an H200."""


@dataclass(frozen=True)
class Example:
    """One training job."""

    build: Callable[[], torch.nn.Module]
    batch: int
    tool: str
    optimizer: str = "adam"
    tokens: int = 0
    """Length of the text; 0 for a model of 224-pixel images."""

    def inputs(self, batch: int, device: str = "cpu") -> torch.Tensor:
        if self.tokens:
            return torch.zeros(batch, self.tokens, dtype=torch.long, device=device)
        return torch.zeros(batch, 3, 224, 224, device=device)


def _timm(name: str) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

    return build


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    # No dropout inside attention: on a CPU it would keep matrices that no GPU kernel keeps.
    return BertForSequenceClassification(BertConfig(attention_probs_dropout_prob=0.0))


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False, attn_pdrop=0.0))


EXAMPLES: Dict[str, Example] = {
    "resnet50": Example(_timm("resnet50"), batch=128, tool="torchsummary"),
    "bert": Example(_bert, batch=64, tokens=128, tool="torchinfo", optimizer="adamw"),
    "mobilenetv3": Example(
        _timm("mobilenetv3_large_100"), batch=64, tool="torchsummary", optimizer="sgd-momentum"
    ),
    "gpt2": Example(_gpt2, batch=8, tokens=512, tool="torchinfo", optimizer="adamw"),
    "vit": Example(_timm("vit_base_patch16_224"), batch=64, tool="torchinfo", optimizer="adamw"),
}


def write_summary(name: str, example: Example) -> None:
    """The summary as a user would make it."""
    model = example.build()
    path = HERE / f"{name}.txt"
    if example.tool == "torchsummary":
        from torchsummary import summary

        with open(path, "w") as file, redirect_stdout(file):
            summary(model, (3, 224, 224), batch_size=example.batch, device="cpu")
        return
    from torchinfo import summary as info

    path.write_text(str(info(model, input_data=example.inputs(example.batch), depth=8, verbose=0)) + "\n")


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """A forward pass up to the loss."""
    if type(model).__name__ == "GPT2LMHeadModel":
        return model(inputs, labels=inputs).loss
    output: Any = model(inputs)
    logits = output.logits if hasattr(output, "logits") else output
    target = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    return torch.nn.functional.cross_entropy(logits, target)


def trace(example: Example) -> int:
    """MiB of weights, gradients, optimizer states, what autograd keeps, and a context."""
    model = example.build().train()
    one, two = (_kept_bytes(model, example.inputs(batch)) for batch in (1, 2))
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    total = parameters * (2 + OPTIMIZER_STATES[example.optimizer]) + one + (example.batch - 1) * (two - one)
    return round(total / MIB) + CONTEXT_MIB


def _kept_bytes(model: torch.nn.Module, inputs: torch.Tensor) -> int:
    """Bytes that the forward pass leaves for the backward pass, besides the weights."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: Dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = loss_of(model, inputs)
    del loss
    return sum(kept.values())


def measure(example: Example) -> int:
    """MiB that the GPU has less while this process trains; run it on an idle GPU."""
    before = _used_mib()
    model = example.build().train().cuda()
    parameters = model.parameters()
    optimizer: torch.optim.Optimizer
    if example.optimizer == "sgd-momentum":
        optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    else:
        kind = torch.optim.AdamW if example.optimizer == "adamw" else torch.optim.Adam
        optimizer = kind(parameters, lr=1e-4)
    inputs = example.inputs(example.batch, "cuda")
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model, inputs).backward()
        optimizer.step()
    torch.cuda.synchronize()
    # The allocator keeps what it once took, so the end shows the peak.
    return _used_mib() - before


def _used_mib() -> int:
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Entry point."""
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action not in ("summaries", "trace", "measure"):
        sys.exit(__doc__)
    for name in sys.argv[2:] or EXAMPLES:
        if action == "summaries":
            write_summary(name, EXAMPLES[name])
        elif action == "trace":
            print(f"{name}: {trace(EXAMPLES[name])} MiB")
        elif len(sys.argv) > 2:
            print(f"{name}: {measure(EXAMPLES[name])} MiB ({torch.cuda.get_device_name()})")
        else:
            # A process of its own for each: what one leaves behind must not count for the next.
            subprocess.run([sys.executable, __file__, "measure", name], check=True)


if __name__ == "__main__":
    main()
