"""Fine-tune a language model of random weights with peft, bitsandbytes and Liger, as scripts do it."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from finetune import KEYS, SIZES
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="llama")
    parser.add_argument("--size", default="1b", choices=SIZES)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--bits", type=int, default=16, choices=(4, 8, 16, 32))
    parser.add_argument("--quant", default="nf4", choices=("nf4", "fp4"))
    parser.add_argument("--single", action="store_true", help="scales that are not quantized themselves")
    parser.add_argument("--rank", type=int, default=0, help="of LoRA; 0: full tuning")
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--dora", action="store_true")
    parser.add_argument("--classes", type=int, default=0, help="a head for this many classes")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--texts", action="store_true", help="of different lengths, padded in each batch")
    parser.add_argument("--packed", action="store_true", help="four texts in a row, told apart by positions")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp16", action="store_true", help="autocast in fp16 with a GradScaler")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "adamw8bit", "lion8bit", "sgd"))
    parser.add_argument("--liger", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def quantize(model: nn.Module, args: argparse.Namespace) -> Any:
    """Linear layers of few bits for all but the head, each filled and moved to the GPU by itself."""
    import bitsandbytes as bnb

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if not isinstance(child, nn.Linear) or name in ("lm_head", "score"):
                continue
            shape = (child.in_features, child.out_features)
            weight = torch.zeros(child.out_features, child.in_features, dtype=torch.bfloat16)
            new: Any
            if args.bits == 4:
                new = bnb.nn.Linear4bit(
                    *shape,
                    bias=False,
                    compute_dtype=torch.bfloat16,
                    compress_statistics=not args.single,
                    quant_type=args.quant,
                    device="meta",
                )
                new.weight = bnb.nn.Params4bit(
                    weight,
                    requires_grad=False,
                    quant_type=args.quant,
                    compress_statistics=not args.single,
                    module=new,
                )
            else:
                new = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False, device="meta")
                new.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
            if child.bias is not None:
                new.bias = nn.Parameter(torch.zeros(child.out_features, dtype=torch.bfloat16))
            setattr(parent, name, new.to("cuda"))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                value = torch.zeros(parameter.shape, dtype=torch.bfloat16, device="cuda")
                setattr(module, name, nn.Parameter(value, requires_grad=False))
    return model


def build(args: argparse.Namespace) -> Any:
    """The model with its weights on the GPU."""
    names: dict[str, Any] = dict(SIZES[args.size], vocab_size=args.vocab, max_position_embeddings=8192)
    if args.arch not in ("gpt_neox", "opt"):
        names["num_key_value_heads"] = KEYS[args.size]
    config = AutoConfig.for_model(args.arch, **names)
    config.use_cache = False
    config.pad_token_id = 0
    if args.classes:
        config.num_labels = args.classes
    kind = AutoModelForSequenceClassification if args.classes else AutoModelForCausalLM
    torch.set_default_dtype(torch.float32 if args.bits == 32 else torch.bfloat16)
    with torch.device("meta" if args.bits < 16 else "cuda"):
        model = kind.from_config(config)
    torch.set_default_dtype(torch.float32)
    if args.bits < 16:
        rotary = type(model.model.rotary_emb)
        model = quantize(model, args)
        model.model.rotary_emb = rotary(config).to("cuda")
        setattr(model, f"is_loaded_in_{args.bits}bit", True)
    if args.liger:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    return model


def adapt(model: Any, args: argparse.Namespace) -> Any:
    """LoRA by peft, and checkpointing."""
    if args.bits < 16:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=args.checkpointing)
    elif args.checkpointing:
        model.gradient_checkpointing_enable()
        if args.rank:
            model.enable_input_require_grads()
    if args.rank:
        from peft import LoraConfig, get_peft_model

        targets = args.targets if args.targets == "all-linear" else args.targets.split(",")
        how = LoraConfig(
            r=args.rank,
            lora_alpha=2 * args.rank,
            lora_dropout=0.05,
            target_modules=targets,
            use_dora=args.dora,
            task_type="SEQ_CLS" if args.classes else "CAUSAL_LM",
        )
        model = get_peft_model(model, how)
    return model


def optimizer_of(trained: list[nn.Parameter], name: str) -> Any:
    """The optimizer."""
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=1e-5)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-3)
    import bitsandbytes as bnb

    return (bnb.optim.AdamW8bit if name == "adamw8bit" else bnb.optim.Lion8bit)(trained, lr=1e-5)


def loader(args: argparse.Namespace) -> Any:
    """Texts between an eighth of --seq and --seq, padded to the longest of their batch."""
    lengths = [args.seq // 8 + (at * 997) % (args.seq - args.seq // 8) for at in range(64 * args.batch_size)]
    lengths[args.batch_size] = args.seq
    texts = [{"input_ids": [1 + at % 1000] * length} for at, length in enumerate(lengths)]

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids}

    return torch.utils.data.DataLoader(texts, batch_size=args.batch_size, collate_fn=collate)  # type: ignore[arg-type]


def batches(args: argparse.Namespace) -> Any:
    """As many as the steps need."""
    if args.texts:
        yield from loader(args)
        return
    for _ in range(args.steps * args.accumulate):
        ids = torch.randint(1, args.vocab, (args.batch_size, args.seq))
        batch = {"input_ids": ids, "labels": ids}
        if args.classes:
            batch["labels"] = torch.zeros(args.batch_size, dtype=torch.long)
        if args.packed:
            batch["position_ids"] = torch.arange(args.seq // 4).repeat(args.batch_size, 4)
        yield batch


def main() -> None:
    """Train a few steps."""
    args = parse()
    torch.manual_seed(0)
    model = adapt(build(args), args)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer_of(trained, args.optimizer)
    scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
    model.train()
    for number, batch in enumerate(batches(args)):
        if number == args.steps * args.accumulate:
            break
        batch = {name: value.to("cuda") for name, value in batch.items()}
        mixed = args.fp16 or args.bits != 16
        kind = torch.float16 if args.fp16 else torch.bfloat16
        with torch.autocast("cuda", dtype=kind, enabled=mixed):
            loss = model(**batch).loss
        scaler.scale(loss / args.accumulate).backward()
        if (number + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(f"step {number // args.accumulate} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
