"""Single operators whose allocations were recorded on a GPU: what each case runs, by kind.

A case is a row of lab/data/ground-truth/operators.jsonl.xz; `forward_of` turns it into something to run.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Case = Dict[str, Any]
Forward = Tuple[Callable[[], Tensor], List[Tensor]]
"""What to run, and the tensors whose gradients are wanted."""


def forward_of(case: Case, device: torch.device) -> Forward:
    """The function to run and the tensors it needs, on the device already."""
    return _KINDS[case["kind"]](case, device, DTYPES[case["dtype"]])


def _attend(case: Case, device: torch.device, dtype: torch.dtype) -> Forward:
    keys: int = case.get("keys") or case["length"]
    heads: int = case["heads"]
    key_heads = heads // case.get("groups", 1)

    def make(length: int, count: int) -> Tensor:
        if case["transposed"]:
            shape = (case["batch"], length, count, case["head"])
            return torch.randn(shape, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        shape = (case["batch"], count, length, case["head"])
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    q, k, v = make(case["length"], heads), make(keys, key_heads), make(keys, key_heads)
    mask = None
    shape = (case["batch"], 1, case["length"], keys)
    if case["mask"] == "bool":
        mask = torch.ones(shape, device=device, dtype=torch.bool)
    elif case["mask"] == "float":
        mask = torch.zeros(shape, device=device, dtype=dtype)
    learned = []
    if case["mask"] == "learned":
        bias = torch.zeros((case["mask_rows"], heads, case["length"], keys), device=device, dtype=dtype)
        learned = [bias.requires_grad_()]
        mask = bias.expand(case["batch"], -1, -1, -1)
    options: Dict[str, Any] = {
        "dropout_p": case["dropout"],
        "is_causal": case["mask"] == "causal",
    }
    if key_heads != heads:
        options["enable_gqa"] = True
    return lambda: F.scaled_dot_product_attention(q, k, v, mask, **options), [
        q,
        k,
        v,
        *learned,
    ]


def _recur(case: Case, device: torch.device, dtype: torch.dtype) -> Forward:
    kind = getattr(nn, case["cell"])
    model = kind(
        case["features"],
        case["hidden"],
        case["layers"],
        bidirectional=case["both"],
        dropout=case["dropout"],
        batch_first=True,
    ).to(device, dtype)
    x = torch.randn(case["batch"], case["length"], case["features"], device=device, dtype=dtype)

    def forward() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=case["autocast"]):
            out: Tensor = model(x)[0]
            return out

    return forward, [x.requires_grad_(), *model.parameters()]


def _embed(case: Case, device: torch.device, dtype: torch.dtype) -> Forward:
    table = torch.randn(case["rows"], case["width"], device=device, dtype=dtype, requires_grad=True)
    ids = torch.randint(case["rows"], (case["tokens"],), device=device)
    return lambda: F.embedding(ids, table), [table]


def _single(case: Case, device: torch.device, dtype: torch.dtype) -> Forward:
    def rand(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    image, text, wide = rand(16, 64, 56, 56), rand(8, 512, 768), rand(4096, 30000)
    scale, shift = rand(64), rand(64)
    gain, offset = rand(768), rand(768)
    target = torch.randint(30000, (4096,), device=device)
    rows = torch.randint(512, (4096,), device=device)
    mean, spread = torch.zeros(64, device=device), torch.ones(64, device=device)
    last = image.detach().to(memory_format=torch.channels_last).requires_grad_()
    grid = torch.rand(16, 56, 56, 2, device=device, dtype=dtype)
    flat = rand(4096, 64)
    matrix = rand(768, 768)
    runs: Dict[str, Callable[[], Tensor]] = {
        "batch_norm": lambda: F.batch_norm(image, mean, spread, scale.float(), shift.float(), True),
        "batch_norm_last": lambda: F.batch_norm(last, mean, spread, scale.float(), shift.float(), True),
        "batch_norm_1d": lambda: F.batch_norm(flat, mean, spread, scale.float(), shift.float(), True),
        "layer_norm": lambda: F.layer_norm(text, (768,), gain, offset),
        "rms_norm": lambda: F.rms_norm(text, (768,), gain),
        "group_norm": lambda: F.group_norm(image, 8, scale, shift),
        "instance_norm": lambda: F.instance_norm(image, weight=scale.float(), bias=shift.float()),
        "cross_entropy": lambda: F.cross_entropy(wide, target),
        "softmax": lambda: F.softmax(text, -1),
        "cumsum": lambda: text.cumsum(1),
        "gather_rows": lambda: text[:, rows],
        "index_add": lambda: torch.zeros_like(flat).index_add(0, rows, flat),
        "bicubic": lambda: F.interpolate(image, scale_factor=2, mode="bicubic"),
        "bilinear": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "nearest": lambda: F.interpolate(image, scale_factor=2),
        "max_pool": lambda: F.max_pool2d(image, 3, 2, 1),
        "avg_pool": lambda: F.avg_pool2d(image, 3, 2, 1),
        "adaptive_pool": lambda: F.adaptive_avg_pool2d(image, 7),
        "gelu": lambda: F.gelu(text),
        "roll": lambda: text.roll((3, 3), (1, 2)),
        "einsum": lambda: torch.einsum("bnd,bmd->bnm", text, text),
        "mse": lambda: F.mse_loss(text, torch.zeros_like(text)),
        "weight_norm": lambda: torch._weight_norm(matrix, gain.view(768, 1), 0),
        "pixel_shuffle": lambda: F.pixel_shuffle(image, 2),
        "sort": lambda: text.sort(-1).values,
        "topk": lambda: text.topk(10, -1).values,
        "var": lambda: text.var(-1),
        "norm": lambda: text.norm(dim=-1),
        "prelu": lambda: F.prelu(image, scale),
        "conv_bias_grad": lambda: F.conv2d(image, rand(64, 64, 3, 3), scale, padding=1),
        "fft": lambda: torch.fft.rfft2(image.float(), norm="ortho").abs(),
        "index_mask": lambda: text[text[..., 0] > 0],
        "std_weight": lambda: F.batch_norm(matrix.view(1, 768, -1), None, None, gain.float(), training=True),
        "logsumexp": lambda: text.logsumexp(-1),
        "embedding_bag": lambda: F.embedding_bag(rows.view(512, 8) % 512, matrix, mode="sum"),
        "bce": lambda: F.binary_cross_entropy_with_logits(text, torch.zeros_like(text)),
        "linear_3d": lambda: F.linear(text, matrix),
        "linear_bias": lambda: F.linear(text, matrix, gain),
        "bmm_broadcast": lambda: text @ matrix,
        "grid_sample": lambda: F.grid_sample(image, grid, align_corners=False),
        "unfold": lambda: F.unfold(image, 3, padding=1),
    }
    leaves = [image, text, wide, scale, shift, gain, offset, last, flat, matrix]
    return runs[case["name"]], leaves


_KINDS: Dict[str, Callable[[Case, torch.device, torch.dtype], Forward]] = {
    "attention": _attend,
    "recurrent": _recur,
    "embedding": _embed,
    "single": _single,
}
