"""Scripts that change on the way: the trace comes to their end, or says how much it saw."""

from __future__ import annotations

import re
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, Iterator, Tuple, cast

import pytest

from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand

pytestmark = needs_torch

FOLDER = Path(__file__).parents[1] / "changing"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
"""Each with two lines at its top: what makes it begin with its largest stage, and the peak of that in MiB."""
HEADER = re.compile(r"# largest: (?P<old>.*) => (?P<new>.*)\n# peak: (?P<mib>[\d.]+) MiB\n")
LOOPS = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(64, 64).cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(rows):
    loss = model(torch.randn(rows, 64, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
SMALL: Dict[str, str] = {
    # What is no training runs as it is, and batches have their true numbers.
    "numbers": """
loader = DataLoader(TensorDataset(torch.randn(1003, 64)), 10)
last, seen, step = [], [], 0
assert isinstance(range(3), range) and sum(1 for _ in range(100000)) == 100000
for number in range(30000): last.append(number)
assert len(last) == 30000
import random
for number in random.sample(range(100), 3): last.append(number)
for epoch in range(40000):
    for number, (x,) in enumerate(loader):
        train(len(x)); step += 1
        if number == 57: seen.append((epoch, number))
    assert (number, len(x)) == (100, 3), (number, len(x))
    assert step == 101 * (epoch + 1), (step, epoch)
assert epoch == 39999 and (0, 57) in seen
model(torch.randn(1 << 16, 64, device="cuda"))
""",
    # Steps that a condition stands before have their true numbers, too, and so do those of loops around.
    "accumulates": """
loader = DataLoader(TensorDataset(torch.randn(808, 64)), 8)
done, seen = 0, []
for epoch in range(28):
    for number, (x,) in enumerate(loader):
        loss = model(x.cuda()).pow(2).mean(); loss.backward()
        if (number + 1) % 4 == 0:
            optimizer.step(); optimizer.zero_grad(); done += 1
            if done % 160 == 0: seen.append(done)
        if done >= 690: break
assert (done, seen) == (690, [160, 320, 480, 640]), (done, seen)
""",
    "until-done": """
loader = DataLoader(TensorDataset(torch.randn(803, 64)), 8)
step, over, seen = 0, False, []
while not over:
    for (x,) in loader:
        train(len(x)); step += 1
        if step % 700000 == 0: seen.append(step)
        if step >= 1900000: over = True; break
assert (step, seen) == (1900000, [700000, 1400000]), (step, seen)
""",
    "of-a-list": """
batches = [torch.randn(8, 64)] * 120
step, seen = 0, []
while step < 1900000:
    for x in batches:
        train(len(x)); step += 1
        if step % 700000 == 0: seen.append(step)
        if step >= 1900000: break
assert (step, seen) == (1900000, [700000, 1400000]), (step, seen)
""",
    "episodes": """
import itertools
total, seen = 0, []
for episode in itertools.count(1):
    moves, done = 0, False
    while not done:
        train(8); total += 1; moves += 1
        if total % 700000 == 0: seen.append(total)
        done = moves >= 50
    if total > 1900000: break
assert (total < 1910000, seen) == (True, [700000, 1400000]), (total, seen)
""",
    # Models count their layers, whatever loaders leave out.
    "counts-layers": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            assert layer is self.layers[number], number
            x = layer(x)
        return x
model = Deep().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(1003, 64)), 10)
for epoch in range(30):
    for (x,) in loader: train(len(x))
""",
    # What hooks take of layers, and what models keep for a loss, is that of the batch at work.
    "hooks": """
class Keeps(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(64, 64)
    def forward(self, x): self.extra = self.layer(x).pow(2).mean(); return self.layer(x)
hooked, keeps, kept = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda(), Keeps().cuda(), {}
hooked[0].register_forward_hook(lambda module, given, found: kept.update(found=found))
optimizer = torch.optim.SGD([*hooked.parameters(), *keeps.parameters()], 0.1)
for epoch in range(30):
    for (x,) in DataLoader(TensorDataset(torch.randn(203, 64)), 10):
        loss = hooked(x.cuda()).mean() + (kept["found"] - x.cuda()).pow(2).mean()
        loss = loss + keeps(x.cuda()).mean() + keeps.extra
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    "sparse-gradients": """
rows = nn.Embedding(100, 64, sparse=True).cuda(); optimizer = torch.optim.SparseAdam(rows.parameters())
for epoch in range(30):
    for (x,) in DataLoader(TensorDataset(torch.arange(203) % 100), 10):
        optimizer.zero_grad(); rows(x.cuda()).pow(2).mean().backward(); optimizer.step()
""",
    # Work that is known is not done again: what L-BFGS does when its history is full, texts that grow.
    "searches": """
searches = 0
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100000, history_size=20)
def closure():
    global searches
    searches += 1; optimizer.zero_grad(); loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
    loss.backward(); return loss
for step in range(5): optimizer.step(closure)
assert 20 <= searches < 500, searches
assert optimizer.param_groups[0]["max_iter"] == 100000
""",
    "grows-texts": """
run = []
class Reads(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(64, 64)
    def forward(self, x):
        if not self.training: run.append(len(x))
        return self.layer(x)
model = Reads().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40000):
    model.train(); train(8)
    if step % 10000 == 0:
        model.eval()
        for length in range(1, 101):
            with torch.no_grad(): model(torch.zeros(length, 64, device="cuda"))
assert len(run) <= 200, len(run)
""",
    # Not to its end: no code says how many rounds there are, or there is no time for them.
    "endless": "import itertools\nfor step in itertools.count(): train(8)",
    "slow": """
import time
for epoch in range(30):
    for _ in range(5): train(8)
    time.sleep(5)
""",
    # What every round keeps is more than the rounds show that are run.
    "keeps": """
kept = []
for epoch in range(100000):
    for _ in range(4): train(8)
    kept.append(torch.zeros(1 << 20, device="cuda"))
""",
}

UNFINISHED = ("endless", "slow", "keeps")


def _header(name: str) -> Tuple[str, str, float]:
    found = HEADER.match((FOLDER / f"{name}.py").read_text())
    assert found, f"{name}.py has no header"
    return found["old"], found["new"], float(found["mib"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dict[str, Future[TracedScript]]]:
    folder = tmp_path_factory.mktemp("to-the-end")
    texts = {name: LOOPS + text for name, text in SMALL.items()}
    for name in SCRIPTS:
        text, (old, new, _) = (FOLDER / f"{name}.py").read_text(), _header(name)
        head, body = text[: HEADER.match(text).end()], text[HEADER.match(text).end() :]  # type: ignore[union-attr]
        assert body.count(old) == 1
        texts[name], texts[f"{name}-largest"] = text, head + body.replace(old, new)
    with OnDemand() as pool:
        found = {}
        for name, text in texts.items():
            work = folder / name
            work.mkdir()
            (work / "train.py").write_text(text)
            limits = Limits(seconds=400.0, onward_s=6.0 if name in UNFINISHED else 60.0)
            found[name] = pool.submit(trace_command, [sys.executable, "train.py"], limits, folder=str(work))
        yield found


def _mib(run: Future[TracedScript]) -> float:
    return float(run.result().facts["peak_bytes"]) / (1 << 20)


def _warnings(run: Future[TracedScript]) -> Tuple[str, ...]:
    return parse(run.result().summary.decode(), origin="traced").warnings


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_changes_is_followed_to_its_largest_stage(
    runs: Dict[str, Future[TracedScript]], name: str
) -> None:
    facts = runs[name].result().facts
    assert "onward_failure" not in facts
    assert facts["ended"] or any("ended before the script did" in text for text in _warnings(runs[name]))
    assert _mib(runs[name]) == pytest.approx(_header(name)[2], rel=0.05)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_begins_with_its_largest_stage_has_the_peak_that_its_file_says(
    runs: Dict[str, Future[TracedScript]], name: str
) -> None:
    assert _mib(runs[f"{name}-largest"]) == pytest.approx(_header(name)[2], rel=0.02)


def test_batches_and_rounds_have_their_true_numbers_and_other_loops_run_as_they_are(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    facts = runs["numbers"].result().facts
    assert not {"failure", "onward_failure"} & set(facts)
    assert facts["ended"]
    assert facts["left_out"] > 30000
    assert _mib(runs["numbers"]) > (1 << 16) * 64 * 4 * 2 / (1 << 20)


@pytest.mark.parametrize("name", ["counts-layers", "hooks", "sparse-gradients", "searches", "grows-texts"])
def test_what_models_keep_count_and_repeat_is_followed_to_the_end(
    runs: Dict[str, Future[TracedScript]], name: str
) -> None:
    facts = runs[name].result().facts
    assert not {"failure", "onward_failure"} & set(facts), facts
    assert facts["ended"]


@pytest.mark.parametrize("name", ["accumulates", "until-done", "of-a-list", "episodes"])
def test_steps_that_the_code_counts_somewhere_have_their_true_numbers(
    runs: Dict[str, Future[TracedScript]], name: str
) -> None:
    facts = runs[name].result().facts
    assert not {"failure", "onward_failure"} & set(facts), facts
    assert facts["ended"]
    assert facts["steps"] < 20000


@pytest.mark.parametrize(
    ("name", "seen"),
    [("endless", r"[\d,]+ optimizer steps"), ("slow", r"\d of 30 epochs")],
    ids=["endless", "slow"],
)
def test_a_trace_that_does_not_come_to_the_end_says_how_much_it_saw(
    runs: Dict[str, Future[TracedScript]], name: str, seen: str
) -> None:
    facts = runs[name].result().facts
    assert not facts["ended"]
    assert re.match(seen, facts["unfinished"]), facts["unfinished"]
    assert any(f"seen were {facts['unfinished']}" in text for text in _warnings(runs[name]))
    trace = parse(runs[name].result().summary.decode(), origin="traced").trace
    assert trace is not None
    assert trace.unfinished == facts["unfinished"]


@pytest.mark.parametrize(
    ("at", "endless", "seen"),
    [(1, False, "2 of 3 rounds"), (2, False, "2 of 3 rounds and a part of the last"), (1, True, "")],
)
def test_a_trace_that_ends_in_the_last_round_has_not_seen_all_of_it(
    at: int, endless: bool, seen: str
) -> None:
    from slurm_gpumem.tracing.follow.loop_skipper import Rounds

    loop = SimpleNamespace(trained=2, total=3, at=at, called="rounds", endless=endless)
    assert Rounds.seen(cast(Rounds, SimpleNamespace(running=[loop], _waiting={}))) == seen


def test_rounds_left_out_of_a_loop_that_keeps_something_are_named(
    runs: Dict[str, Future[TracedScript]],
) -> None:
    assert any("keeps something on the GPU" in text for text in _warnings(runs["keeps"]))
