"""Ways of strangers' scripts that failed once, each written again in a few lines."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import List, Sequence

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from slurm_gpumem.units import MIB
from tests.support.needs import needs_torch

pytestmark = needs_torch

HEAD = "import torch, torch.nn as nn, torch.nn.functional as F\n"
HOT = """
labels = (torch.arange(320) % 10).to("cuda", non_blocking=True)
hot = F.one_hot(labels).half()
assert hot.shape == (320, 10), hot.shape
layer = nn.Linear(64, 10).cuda(); optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for step in range(5):
    x = torch.randn(320, 64, device="cuda")
    F.cross_entropy(layer(x), hot.float()).backward(); optimizer.step(); optimizer.zero_grad()
"""
PICTURES = """
class Picture: pass
class Pad(nn.Module):
    def forward(self, picture): return torch.zeros(3, 8, 8)
pad = Pad(); model = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).cuda(); distance = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100_000):
    x = torch.stack([pad(Picture()) for _ in range(8)]).cuda()
    out = model(x)[:, : 2 + step % 7]
    distance(out, torch.zeros_like(out)).backward(); optimizer.step(); optimizer.zero_grad()
"""
LENGTHS = """
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100_000):
    x = torch.randn(8 + step % 50, 64, device="cuda")
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
DRAWN = """
import random; random.seed(1)
layers = nn.ModuleList(nn.Linear(64, 64 * scale) for scale in (2, 3, 4))
class Scaled(nn.Module):
    def __init__(self): super().__init__(); self.layers = layers
    def forward(self, x, scale): return self.layers[scale - 2](x)
model = Scaled().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(24):
    x = torch.randn(64, 64, device="cuda")
    model(x, CHOICE).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
COLLECTED = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(640, 64), torch.arange(640) % 10)
model = nn.Linear(64, 10).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    model.train()
    for x, y in DataLoader(data, 16, shuffle=True):
        F.cross_entropy(model(x.cuda()), y.cuda()).backward(); optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(x.cuda()).cpu() for x, y in DataLoader(data, 16)])
    scores = [float(found[number, label]) for number, (x, label) in enumerate(data)]
"""
PADS = """
words = torch.randint(3, 40, (4, 20)); words[0, 15:] = 0
model = nn.Embedding(40, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    texts = [row[row != 0] for row in words.cuda()]
    end = texts[0].new([2])
    padded = end.new(4, 24).fill_(1)
    for row, text in enumerate(texts):
        padded[row, : len(text) + 1] = torch.cat([text, end])
    assert [int(word) for word in padded[0]] == [*words[0, :15].tolist(), 2, *[1] * 8]
    model(padded).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
CHECKS = """
import json, math, pickle
model = nn.Linear(64, 50).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
best = -1.0
for step in range(5):
    y = model(torch.randn(8, 64, device="cuda")); y.sum().backward(); optimizer.step()
    error = (y * 0).abs().sum().item()
    share = error / (y.abs().max().item() + 1e-10)
    assert share < 1e-2, share
    if abs(error) > 1e-3: raise ValueError(error)
    assert json.loads(json.dumps({"error": error})) and type(pickle.loads(pickle.dumps(error))) is float
    quality = -10 * math.log10(error)
    if quality > best: best = quality; torch.save(model.state_dict(), "best.pt")
    labels = torch.empty(4, 8, dtype=torch.long, device="cuda")
    for row in range(4): labels[row] = torch.arange(8).cuda()
    assert labels.view(-1).max().item() + 1 == 8
torch.load("best.pt")
"""
WORDS = """
model = nn.Linear(64, 5000).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
def write(lengths, longest):
    words = lengths.new(longest, 8).fill_(2); words[0].fill_(1); kept = []
    going, lasts = lengths.clone().fill_(1), lengths.clone().fill_(1); now = 1
    LOOP
        scores = model(torch.randn(8, 64, device="cuda")); kept.append(torch.empty(1 << 20, device="cuda"))
        word = torch.topk(scores, 1)[1].squeeze(1)
        words[now] = word * going + 2 * (1 - going)
        lasts.add_(going); going.mul_(word.ne(1).long()); now += 1
        if going.max() == 0: break
    words[-1].masked_fill_(going.byte(), 1)
    assert (words == 1).sum() == 16
    return words[:now], lasts
for step in range(5):
    model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
    text, lasts = write(torch.full((8,), 9).cuda(), 24)
    assert text.shape == (24, 8) and int(lasts.max()) == 24
"""
EXPANDED = """
model = nn.Linear(64, 1024).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
lengths = torch.arange(20, 60)
for step in range(5):
    mask = torch.arange(60, device="cuda")[:, None] < lengths.cuda()[None]
    out = model(torch.randn(60, 40, 64, device="cuda"))
    chosen = out[mask.unsqueeze(-1).expand_as(out)].view(-1, 1024)
    assert len(chosen) == int(lengths.sum())
    chosen.sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
FAST_WEIGHTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.one = nn.Parameter(torch.randn(256, 64))
        self.two = nn.Parameter(torch.randn(9, 256))
    def forward(self, x, weights): return F.linear(torch.tanh(F.linear(x, weights[0])), weights[1])
