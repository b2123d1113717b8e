"""Checks of the tracer, run in a process of their own: torch does not like to be forked or traced twice.

    python -m tests.tracing.tracing_checks NAME

Each check prints what it found as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from slurm_gpumem import summarize
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import replay, site_sizes
from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.trace_types import evaluate

torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        result: torch.Tensor = self.out(seen.transpose(1, 2).flatten(2).mean(1))
        return result


class Reader(nn.Module):
    """Reads values: a mask and a number of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        if not mask.all():
            raise ValueError("the mask's own value was not seen")
        if x.sum().item() > 1e9:
            raise ValueError("a made-up value is a small one")
        result: torch.Tensor = self.layer(x[mask])
        return result


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(16, 32, 2, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x)[0][:, -1])
        return result


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def images(rows: int) -> torch.Tensor:
    return torch.empty(rows, 3, 32, 32, device="meta")


def kernels() -> Dict[str, Any]:
    """What the networks of these checks give a GPU to do, by kind and phase."""
    found: Dict[str, Any] = {}
    models = {"cnn": (cnn(), images(16)), "attention": (Attention(), torch.empty(16, 12, 64, device="meta"))}
    models["recurrent"] = (Recurrent(), torch.empty(16, 7, 16, device="meta"))
    for name, (model, batch) in models.items():
        trace = summarize(model, batch).trace
        assert trace is not None
        rows: Dict[str, Any] = {}
        for kernel in trace.kernels:
            sizes = [
                [evaluate(size, 16) for size in kernel.sizes],
                [evaluate(size, 32) for size in kernel.sizes],
            ]
            rows.setdefault(f"{kernel.kind} {kernel.phase}", []).append([kernel.times, *sizes])
        found[name] = rows
    return found


def small_cnn() -> Dict[str, Any]:
    summary = summarize(cnn(), images(16))
    trace = summary.trace
    assert trace is not None
    sizes: Dict[Any, int] = {}
    for site in trace.sites:
        key = (site.operator, site.module, site.category)
        sizes[key] = max(sizes.get(key, 0), site.bytes_at(16))
    return {
        "output": sizes["aten::convolution", "0", "activations"],
        "gradient": sizes["aten::convolution_backward", "0", "gradients"],
        "mask": min(s.bytes_at(16) for s in trace.sites if s.operator == "aten::native_dropout"),
        "optimizer_at_rest": sum(
            trace.sites[v].bytes_at(16)
            for i, v in enumerate(trace.events)
            if v >= 0 and trace.sites[v].category == "optimizer" and trace.phase_of(i).step == 1
        ),
        "params": summary.total_params,
        "layers": [layer.kind for layer in summary.layers],
        "convolutions": sorted({s.convolution.call for s in trace.sites if s.convolution}),
        "text": to_json(summary),
        "conv": trace.uses_conv,
        "matmul": trace.uses_matmul,
    }


def attention() -> Dict[str, Any]:
    found = {}
    for precision in ("fp32", "amp-bf16"):
        trace = summarize(Attention(), torch.empty(8, 50, 64, device="meta"), precision=precision).trace
        assert trace is not None
        found[precision] = sorted({s.operator for s in trace.sites if "attention" in s.operator})
        found[f"{precision} scores"] = any(s.bytes_at(8) == 8 * 4 * 50 * 50 * 4 for s in trace.sites)
    return found


def autocast() -> Dict[str, Any]:
    result = {}
    for precision in ("fp32", "amp-bf16"):
        trace = summarize(cnn(), images(64), precision=precision).trace
        assert trace is not None
        sites = [s for s in trace.sites if s.operator == "aten::convolution" and s.category == "activations"]
        result[precision] = max(s.bytes_at(64) for s in sites)
    result["outside"] = torch.nn.functional.linear(torch.ones(1, 2), torch.ones(3, 2)).dtype == torch.float32
    return result


