"""Fine-tune a language model of random weights on random tokens, as people's scripts do it."""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
    },
    "3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
}
KEYS = {"0.5b": 2, "1b": 4, "3b": 8, "8b": 8}


class LoRALinear(nn.Module):
    """A frozen layer and two small trained ones beside it."""

    def __init__(self, base: nn.Linear, rank: int, alpha: int, dropout: float) -> None:
        super().__init__()
        self.base = base
        where, kind = base.weight.device, base.weight.dtype
        self.down = nn.Linear(base.in_features, rank, bias=False, device=where, dtype=kind)
        self.up = nn.Linear(rank, base.out_features, bias=False, device=where, dtype=kind)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)
        self.dropout = nn.Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: torch.Tensor) -> Any:
        """Both, added."""
        return self.base(x) + self.up(self.down(self.dropout(x))) * self.scale


def add_lora(model: nn.Module, rank: int) -> None:
    """Small trained layers beside every projection."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name.endswith(("_proj", "query_key_value", "dense")):
                setattr(module, name, LoRALinear(child, rank, 2 * rank, 0.05))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="llama")
    parser.add_argument("--size", default="1b", choices=SIZES)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--method", default="full", choices=("full", "lora", "generate"))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--amp", action="store_true", help="fp32 weights, bf16 autocast")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--new-tokens", type=int, default=0)
    parser.add_argument("--pack", action="store_true", help="lengths between a quarter of --seq and --seq")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    """Train a few steps, or generate."""
    args = parse()
    torch.manual_seed(0)
    names: dict[str, Any] = dict(SIZES[args.size], vocab_size=args.vocab, max_position_embeddings=8192)
    if args.arch not in ("gpt_neox", "opt"):
        names["num_key_value_heads"] = KEYS[args.size]
    config = AutoConfig.for_model(args.arch, **names)
    config._attn_implementation = args.attention
    config.use_cache = args.method == "generate" or args.new_tokens > 0
    torch.set_default_dtype(torch.float32 if args.amp else torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    prompt = torch.randint(0, args.vocab, (args.batch_size, args.seq))
    if args.method == "generate":
        with torch.inference_mode():
            model.eval().generate(
                prompt.cuda(), max_new_tokens=args.new_tokens, do_sample=False, eos_token_id=None
            )
        print("done")
        return
    if args.method == "lora":
        add_lora(model, args.rank)
    if args.checkpointing:
        model.gradient_checkpointing_enable()
        if args.method == "lora":
            model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    if args.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(trained, lr=1e-5)
    elif args.optimizer == "adamw_fused":
        optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    elif args.optimizer == "adafactor":
        optimizer = torch.optim.Adafactor(trained, lr=1e-5)
    else:
        optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
    model.train()
    for step in range(args.steps):
        for part in range(args.accumulate):
            length = args.seq
            if args.pack and (step + part) % 4 != 2:
                length = args.seq // 4 + (step * 37 + part * 11) % (args.seq // 2)
            tokens = torch.randint(0, args.vocab, (args.batch_size, length)).to("cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp):
                loss = model(input_ids=tokens, labels=tokens).loss
            (loss / args.accumulate).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.3f} norm {norm.item():.3f}")
    if args.new_tokens:
        model.eval()
        with torch.no_grad():
            model.generate(
                prompt[:, :32].cuda(), max_new_tokens=args.new_tokens, do_sample=False, eos_token_id=None
            )


if __name__ == "__main__":
    main()