net = Net().cuda(); optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(16384, 64, device="cuda")
for step in range(12):
    weights = [one * 1 for one in net.parameters()]
    for inner in range(4):
        found = torch.autograd.grad(net(x, weights).square().mean(), weights, create_graph=step > 8)
        weights = [one - 0.1 * gradient for one, gradient in zip(weights, found)]
    net(x, weights).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
CASTS = """
from torch.utils.checkpoint import checkpoint
block = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.SGD(block.parameters(), 0.1)
for step in range(5):
    x = torch.randn(32, 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad(): x = block(x)
        torch.clear_autocast_cache()
        out = checkpoint(block, x, use_reentrant=False)
    out.float().sum().backward(); optimizer.step(); optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        with torch.no_grad(): block(x)
        assert block(x).requires_grad
"""
COPIED = """
P = nn.parallel; model = nn.Linear(512, 4096).cuda(); optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    copies = P.replicate(model, devices=[0]); parts = P.scatter(torch.randn(1024, 512), target_gpus=[0])
    found = P.parallel_apply(copies, [(part,) for part in parts])
    out = P.gather(found, target_device=0)
    assert len(copies) == 1 and out.is_cuda and out.shape == (1024, 4096) and parts[0].is_cuda
    P.gather([out.mean()], target_device=0).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
TOURS = """
left = torch.ones(3072, 3, 20)
model = nn.Linear(20, 20).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for start in range(0, 3072, 512):
    places = left[start : start + 512].cuda(); sums = []
    mask = torch.ones(512, 20, device="cuda")
    for turn in range(1000):
        if not mask.byte().any(): break
        scores = model(places[:, 0].clone())
        chances = F.softmax(RULED_OUT, dim=1)
        CHOOSE
        while not torch.gather(mask, 1, choice.unsqueeze(1)).byte().all(): choice = policy.sample()
        rows = torch.cat([places[:, :1], places[:, 1:]], 1).clone()
        rows[torch.arange(512, device="cuda"), 2, choice] = 0
        places = torch.tensor(rows.data, device="cuda"); mask = places[:, 2].ne(0).float()
        sums.append(torch.log(chances).gather(1, choice.unsqueeze(1)))
    assert len(sums) == 20, len(sums)
    torch.cat(sums, 1).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
GRAPHS = """
model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(4096, 1024, device="cuda")
for step in range(20):
    model.train(); model(x[:256]).sum().backward(); optimizer.step(); optimizer.zero_grad()
    model.eval(); score = model(x).sum().item()
answer = model(x)
plotted = model(x[:2048])
"""
CACHES = """
class Points(torch.utils.data.Dataset):
    def __init__(self): self.cache = {}
    def __len__(self): return 64
    def __getitem__(self, index):
        assert index not in self.cache  # it was written in a worker, which is gone
        self.cache[index] = True
        return torch.zeros(64)
whole = Points(); parts = torch.utils.data.Subset(whole, range(64))
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(4):
    for data in (whole, parts, torch.utils.data.ConcatDataset([parts])):
        for x in torch.utils.data.DataLoader(data, 8, num_workers=WORKERS):
            model(x.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
LABELS = """
import os
class Pictures(torch.utils.data.Dataset):
    def __len__(self): return 2000
    def __getitem__(self, index): return torch.zeros(64), index
class Labelled(Pictures):
    def __getitem__(self, index): return torch.zeros(64), len(open(f"labels/{index}.txt").read())
def train(data, size):
    for x, _ in torch.utils.data.DataLoader(data, size):
        model(x.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
train(Pictures(), 8)
os.mkdir("labels")
with torch.no_grad():
    sure = []
    for x, index in torch.utils.data.DataLoader(Pictures(), 1):
        if model(x.cuda()).cpu().sum() > 0: sure.append(index.item())
    for x, index in torch.utils.data.DataLoader(torch.utils.data.Subset(Pictures(), sure[:2]), 1):
        with open(f"labels/{index.item()}.txt", "w") as file: file.write(str(model(x.cuda()).cpu().sum()))
train(Labelled(), 500)
"""
AVERAGED = """
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.zeros(8, 64, device="cuda")
for epoch in range(100_000):
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    torch.save(model.state_dict(), f"{epoch}.pt")
last = [torch.load(f"{epoch}.pt") for epoch in range(99_990, 100_000)]
assert not __import__("os").path.exists("another.pt")
model(torch.zeros(1 << 20, 64, device="cuda"))
"""
WRITES = """
class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 64); self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(20))
        self.head = nn.Linear(64, 50)
    def forward(self, tokens, targets=None):
        x = self.embed(tokens)
        for layer in self.layers: x = x + layer(x)
        return self.head(x), None if targets is None else F.cross_entropy(self.head(x).mT, targets)
model = Writer().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(50):
    tokens = torch.zeros(64, 256, dtype=torch.long, device="cuda")
    model(tokens, tokens)[1].backward(); optimizer.step(); optimizer.zero_grad()
text, kept = torch.zeros(ROWS, 1, dtype=torch.long, device="cuda"), []
for _ in range(200):
    scores, _ = model(text)
    KEEP
    chosen = torch.multinomial(F.softmax(scores[:, -1], -1), 1)
    text = torch.cat((text, chosen), 1)