def scaling() -> Dict[str, Any]:
    worst = 0.0
    for model, make in ((cnn(), images), (Attention(), lambda n: torch.empty(n, 50, 64, device="meta"))):
        base = summarize(model, make(64)).trace
        assert base is not None
        for batch in (16, 256):
            fresh = summarize(model, make(batch)).trace
            assert fresh is not None
            a, b = replay(base, batch).stats, replay(fresh).stats
            worst = max(
                worst,
                abs(a.peak_allocated / b.peak_allocated - 1),
                abs(a.peak_reserved / b.peak_reserved - 1),
            )
    return {"worst": worst}


def reader() -> Dict[str, Any]:
    summary = summarize(Reader(), torch.empty(4, 8, device="meta"), optimizer="sgd")
    assert summary.trace is not None
    return {"remarks": summary.trace.remarks}


class Guarded(nn.Module):
    """Looks at its data and stops where they are too large; nobody knows the numbers of a traced batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x >= 32).any():
            raise ValueError("too large")
        out: torch.Tensor = self.linear(x)
        return out


class GuardedElsewhere(Guarded):
    """The line that reads the truth does not show that it leads to an error."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        too_large = bool((x.abs() >= 32).any())
        if too_large:
            raise ValueError("too large")
        out: torch.Tensor = self.linear(x)
        return out


def guarded() -> Dict[str, Any]:
    remarks = []
    for model in (Guarded(), GuardedElsewhere()):
        summary = summarize(model, torch.empty(4, 8, device="meta"), optimizer="sgd")
        assert summary.trace is not None
        remarks.append(summary.trace.remarks)
    return {"remarks": remarks}


def recurrent() -> Dict[str, Any]:
    summary = summarize(Recurrent(), torch.empty(8, 300, 16, device="meta"))
    assert summary.trace is not None
    return {"events": len(summary.trace.events), "kinds": [layer.kind for layer in summary.layers]}


def frozen() -> Dict[str, Any]:
    model = cnn()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    own = torch.optim.SGD(trained, lr=0.1, momentum=0.9, fused=True)
    before = [p.device.type for p in model.parameters()]
    summary = summarize(model, images(4), optimizer=own)
    assert summary.trace is not None
    gradients = {s.module for s in summary.trace.sites if s.category == "gradients"}
    return {
        "gradients": sorted(gradients),
        "optimizer": summary.trace.job.optimizer,
        "trainable": summary.trainable_params,
        "untouched": before == [p.device.type for p in model.parameters()],
    }


class Labels(nn.Module):
    """Compares labels with a table that it makes from numbers on its input's device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = torch.tensor([3, 5], device=x.device)
        result: torch.Tensor = self.layer(x).repeat(1, int((sizes + 1).max()))
        return result


def constants() -> Dict[str, Any]:
    trace = summarize(Labels(), torch.empty(2, 8, device="meta")).trace
    assert trace is not None
    widest = max(s.bytes_at(2) for s in trace.sites if s.operator == "aten::repeat")
    return {"widest": widest, "remarks": trace.remarks}


class Words(nn.Module):
    """A convolution over what lies the other way round, and a skip connection around an upsampling one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(12, 24)
        self.along = nn.Conv1d(24, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.along(self.words(x).transpose(1, 2)).amax(-1)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 2, stride=2)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shallow = self.first(x)
        joined = torch.cat([shallow, self.up(self.down(shallow))], 1)
        return self.last(joined).mean((2, 3))


