"""Single operators whose allocations on a GPU are not seen on meta tensors: what to run, by kind.

A case is a dictionary that goes into the result as it is; `forward_of` turns it into something to run.
"""

from __future__ import annotations

import gzip
import json
import random
from itertools import product
from math import prod
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.places import PLANS

SHAPES = PLANS / "convolutions.json.gz"
"""Distinct convolutions of the catalogue's development models:
[channels, outputs, size, kernel, stride, padding, dilation, transposed, output padding, groups]."""
RUNS = PLANS / "convolutions-of-runs.json.gz"
"""The same with the type, channels last and the batch of a measured run (shapes.py)."""
TIMM = PLANS / "convolutions-of-timm.json.gz"
"""Those of timm's models that are not of the hold-out part, as SHAPES (shapes.py)."""
LARGEST_TENSOR = 768 << 20
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Case = Dict[str, Any]
Shape = List[Any]
"""A convolution as SHAPES has it."""
Forward = Tuple[Callable[[], Tensor], List[Tensor]]
"""What to run, and the tensors whose gradients are wanted."""


def all_cases(seed: int) -> List[Case]:
    """Every case, in a random order that a seed fixes."""
    rng = random.Random(seed)
    cases = [*_convolutions(rng), *_attention(), *_recurrent(), *_others()]
    rng.shuffle(cases)
    return cases


def timm_cases(seed: int) -> List[Case]:
    """The convolutions of timm's models, at the pictures' own and other sizes, in a random order."""
    rng = random.Random(seed)
    with gzip.open(TIMM, "rt") as file:
        shapes = json.load(file)
    cases = []
    for shape in shapes:
        for dtype, last, share in _TIMM_FORMS:
            if rng.random() > share:
                continue
            sized = _resized(shape, rng.choice(_SIDES) / _SIDE)
            cases += [
                convolution_case(sized, dtype, last=last, batch=batch) for batch in _batches(sized, rng)
            ]
    rng.shuffle(cases)
    return cases


_SIDE, _SIDES = 224, (224, 224, 224, 128, 160, 192, 256, 288, 320, 384)
"""Sides of pictures: most models' own, and what people train with."""
_TIMM_FORMS = (
    ("fp32", False, 1.0),
    ("bf16", False, 1.0),
    ("fp16", False, 0.4),
    ("bf16", True, 0.15),
    ("fp32", True, 0.1),
)


def _resized(shape: Shape, times: float) -> Shape:
    """The same convolution over larger or smaller pictures."""
    sizes = zip(shape[2], shape[3], shape[5], shape[6])
    size = [
        max(round(n * times), dilation * (kernel - 1) + 1 - 2 * padding, 1)
        for n, kernel, padding, dilation in sizes
    ]
    # Sides of 1 are means over the picture: they stay.
    return [*shape[:2], [new if n > 1 else 1 for n, new in zip(shape[2], size)], *shape[3:]]


_FORMS = (
    ("fp32", False, 1.0),
    ("bf16", False, 1.0),
    ("bf16", True, 0.3),
    ("fp32", True, 0.3),
    ("fp16", False, 0.1),
)
"""Data type, channels last, and for which share of the shapes."""


def _convolutions(rng: random.Random) -> List[Case]:
    with gzip.open(SHAPES, "rt") as file:
        shapes = [*json.load(file), *_invented(rng)]
    cases = []
    for shape in shapes:
        for dtype, last, share in _FORMS:
            if rng.random() > share or (last and len(shape[2]) != 2):
                continue
            cases += [
                convolution_case(shape, dtype, last=last, batch=batch) for batch in _batches(shape, rng)
            ]
    with gzip.open(RUNS, "rt") as file:
        return cases + [
            convolution_case(shape, dtype, last=last, batch=batch)
            for *shape, dtype, last, batch in json.load(file)
        ]


def convolution_case(shape: Shape, dtype: str, *, last: bool, batch: int) -> Case:
    """One convolution of SHAPES as a case."""
    (
        channels,
        outputs,
        size,
        kernel,
        stride,
        padding,
        dilation,
        transposed,
        extra,
        groups,
    ) = shape
    return {
        "kind": "conv", "dtype": dtype, "channels_last": last, "batch": batch,
        "channels": channels, "outputs": outputs, "size": size, "kernel": kernel,
        "stride": stride, "padding": padding, "dilation": dilation, "transposed": transposed,
        "output_padding": extra, "groups": groups,
    }  # fmt: skip


def case_of(row: Dict[str, Any]) -> Case:
    """The case that a result is of."""
    return {name: row[name] for name in row if name not in ("forward", "backward", "error")}