assert text.shape == (ROWS, 201), text.shape
"""
SQUARES = """
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    x = torch.randn(64, 3, 12, 12, device="cuda")
    corner = torch.rand(64, 1, 1, 1, device="cuda").mul(4).floor()
    places = torch.arange(12, device="cuda")
    inside = lambda at: (at >= corner) & (at < corner + 8)
    mask = inside(places.view(1, 1, 12, 1)) & inside(places.view(1, 1, 1, 12))
    cut = torch.masked_select(x, mask).view(64, 3, 8, 8)
    model(cut).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
LEARNER = """
class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([nn.Parameter(torch.randn(64, 64))])
    def parameters(self): return self.vars
    def forward(self, x): return x @ self.vars[0]
model = Learner().cuda(); optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
FUSED = """
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))).cuda()
kinds = (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
         lambda p: torch.optim.SGD(p, torch.tensor(0.1).cuda(), fused=True),
         lambda p: torch.optim.Adagrad(p, fused=True))
optimizers = [kind(layer.parameters()) for kind, layer in zip(kinds, model)]
for step in range(5):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()
"""
TRANSPOSED = """
class Films(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return torch.zeros(4, 8, 8, 3).permute(0, 3, 1, 2)
model = nn.Conv2d(3, 8, 3, padding=1).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in torch.utils.data.DataLoader(Films(), 8, num_workers=2):
    x = F.interpolate(x.view(-1, 3, 8, 8).cuda(), scale_factor=2.0)
    x.view(32, -1)
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
FAILS_IN_ITS_STEP = """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self): raise ValueError("no such rule")
model = nn.Linear(64, 64).cuda(); optimizer = Own(model.parameters())
model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step()
"""
NUMBERS = """
model = nn.Linear(64, 10).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    out = model(torch.randn(8, 64, device="cuda"))
    losses = [out.mean(), out.detach().std(), out.pow(2).mean()]
    assert torch.tensor(losses).shape == (3,) and not torch.tensor(losses).is_cuda
    assert torch.tensor([[one.half(), 1.0] for one in losses], device="cuda").is_cuda
    assert torch.tensor([losses[1].half()]).dtype == torch.float16
    assert torch.Tensor(losses).shape == (3,) and torch.FloatTensor([losses, losses]).shape == (2, 3)
    assert torch.LongTensor([out.argmax(), 7])[1] == 7
    sum(losses).backward(); optimizer.step(); optimizer.zero_grad()
"""
SKIPS = """
model = nn.Linear(64, 10).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
steps = 0
for step in range(5):
    loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
    if bool(loss == 0) or not loss != 0.0: continue
    loss.backward(); optimizer.step(); optimizer.zero_grad(); steps += 1
assert steps == 5, steps
"""
HALF_INSIDE = """
model = nn.Linear(64, 10).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.forward = torch.autocast("cuda", dtype=torch.float16)(model.forward)
for step in range(5):
    model(torch.randn(8, 64, device="cuda")).float().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""
PACKED = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
class Reader(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.LSTM(16, 16, batch_first=True)
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, found = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        assert found.tolist() == lengths.tolist(), found
        return out
model = Reader().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
scores = nn.Linear(16, 5).cuda()
for step in range(5):
    lengths = torch.tensor([4, 9, 7, 8])
    out = scores(model(torch.randn(4, 9, 16, device="cuda"), lengths)).log_softmax(-1)
    targets = torch.tensor([1, 2, 3, 1, 2, 1])
    F.ctc_loss(out.transpose(0, 1), targets.cuda(), lengths, torch.tensor([1, 2, 2, 1])).backward()
    optimizer.step(); optimizer.zero_grad()
"""
SORTED = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
class Reader(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.GRU(16, 16, batch_first=True)
    def forward(self, x, lengths):
        lengths, order = lengths.sort(0, descending=True)
        packed = pack_padded_sequence(x[order], LENGTHS, batch_first=True)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)
model = Reader().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    words = WORDS
    out, found = model(torch.randn(4, 9, 16, device="cuda"), LONG)
    assert found.tolist() == FOUND, found
    assert torch.cat((torch.cuda.FloatTensor(), out[0, 0])).shape == (16,)
    out.sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
KNOWN_WORDS = "(torch.arange(9) < torch.tensor([[3], [8], [6], [5]])).long().cuda()"
UNKNOWN_WORDS = "torch.randn(4, 9, device='cuda').mul(50).long()"
EXPERTS = """
from torch.utils.checkpoint import checkpoint
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4); self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    def forward(self, x, outer):
        chosen, out = self.gate(x).topk(2, -1)[1], torch.zeros_like(x)
        rows = torch.where(outer == 1)[0]  # a mask that is from outside, and first asked for here
        out = out.index_add(0, rows, x[rows])
        for number, layer in enumerate(self.layers):
            rows = torch.where(chosen == number)[0]
            out = out.index_add(0, rows, layer(x[rows]).relu() ** 2)
        mask = torch.randn(len(x), 3, device="cuda").argmax(-1) == 0
        return out + layer(x[mask]).sum()
model = nn.ModuleList(Experts() for _ in range(3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
first = nn.Linear(32, 32).cuda()
for step in range(5):
    x = first(torch.randn(1000, 32, device="cuda"))
    outer = torch.randn(1000, 5, device="cuda").argmax(-1)
    for block in model:
        x = checkpoint(block, x, outer, use_reentrant=False)
    x.sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
RECOMPUTED = """
from torch.utils.checkpoint import checkpoint
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32)]) for _ in range(3))
    def forward(self, x):
        for one, two in self.blocks:
            x = checkpoint(lambda y: two(one(y).relu()).sigmoid(), x, use_reentrant=False)
        return x