class Tokens(nn.Module):
    """Pictures as tokens and back: convolutions go on channels last, a group norm does not."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.tokens = nn.Linear(6, 16)
        self.along = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.GroupNorm(1, 16) if norm else nn.Identity()
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, places, _ = x.shape
        side = int(places**0.5)
        seen = self.norm(self.tokens(x).transpose(1, 2).reshape(rows, 16, side, side))
        return self.head(self.along(seen).flatten(2).transpose(1, 2)).mean(1)


def layouts() -> Dict[str, Any]:
    """How many blocks of the size of a copy each operator took in a step."""

    def taken(model: nn.Module, batch: torch.Tensor, operator: str, size: int) -> int:
        trace = summarize(model, batch, optimizer="sgd").trace
        assert trace is not None
        sizes = [site.bytes_at(trace.job.batch) for site in trace.sites]
        first = next(p.event for p in trace.phases if p.step == 2)
        last = next(p.event for p in trace.phases if p.step == 3)
        return sum(
            value >= 0 and trace.sites[value].operator == operator and sizes[value] == size
            for value in trace.events[first:last]
        )

    words, pictures = torch.randn(4, 32, 12), torch.randn(4, 3, 32, 32)
    tokens = torch.randn(4, 256, 6)
    sequence, half, whole = 4 * 32 * 24 * 4, 4 * 8 * 32 * 32 * 4, 4 * 256 * 16 * 4
    return {
        "sequence": taken(Words(), words, "aten::convolution", sequence),
        "sequence back": taken(Words(), words, "aten::convolution_backward", sequence),
        "gradient of a part": taken(Skip(), pictures, "aten::convolution_backward", half),
        "plain": taken(Tokens(norm=False), tokens, "aten::clone", whole),
        "group norm": taken(Tokens(norm=True), tokens, "aten::clone", whole),
    }


def _ctc(out: torch.Tensor, target: Any) -> torch.Tensor:
    scores = out.log_softmax(-1).transpose(0, 1)
    steps, rows, _ = scores.shape
    words = torch.ones(rows, 5, dtype=torch.int64, device=scores.device)
    lengths = [torch.full((rows,), count, device=scores.device) for count in (steps, 5)]
    return nn.functional.ctc_loss(scores, words, *lengths)


def ctc() -> Dict[str, Any]:
    trace = summarize(nn.Linear(8, 20), torch.empty(4, 30, 8, device="meta"), loss=_ctc).trace
    assert trace is not None
    return {
        "way": trace.way,
        "sizes": [s.bytes_at(4) for s in trace.sites if s.operator == "aten::_ctc_loss"],
    }


class Proposals(nn.Module):
    """Boxes of each image as detectors keep them: without those that overlap, at most a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        boxes = self.boxes(x.flatten(0, 1))
        kept = torch.ops.torchvision.nms(boxes.detach(), boxes.detach()[:, 0], 0.5)[:100]
        return boxes[kept]


def detector() -> Dict[str, Any]:
    # torchvision's wheels for the CPU are not everywhere: its operator by name, refusing as it does.
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def refuses(*_: Any) -> torch.Tensor:
        raise RuntimeError("the number of boxes is not known for meta tensors")

    library.impl("nms", refuses, "Meta")
    trace = summarize(Proposals(), torch.empty(4, 200, 8, device="meta")).trace
    assert trace is not None
    return {
        "way": trace.way,
        "sizes": [s.bytes_at(4) for s in trace.sites if s.operator == "aten::index"],
        "remarks": list(trace.remarks),
    }


def scripted() -> Dict[str, Any]:
    plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    whole: nn.Module = torch.jit.script(plain)
    peaks = []
    for model in (plain, whole):
        trace = summarize(model, images(16)).trace
        assert trace is not None
        peaks.append(replay(trace, None, None).stats.peak_allocated)
    return {"peaks": peaks, "way": trace.way, "untouched": next(whole.parameters()).device.type}


