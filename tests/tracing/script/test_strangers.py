"""Ways of strangers' scripts that failed once, one of each kind; the stored lists have the others."""

from __future__ import annotations

import sys
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
TOURS = """
left = torch.ones(3072, 3, 20)
model = nn.Linear(20, 20).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for start in range(0, 3072, 512):
    places = left[start : start + 512].cuda(); sums = []
    mask = torch.ones(512, 20, device="cuda")
    for turn in range(1000):
        if not mask.byte().any(): break
        scores = model(places[:, 0].clone())
        chances = F.softmax(scores + mask.log(), dim=1)
        policy = torch.distributions.Categorical(chances); choice = policy.sample()
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
text = torch.zeros(ROWS, 1, dtype=torch.long, device="cuda")
for _ in range(200):
    scores, _ = model(text)
    chosen = torch.multinomial(F.softmax(scores[:, -1], -1), 1)
    text = torch.cat((text, chosen), 1)
assert text.shape == (ROWS, 201), text.shape
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
UNKNOWN = """
labels = torch.randn(320, 10, device="cuda").argmax(1)
F.one_hot(labels)
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


@pytest.mark.parametrize(
    ("words", "long", "read", "found"),
    [
        (KNOWN_WORDS, "(words != 0).sum(-1)", "lengths.cpu()", [8, 6, 5, 3]),
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


def test_loops_end_when_masks_leave_nothing_to_choose(tmp_path: Path) -> None:
    facts = _traced(tmp_path, TOURS).facts
    assert facts["cycles"] >= 3, facts


def test_weights_that_are_adapted_keep_their_graphs_once_these_are_asked_for(tmp_path: Path) -> None:
    traced = _traced(tmp_path, FAST_WEIGHTS, 20.0)
    assert traced.facts["ended"], traced.facts
    hidden = 16384 * 256 * 4
    # Without graphs of the inner steps only those of the last call are kept.
    assert traced.facts["peak_bytes"] > 4 * 3 * hidden


def test_graphs_of_evaluations_without_no_grad_are_beside_what_is_called_then(tmp_path: Path) -> None:
    # Outputs of 8 layers for 4,096 and for 2,048 rows.
    assert _traced(tmp_path, GRAPHS).facts["peak_bytes"] > 8 * (4096 + 2048) * 1024 * 4


@pytest.mark.parametrize(("rows", "fewer"), [(1, True), (256, False)])
def test_of_a_text_that_is_written_token_by_token_few_are_run_unless_they_count(
    tmp_path: Path, rows: int, fewer: bool
) -> None:
    facts = _traced(tmp_path, WRITES.replace("ROWS", str(rows)), 60.0).facts
    assert facts["ended"]
    # Each token that is run makes 40 sums and products.
    assert (facts["events"] < 8000) == fewer
    if rows > 1:
        # The last token's 20 layers, with their sums.
        assert facts["peak_bytes"] > 2 * 20 * 256 * 200 * 64 * 4


def test_files_of_rounds_that_were_left_out_do_not_stop_what_reads_them(tmp_path: Path) -> None:
    facts = _traced(tmp_path, AVERAGED, 4.0).facts
    assert facts["ended"]
    assert facts["peak_bytes"] > (1 << 20) * 64 * 4


def test_one_hot_of_labels_that_nobody_knows_says_how_to_name_the_classes(tmp_path: Path) -> None:
    said = _lines(tmp_path, UNKNOWN)
    assert "num_classes=10" in said[1]
    assert said[2] == "train.py, line 4: F.one_hot(labels)"


def test_a_longer_rollout_is_run_with_all_its_frames_after_shorter_ones_were_skipped(tmp_path: Path) -> None:
    traced = _traced(tmp_path, ROLLOUT.replace("LONG", "12"))
    assert traced.facts["ended"]
    assert traced.facts["peak_bytes"] > 16 * FRAME
    assert not parse(traced.summary.decode(), origin="traced").warnings
    assert "did more than those before it" in " ".join(_warnings(tmp_path, ROLLOUT.replace("LONG", "23")))


def test_memory_that_a_script_gives_back_is_not_held_beside_larger_batches(tmp_path: Path) -> None:
    trace = parse(_traced(tmp_path, EMPTIES).summary.decode(), origin="traced").trace
    assert trace is not None
    kept = replay(trace._replace(emptied=())).stats.peak_reserved
    # Of the last batch, 52 MiB each: itself, what the layer makes of it, its gradient; and weights.
    assert replay(trace).stats.peak_reserved < 256 * MIB < kept


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