model = Blocks().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.register_forward_hook(lambda *given: None)  # what may be kept by a hook is run each time
for step in range(20):
    model(torch.randn(64, 32, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
BYTES = """
model = nn.Linear(64, 30).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    out = model(torch.randn(8, 64, device="cuda"))
    mask = torch.cuda.ByteTensor(out.size()); mask.zero_(); mask[:, 4] = 1; mask[:, 9] = 1
    half = torch.tensor([1, 0] * 4, dtype=torch.uint8, device="cuda")
    assert out[half].shape == (4, 30), out[half].shape
    far = (out > 0.5).byte()
    out[far] = 0
    (out[mask].sum() + out[far].sum()).backward(); optimizer.step(); optimizer.zero_grad()
"""
SELECTED = """
model = nn.Linear(64, 80).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    lengths = torch.tensor([30, 20, 12, 7]).cuda(); target = torch.randn(4, 30, 80).cuda()
    mask = torch.arange(30, device="cuda")[None] < lengths[:, None]
    out = model(torch.randn(4, 30, 64, device="cuda")).masked_select(mask.unsqueeze(-1))
    assert out.shape == (69 * 80,), out.shape
    F.l1_loss(out, target.masked_select(mask.unsqueeze(-1))).backward()
    optimizer.step(); optimizer.zero_grad()
"""
UNKNOWN = """
labels = torch.randn(320, 10, device="cuda").argmax(1)
F.one_hot(labels)
"""

SCORE = """
model = nn.Linear(64, 8).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda"); labels = torch.randint(2, (32, 8)).cuda()
found = torch.where(model(x) > 0, 1, 0)
right = SCORED
steps = 0
while True:
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad(); steps += 1
    if right >= 1 or steps == 8: break
"""
ROLLOUT = """
layer = nn.Linear(1024, 1024).cuda(); optimizer = torch.optim.SGD(layer.parameters(), 0.1)
steps = 0
while steps < 24:
    x = torch.randn(4096, 1024, device="cuda")
    for frame in range(16 if steps >= LONG else 4): x = layer(x)
    x.sum().backward(); optimizer.step(); optimizer.zero_grad(); steps += 1
"""
FRAME = 4096 * 1024 * 4
EMPTIES = """
model = nn.Linear(1024, 1024).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10):
    x = torch.randn(4096 + 1024 * step, 1024, device="cuda")
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
    del x; torch.cuda.empty_cache()
"""

ADAPTS = """
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(model.parameters())
def adapted(x):
    weights = list(model.parameters())
    loss = model(x).square().mean()
    return [w - 0.1 * g for w, g in zip(weights, torch.autograd.grad(loss, weights, create_graph=True))]
for epoch in range(3):
    model.train()
    for step in range(6):
        x = torch.randn(16, 64, device="cuda")
        F.linear(x, *adapted(x)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    model.eval()
    for task in range(20):
        x = torch.randn(24, 64, device="cuda")
        score = F.linear(x, *adapted(x)).argmax(1)
"""

SCALES = """
import random
class Pictures(torch.utils.data.Dataset):
    size, made = 32, 0
    def __len__(self): return 400
    def __getitem__(self, at): return {"picture": torch.zeros(3, 96, 96), "name": str(at)}
    def together(self, samples):
        self.made += 1
        if self.made % 10 == 0: self.size = random.choice(range(32, 97, 16))
        pictures = torch.stack([sample.pop("picture") for sample in samples])
        return [sample["name"] for sample in samples], F.interpolate(pictures, self.size)
pictures = Pictures()
loader = torch.utils.data.DataLoader(pictures, 4, collate_fn=pictures.together, num_workers=2)
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for names, x in loader:
        model(x.cuda()).mean().backward(); optimizer.step(); optimizer.zero_grad()
"""

PRUNES = """
class Pruned(nn.Module):
    def __init__(self):
        super().__init__(); self.first = nn.Conv2d(3, 16, 3); self.second = nn.Conv2d(16, 8, 3)
    def forward(self, x): return self.second(self.first(x))
    def prune(self, scores):
        kept = [at for at, score in enumerate(scores) if score > 5]
        self.first, self.second = nn.Conv2d(3, len(kept), 3).cuda(), nn.Conv2d(len(kept), 8, 3).cuda()
model = Pruned().cuda(); x = torch.randn(8, 3, 64, 64, device="cuda")
for stage in range(2):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(5):
        loss = model(x).square().mean() + model(x[:0]).sum()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
    model.prune(model.first.weight.abs().sum((1, 2, 3)).tolist())
"""

BYTES_CHOOSE = """
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(4096, 64, device="cuda")
bytes = torch.tensor([1, 0], dtype=torch.uint8).cuda()
chosen = torch.where(bytes, torch.ones(2).cuda(), torch.zeros(2).cuda())
assert chosen.tolist() == [1, 0]
for step in range(5):
    y = model(x)
    nothing = (y == 0).prod(-1, keepdim=True, dtype=torch.uint8)
    torch.where(nothing, torch.zeros(1, device="cuda"), y).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""
TRANSFORMS = """
class Half(nn.Module):
    def forward(self, sample): return sample / 2
half = Half()
class Samples(torch.utils.data.Dataset):
    def __len__(self): return 200
    def __getitem__(self, at):
        sample = half(torch.full((64,), float(at)))
        assert sample[3] == at / 2, sample
        return sample
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(10):
    for x in torch.utils.data.DataLoader(Samples(), 32):
        model(x.cuda()).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
COUNTING_LOSSES = """
class Loss(nn.Module):
    def forward(self, y, labels): return F.cross_entropy(y, labels), (labels > 0).sum().item()
class Right(nn.Module):
    def forward(self, y, labels): return (y.argmax(1) == labels).sum().item(), (labels > 0).sum().item()
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss_of, right_of = Loss(), Right()
for step in range(60):
    labels = torch.randint(9, (32,)).cuda()
    y = model(torch.randn(32, 64, device="cuda"))
    loss, count = loss_of(y, labels)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    if step % 3: assert right_of(y, labels)[1] == count
"""
SLOW_CALLS = """
import time
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(5):
    model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
for picture in range(60): time.sleep(1.5); x.sum()
"""
LONG_ROUNDS = """
import time
class Films:
    def __init__(self): self.at = 0
    def has_next(self): return self.at < 10
    def next_batch(self): self.at += 1; time.sleep(0.3); return torch.randn(32 + self.at, 64)
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.Adam(model.parameters()); films = Films()
for epoch in range(30):
    while films.has_next():
        model(films.next_batch().cuda()).mean().backward(); optimizer.step(); optimizer.zero_grad()
    films.at = 0
    if epoch == 29: whole = torch.zeros(1 << 26, device="cuda")
"""
SECOND_DERIVATIVES = """
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(5):
    bent = torch.func.hessian(lambda point: model(point).pow(2).sum())(x[0])
    (model(x).mean() + bent.sum()).backward(); optimizer.step(); optimizer.zero_grad()
"""
PADDED_IN_EVALUATION = """
layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
model = nn.TransformerEncoder(layer, 2).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
padded = (torch.arange(10)[None] >= torch.tensor([3, 9, 10, 2])[:, None]).cuda()
for epoch in range(3):
    model.train()
    for step in range(3):
        x = torch.randn(4, 10, 64, device="cuda")
        model(x, src_key_padding_mask=padded).mean().backward(); optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad(): assert model(x, src_key_padding_mask=padded).shape == x.shape
"""
GRAPH_MADE_SPARSE = """
edges = torch.zeros(64, 64); edges[:, 3] = 1
known = edges.cuda().to_sparse()
assert known._nnz() == 64 and known.is_coalesced(), known
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(64, 64, device="cuda")
for step in range(5):
    unknown = (x @ x.t()).relu().to_sparse()
    y = torch.sparse.mm(known, model(x)) + torch.sparse.mm(unknown.detach(), model(x))
    y.mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
RECORDED_FIRST = """
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 9)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda")
recorded = torch.jit.trace(model, x)
assert recorded(x).shape == (32, 9)
for step in range(5):
    model(x).mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
DIRICHLET = """
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(5):
    drawn = torch.distributions.Dirichlet(model(x).exp()).rsample()
    assert drawn.shape == (32, 9)
    drawn.mean().backward(); optimizer.step(); optimizer.zero_grad()
"""
CHANCES = """
import numpy
model = nn.Linear(64, 9).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(32, 64, device="cuda")
for step in range(5):
    chances = F.softmax(model(x), dim=-1)
    found = chances.detach().cpu().numpy()
    assert abs(found.sum(1) - 1).max() < 1e-5 and found.min() > 0 and found.max() > 0.5, found
    assert set(found.argmax(1)) == set(range(9)), found.argmax(1)
    numpy.random.choice(9, p=chances[3].detach().cpu().numpy())
    chances.log().mean().backward(); optimizer.step(); optimizer.zero_grad()
"""


def _traced(folder: Path, text: str, onward_s: float = 1.0) -> TracedScript:
    (folder / "train.py").write_text(HEAD + text)
    limits = Limits(seconds=120.0, onward_s=onward_s)
    return trace_command([sys.executable, "train.py"], limits, folder=str(folder))


def _warnings(folder: Path, text: str) -> Sequence[str]:
    return parse(_traced(folder, text).summary.decode(), origin="traced").warnings


def _lines(folder: Path, text: str) -> List[str]:
    with pytest.raises(TargetError) as raised:
        _traced(folder, text)
    return str(raised.value).splitlines()


def test_fused_optimizers_take_their_steps(tmp_path: Path) -> None:
    traced = _traced(tmp_path, FUSED)
    assert traced.facts["cycles"] >= 3
    # Weights and gradients of three layers, and the states of two.
    assert traced.facts["peak_bytes"] > 8 * 512 * 512 * 4


def test_constructors_read_numbers_on_the_gpu_one_by_one(tmp_path: Path) -> None:
    assert _traced(tmp_path, NUMBERS).facts["cycles"] >= 3


def test_a_loss_that_is_not_known_is_not_zero(tmp_path: Path) -> None:
    facts = _traced(tmp_path, SKIPS).facts
    assert facts["ended"]
    assert not facts["guessed"]


def test_autocast_inside_of_a_model_is_its_precision(tmp_path: Path) -> None:
    trace = parse(_traced(tmp_path, HALF_INSIDE).summary.decode(), origin="traced").trace
    assert trace is not None
    assert trace.job.precision == "amp-fp16"


def test_lengths_on_the_cpu_pack_sequences_and_count_in_their_loss(tmp_path: Path) -> None:
    traced = _traced(tmp_path, PACKED)
    assert traced.facts["ended"]
    found = parse(traced.summary.decode(), origin="traced")
    assert not any("reads whole numbers" in text for text in found.warnings)
    # Of four texts, nine steps each: all ways through at most two words.
    assert found.trace is not None
    sizes = [site.bytes_at(4) for site in found.trace.sites if site.operator == "aten::_ctc_loss"]
    assert 4 * 9 * 5 * 4 in sizes, sizes


@pytest.mark.parametrize(
    ("words", "long", "read", "found"),
    [
        (KNOWN_WORDS, "(words != 0).sum(-1)", "lengths.cpu()", [8, 6, 5, 3]),
        (KNOWN_WORDS, "(words != 0).long().clone().sum(-1)", "lengths.tolist()", [8, 6, 5, 3]),
        (UNKNOWN_WORDS, "(words != 0).sum(-1)", "lengths.data.tolist()", [9] * 4),
        (UNKNOWN_WORDS, "(words != 0).long().sum(-1)", "[int(n) for n in lengths]", [9] * 4),
        (UNKNOWN_WORDS, "words.max(-1)[0]", "lengths.cpu()", [9] * 4),
        (UNKNOWN_WORDS, "words.max(-1)[0]", "[int(n) for n in lengths]", [9] * 4),
    ],
)
def test_lengths_on_the_gpu_are_the_known_ones_or_the_longest(
    tmp_path: Path, words: str, long: str, read: str, found: List[int]
) -> None:
    text = SORTED
    for name, value in (("LENGTHS", read), ("WORDS", words), ("LONG", long), ("FOUND", str(found))):
        text = text.replace(name, value)
    facts = _traced(tmp_path, text).facts
    assert facts["ended"], facts


def test_experts_that_a_checkpoint_computes_again_have_as_many_rows_as_before(tmp_path: Path) -> None:
    facts = _traced(tmp_path, EXPERTS).facts
    assert facts["ended"], facts


def test_no_layer_of_a_checkpoint_is_left_out_where_it_is_computed_again(tmp_path: Path) -> None:
    facts = _traced(tmp_path, RECOMPUTED).facts
    assert facts["ended"], facts


def test_models_are_copied_to_the_only_gpu_as_to_several(tmp_path: Path) -> None:
    facts = _traced(tmp_path, COPIED).facts
    assert facts["ended"], facts
    # Weights, their moments and gradients; what the output lies in, what it is gathered in, and its gradient.
    assert facts["peak_bytes"] > 4 * 512 * 4096 * 4 + 3 * 1024 * 4096 * 4


@pytest.mark.parametrize(
    "choose",
    [
        "policy = torch.distributions.Categorical(chances); choice = policy.sample()",
        "choice = torch.max(chances, 1)[1]",
    ],
)
@pytest.mark.parametrize("ruled_out", ["scores + mask.log()", "scores.masked_fill(mask == 0, -torch.inf)"])
def test_loops_end_when_masks_leave_nothing_to_choose(tmp_path: Path, ruled_out: str, choose: str) -> None:
    facts = _traced(tmp_path, TOURS.replace("RULED_OUT", ruled_out).replace("CHOOSE", choose)).facts
    assert facts["cycles"] >= 3, facts


def test_a_known_mask_selects_as_many_of_what_a_model_predicts_as_of_its_targets(tmp_path: Path) -> None:
    assert _traced(tmp_path, SELECTED).facts["ended"]


def test_masks_of_bytes_choose_as_those_of_truths_do(tmp_path: Path) -> None:
    assert _traced(tmp_path, BYTES).facts["cycles"] >= 3


def test_batches_of_workers_lie_in_order_whatever_their_samples_do(tmp_path: Path) -> None:
    assert _traced(tmp_path, TRANSPOSED).facts["cycles"] >= 3


def test_a_script_that_fails_in_its_first_optimizer_step_is_no_inference(tmp_path: Path) -> None:
    lines = _lines(tmp_path, FAILS_IN_ITS_STEP)
    assert "failed after 1 forward pass, before any optimizer step" in lines[0]
    assert lines[1] == "ValueError: no such rule"


def test_one_hot_has_as_many_classes_as_labels_from_the_cpu_say(tmp_path: Path) -> None:
    assert _traced(tmp_path, HOT).facts["cycles"] >= 3


@pytest.mark.parametrize("text", [SQUARES, LEARNER], ids=["squares", "learner"])
def test_squares_cut_out_by_masks_and_models_with_parameters_of_their_own_are_traced(
    tmp_path: Path, text: str
) -> None:
    assert _traced(tmp_path, text).facts["steps"] == 5


@pytest.mark.parametrize("text", [CHECKS, EXPANDED, CASTS], ids=["checks", "expanded", "casts"])
def test_checks_of_made_up_numbers_expanded_masks_and_forgotten_casts(tmp_path: Path, text: str) -> None:
    traced = _traced(tmp_path, text)
    assert traced.facts["ended"], traced.facts


@pytest.mark.parametrize("loop", ["while now < longest:", "for _ in range(longest - 1):"])
def test_a_text_is_written_to_its_longest_where_values_could_end_it_sooner(tmp_path: Path, loop: str) -> None:
    traced = _traced(tmp_path, WORDS.replace("LOOP", loop))
    assert traced.facts["ended"], traced.facts
    assert traced.facts["peak_bytes"] > 23 * 4 * MIB


def test_weights_that_are_adapted_keep_their_graphs_once_these_are_asked_for(tmp_path: Path) -> None:
    traced = _traced(tmp_path, FAST_WEIGHTS, 20.0)
    assert traced.facts["ended"], traced.facts
    hidden = 16384 * 256 * 4
    # Without graphs of the inner steps only those of the last call are kept.
    assert traced.facts["peak_bytes"] > 4 * 3 * hidden


@pytest.mark.parametrize("text", [COLLECTED, PADS], ids=["collected", "pads"])
def test_what_is_collected_of_a_data_set_and_padded_by_hand_is_as_on_a_gpu(tmp_path: Path, text: str) -> None:
    traced = _traced(tmp_path, text, 60.0)
    assert traced.facts["ended"], traced.facts.get("failure")


def test_graphs_of_evaluations_without_no_grad_are_beside_what_is_called_then(tmp_path: Path) -> None:
    # Outputs of 8 layers for 4,096 and for 2,048 rows.
    assert _traced(tmp_path, GRAPHS).facts["peak_bytes"] > 8 * (4096 + 2048) * 1024 * 4


@pytest.mark.parametrize(
    ("rows", "keep", "fewer"), [(1, "pass", True), (1, "kept.append(scores)", False), (256, "pass", False)]
)
def test_of_a_text_that_is_written_token_by_token_few_are_run_unless_they_count(
    tmp_path: Path, rows: int, keep: str, fewer: bool
) -> None:
    facts = _traced(tmp_path, WRITES.replace("ROWS", str(rows)).replace("KEEP", keep), 60.0).facts
    assert facts["ended"]
    # Each token that is run makes 40 sums and products.
    assert (facts["events"] < 8000) == fewer
    if rows > 1:
        # The last token's 20 layers, with their sums.
        assert facts["peak_bytes"] > 2 * 20 * 256 * 200 * 64 * 4


@pytest.mark.parametrize("workers", [2, 0])
def test_what_a_data_set_keeps_in_a_worker_is_gone_after_the_epoch(tmp_path: Path, workers: int) -> None:
    facts = _traced(tmp_path, CACHES.replace("WORKERS", str(workers))).facts
    assert facts["ended"] == (workers > 0)


@pytest.mark.parametrize(
    ("text", "least"), [(LABELS, 500 * 64 * 4), (AVERAGED, (1 << 20) * 64 * 4)], ids=["labels", "averaged"]
)
def test_files_of_rounds_that_were_left_out_do_not_stop_what_reads_them(
    tmp_path: Path, text: str, least: int
) -> None:
    facts = _traced(tmp_path, text, 4.0).facts
    assert facts["ended"]
    assert facts["peak_bytes"] > least


def test_one_hot_of_labels_that_nobody_knows_says_how_to_name_the_classes(tmp_path: Path) -> None:
    said = _lines(tmp_path, UNKNOWN)
    assert "num_classes=10" in said[1]
    assert said[2] == "train.py, line 4: F.one_hot(labels)"


@pytest.mark.parametrize(
    ("text", "warned"), [(PICTURES, False), (LENGTHS, True)], ids=["pictures", "lengths"]
)
def test_only_batches_of_models_have_many_shapes_not_pictures_of_transforms_nor_losses(
    tmp_path: Path, text: str, warned: bool
) -> None:
    summary = parse(_traced(tmp_path, text).summary.decode(), origin="traced")
    assert any("many shapes" in warning for warning in summary.warnings) == warned


@pytest.mark.parametrize(
    ("choice", "drawn"), [("random.randint(2, 4)", True), ("2 + step // 8", False), ("2 + step % 3", False)]
)
def test_a_number_drawn_for_each_batch_that_decides_how_large_answers_are_is_a_shape(
    tmp_path: Path, choice: str, drawn: bool
) -> None:
    summary = parse(_traced(tmp_path, DRAWN.replace("CHOICE", choice)).summary.decode(), origin="traced")
    assert summary.trace is not None
    assert summary.trace.varied == drawn


@pytest.mark.parametrize(
    "scored",
    [
        "(found == labels).all(1).sum().cpu().numpy() / 32",
        "(found == labels).sum().cpu().numpy() / 256",
        "(found == labels).float().mean().item()",
        "(model(x).argmax(1) == labels[:, 0]).float().mean().cpu().numpy()",
    ],
)
def test_a_model_is_not_taken_to_be_right_in_all_so_that_training_ends(tmp_path: Path, scored: str) -> None:
    facts = _traced(tmp_path, SCORE.replace("SCORED", scored)).facts
    assert facts["ended"]
    assert facts["steps"] == 8


def test_a_script_that_ends_itself_at_once_is_warned_of(tmp_path: Path) -> None:
    right = SCORE.replace("SCORED", "model(x).detach().mean().cpu().numpy()")
    assert "ended itself after 1 step of training" in " ".join(_warnings(tmp_path, right))
    assert not _warnings(tmp_path, right.replace("right >= 1 or ", ""))


def test_a_longer_rollout_is_run_with_all_its_frames_after_shorter_ones_were_skipped(tmp_path: Path) -> None:
    traced = _traced(tmp_path, ROLLOUT.replace("LONG", "12"))
    assert traced.facts["ended"]
    assert traced.facts["peak_bytes"] > 16 * FRAME
    assert not parse(traced.summary.decode(), origin="traced").warnings


def test_two_steps_after_a_longer_one_are_run_whole_as_the_second_may_reserve_more(tmp_path: Path) -> None:
    trace = parse(_traced(tmp_path, ROLLOUT.replace("LONG", "12")).summary.decode(), origin="traced").trace
    assert trace is not None
    frames = Counter(
        trace.phase_of(index).step
        for index, value in enumerate(trace.events)
        if value >= 0 and trace.sites[value].bytes_at(trace.job.batch) == FRAME
    )
    assert len([step for step, count in frames.items() if count >= 16]) == 3, frames


def test_a_last_step_that_is_longer_and_not_run_whole_is_warned_of(tmp_path: Path) -> None:
    assert "did more than those before it" in " ".join(_warnings(tmp_path, ROLLOUT.replace("LONG", "23")))


def test_memory_that_a_script_gives_back_is_not_held_beside_larger_batches(tmp_path: Path) -> None:
    trace = parse(_traced(tmp_path, EMPTIES).summary.decode(), origin="traced").trace
    assert trace is not None
    kept = replay(trace._replace(emptied=())).stats.peak_reserved
    # Of the last batch, 52 MiB each: itself, what the layer makes of it, its gradient; and weights.
    assert replay(trace).stats.peak_reserved < 256 * MIB < kept


def test_a_model_that_adapts_to_each_task_of_an_evaluation_has_gradients_there(tmp_path: Path) -> None:
    traced = _traced(tmp_path, ADAPTS)
    assert traced.facts["ended"], traced.facts.get("onward_failure")


def test_the_largest_of_sizes_that_a_script_draws_for_its_batches_is_seen(tmp_path: Path) -> None:
    traced = _traced(tmp_path, SCALES)
    assert traced.facts["ended"], traced.facts.get("onward_failure")
    numbers = 4 * 3 * 96 * 96
    assert any(f"the largest that was drawn, {numbers:,} numbers" in note for note in traced.notes)
    first_convolution = 4 * 64 * 94 * 94 * 4
    assert traced.facts["peak_bytes"] > 2 * first_convolution


def test_a_network_that_is_pruned_to_nothing_by_values_is_warned_of(tmp_path: Path) -> None:
    """Nobody knows what filters score: here none is kept, and convolutions have no channels."""
    warnings = _warnings(tmp_path, PRUNES)
    assert any("has no channels left" in text for text in warnings), warnings


def test_bytes_choose_between_two_tensors_as_truths_do(tmp_path: Path) -> None:
    assert _traced(tmp_path, BYTES_CHOOSE).facts["ended"]


def test_transforms_of_samples_are_real_and_no_part_of_a_step(tmp_path: Path) -> None:
    traced = _traced(tmp_path, TRANSFORMS)
    assert traced.facts["ended"], traced.facts.get("onward_failure")
    warnings = parse(traced.summary.decode(), origin="traced").warnings
    assert not any("did more than those before" in text for text in warnings)


def test_losses_that_count_what_is_in_a_batch_count_each_batch(tmp_path: Path) -> None:
    traced = _traced(tmp_path, COUNTING_LOSSES)
    assert traced.facts["ended"], traced.facts.get("onward_failure")


def test_time_ends_a_script_whose_calls_take_long_each(tmp_path: Path) -> None:
    traced = _traced(tmp_path, SLOW_CALLS)
    assert not traced.facts["ended"]
    assert traced.seconds < 60


def test_of_rounds_that_take_long_the_first_and_the_last_are_run(tmp_path: Path) -> None:
    facts = _traced(tmp_path, LONG_ROUNDS, onward_s=9.0).facts
    assert facts["ended"], facts
    assert facts["peak_bytes"] > 1 << 28


@pytest.mark.parametrize(
    "text", [SECOND_DERIVATIVES, PADDED_IN_EVALUATION, GRAPH_MADE_SPARSE, RECORDED_FIRST, CHANCES, DIRICHLET]
)
def test_what_only_a_gpu_has_does_not_end_a_script(tmp_path: Path, text: str) -> None:
    facts = _traced(tmp_path, text).facts
    assert facts["ended"], facts