class Step(nn.Module):
    """One operator between a product that needs gradients and a mean."""

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor], *weights: int) -> None:
        super().__init__()
        self.run = run
        self.weight = nn.Parameter(torch.empty(weights or (1,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x * self.weight)


def taken(model: nn.Module, data: torch.Tensor, **options: Any) -> List[List[Any]]:
    """Operator and bytes of all allocations of a second step, on a GPU with 132 multiprocessors."""
    trace = summarize(model, data, loss=lambda out, _: (out * out).sum(), **options).trace
    assert trace is not None
    sizes = site_sizes(trace, None, find_gpu("h200"))
    begin = next(phase.event for phase in trace.phases if phase.step == 2)
    end = next((phase.event for phase in trace.phases if phase.step > 2), len(trace.events))
    return [[trace.sites[v].operator, sizes[v]] for v in trace.events[begin:end] if v >= 0 and sizes[v]]


def buffers() -> Dict[str, Any]:
    """Sums over many numbers, in the shapes of operators that were recorded on an H200."""

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    def pictures(x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2)

    wide = nn.Conv2d(512, 2048, 1)
    return {
        "bias": taken(nn.Sequential(Step(pictures, 512), wide), empty(64, 7, 7, 512)),
        "bias side by side": taken(wide, empty(64, 512, 7, 7)),
        "squeeze": taken(Step(lambda x: pictures(x).mean((2, 3)), 64), empty(8, 112, 112, 64)),
        "squeeze side by side": taken(Step(lambda x: x.mean((2, 3))), empty(8, 64, 112, 112)),
        "channels": taken(Step(lambda x: x.mean(1)), empty(16, 1024, 32, 32)),
        "norm": taken(
            Step(lambda x: torch.linalg.vector_norm(x, dim=(1, 2)), 320),
            empty(32, 56, 56, 320),
        ),
        "tall layer norm": taken(nn.LayerNorm(96), empty(200_704, 96)),
        "taller layer norm": taken(nn.LayerNorm(96), empty(401_408, 96)),
    }


def as_on_cuda() -> Dict[str, Any]:
    """What CUDA does for some types, shapes and devices only."""
    tokens = torch.empty(8, 50, 64, device="meta")

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.matmul(x, x.transpose(1, 2)), -1)

    def shared(x: torch.Tensor) -> torch.Tensor:
        query, one = x.view(-1, 50, 4, 16).transpose(1, 2), x[..., :16].unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(query, one, one)

    def rolled(x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, (1, 2, 3), (0, 1, 2))

    def ordered(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 5000).sort(descending=True)[0]

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pair = nn.Linear(64, 32), nn.Bilinear(32, 64, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.pair(self.first(x), x))

    library = ModuleType("transformers.utils.generic")
    library.maybe_autocast = (  # type: ignore[attr-defined]
        lambda device_type, enabled=True: (
            nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=enabled)
        )
    )
    sys.modules[library.__name__] = library

    def switched_off(x: torch.Tensor) -> torch.Tensor:
        with library.maybe_autocast(x.device.type, enabled=False):
            return torch.matmul(x, x.transpose(1, 2))

    return {
        "softmax bf16": taken(Step(softmax), tokens, precision="amp-bf16"),
        "softmax fp16": taken(Step(softmax), tokens, precision="amp-fp16"),
        "shared heads": taken(Step(shared), tokens, precision="amp-bf16"),
        "rolled": taken(Step(rolled), tokens),
        "scored": taken(Scored(), tokens),
        "ordered": {
            rows: taken(Step(ordered), torch.empty(rows, 5000, device="meta")) for rows in (1, 100, 200)
        },
        "switched off": taken(Step(switched_off), tokens, precision="amp-bf16"),
    }


def sparse() -> Dict[str, Any]:
    model = nn.EmbeddingBag(100, 10, sparse=True, mode="sum")
    tokens = torch.zeros(4, 6, dtype=torch.int64)
    trace = summarize(model, tokens, optimizer=lambda p: torch.optim.SGD(p, 0.1)).trace
    assert trace is not None
    return {"way": trace.way}


CHECKS: Dict[str, Callable[[], Dict[str, Any]]] = {
    f.__name__: f
    for f in (
        small_cnn,
        attention,
        autocast,
        scaling,
        reader,
        guarded,
        recurrent,
        frozen,
        constants,
        ctc,
        detector,
        sparse,
        layouts,
        kernels,
        scripted,
        buffers,
        as_on_cuda,
    )
}

if __name__ == "__main__":
    print(json.dumps({name: CHECKS[name]() for name in sys.argv[1:]}))