def _batches(shape: Shape, rng: random.Random) -> List[int]:
    """One of any size, and a large one, half of them powers of two."""
    channels, outputs, size, stride = shape[0], shape[1], shape[2], shape[4]
    sample = 4 * max(channels * prod(size), outputs * prod(size) // max(1, prod(stride)))
    most = max(2, min(4096, LARGEST_TENSOR // max(sample, 1))).bit_length() - 1
    powers = [rng.uniform(0, most), rng.uniform(max(0, most - 3), most)]
    powers = [round(power) if rng.random() < 0.5 else power for power in powers]
    return sorted({max(1, int(2**power)) for power in powers})


def _invented(rng: random.Random) -> List[Shape]:
    """Shapes that the catalogue has few of: one and three dimensions, odd numbers of channels."""
    shapes: List[Shape] = []
    for dimensions, count in ((1, 450), (2, 900), (3, 150)):
        for _ in range(count):
            kernel, stride = rng.choice((1, 3, 3, 5, 7, 2, 4)), rng.choice((1, 1, 1, 2))
            length = int(2 ** rng.uniform(*{1: (5, 13), 2: (2.5, 8), 3: (2.5, 6)}[dimensions]))
            dilation = rng.choice((1, 1, 1, 2, 4)) if kernel > 1 and stride == 1 else 1
            channels, outputs = (_channels(rng) for _ in range(2))
            shapes.append(
                [
                    channels, outputs, [max(length, dilation * (kernel - 1) + 1)] * dimensions,
                    [kernel] * dimensions, [stride] * dimensions,
                    [dilation * (kernel - 1) // 2] * dimensions, [dilation] * dimensions,
                    False, [0] * dimensions, 1,
                ]
            )  # fmt: skip
    return shapes


def _channels(rng: random.Random) -> int:
    """From 3 to 1024; a third a multiple of 8, a third of 2."""
    step = rng.choice((8, 2, 1))
    return max(1, round(2 ** rng.uniform(1.6, 10) / step)) * step


def _attention() -> List[Case]:
    cases: List[Case] = []
    lengths, masks = (197, 256, 1024), ("none", "bool", "float", "causal")
    for dtype, head, length, mask, drop in product(
        ("fp32", "bf16"), (32, 64, 80, 128), lengths, masks, (0.0, 0.1)
    ):
        cases.append(
            {
                "kind": "attention", "dtype": dtype, "head": head, "length": length, "mask": mask,
                "dropout": drop, "batch": 4, "heads": 8, "transposed": True,
            }
        )  # fmt: skip
    for dtype, mask in product(("fp32", "bf16"), masks):
        shared = {
            "kind": "attention",
            "dtype": dtype,
            "mask": mask,
            "dropout": 0.0,
            "batch": 4,
            "heads": 8,
        }
        cases.append({**shared, "head": 64, "length": 512, "groups": 4, "transposed": True})
        cases.append({**shared, "head": 64, "length": 512, "transposed": False})
        cases.append({**shared, "head": 64, "length": 50, "keys": 300, "transposed": True})
        cases.append({**shared, "head": 36, "length": 49, "transposed": True})
    for dtype, length, head, rows, drop in product(
        ("fp32", "bf16"), (49, 196, 197, 256), (32, 64), (1, 4), (0.0, 0.1)
    ):
        cases.append(
            {
                "kind": "attention", "dtype": dtype, "head": head, "length": length, "mask": "learned",
                "mask_rows": rows, "dropout": drop, "batch": 4, "heads": 8, "transposed": True,
            }
        )  # fmt: skip
    return cases


def _recurrent() -> List[Case]:
    return [
        {
            "kind": "recurrent", "cell": cell, "dtype": dtype, "autocast": autocast, "layers": layers,
            "both": both, "dropout": drop, "batch": batch, "length": length, "features": 96, "hidden": hidden,
        }
        for cell, (dtype, autocast), (layers, drop), both, batch, length, hidden in product(
            ("LSTM", "GRU", "RNN"),
            (("fp32", False), ("fp32", True), ("bf16", False)),
            ((1, 0.0), (2, 0.0), (2, 0.3)),
            (False, True),
            (8, 64),
            (50, 200),
            (128, 512),
        )
    ]  # fmt: skip


def _others() -> List[Case]:
    cases: List[Case] = []
    for dtype, tokens, width in product(("fp32", "bf16"), (500, 4096, 16384), (256, 768)):
        cases.append(
            {
                "kind": "embedding",
                "dtype": dtype,
                "tokens": tokens,
                "width": width,
                "rows": 30000,
            }
        )
    for name, dtype in product(
        (
            "batch_norm", "batch_norm_last", "layer_norm", "group_norm", "instance_norm", "cross_entropy",
            "softmax", "cumsum", "gather_rows", "index_add", "bicubic", "bilinear", "nearest", "max_pool",
            "avg_pool", "adaptive_pool", "gelu", "roll", "einsum", "mse", "weight_norm", "pixel_shuffle",
            "sort", "topk", "var", "norm", "rms_norm", "prelu", "batch_norm_1d", "conv_bias_grad", "fft",
            "index_mask", "std_weight", "logsumexp", "embedding_bag", "bce", "linear_3d", "linear_bias",
            "bmm_broadcast", "grid_sample", "unfold",
        ),
        ("fp32", "bf16"),
    ):  # fmt: skip
        cases.append({"kind": "single", "name": name, "dtype": dtype})
    return cases


# -- What a case runs ----------------------------------------------------------------------------


def forward_of(case: Case, device: torch.device) -> Forward:
    """The function to run and the tensors it needs, on the device already."""
    return _KINDS[case["kind"]](case, device, DTYPES[case["dtype"]])


def _conv(case: Case, device: torch.device, dtype: torch.dtype) -> Forward:
    groups, kernel = case["groups"], tuple(case["kernel"])
    x = torch.randn(case["batch"], case["channels"], *case["size"], device=device, dtype=dtype)
    if case["transposed"]:
        w = torch.randn(
            case["channels"],
            case["outputs"] // groups,
            *kernel,
            device=device,
            dtype=dtype,
        )
    else:
        w = torch.randn(
            case["outputs"],
            case["channels"] // groups,
            *kernel,
            device=device,
            dtype=dtype,
        )
    if case["channels_last"]:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    leaves = [x.requires_grad_(), w.requires_grad_()]
    options = (
        case["stride"],
        case["padding"],
        case["dilation"],
        case["transposed"],
        case["output_padding"],
    )
    return lambda: torch.convolution(x, w, None, *options, groups), leaves


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
    "conv": _conv,
    "attention": _attend,
    "recurrent": _recur,
    "embedding": _embed,
    "single": _single,
}
