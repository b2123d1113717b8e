"""Scripts that call models and never train: each runs in processes of its own."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, describe_estimated, training_job
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.report.script_trace import trace_lines
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from slurm_gpumem.utilization.predict import with_utilization
from tests.support.generating_library import LIBRARY
from tests.support.kept_traces import assert_trace_kept
from tests.support.needs import needs_torch
from tests.support.on_demand import OnDemand
from tests.support.timing import Pace

pytestmark = needs_torch

HEAD = """
import os, sys, time, torch, torch.nn as nn, torch.nn.functional as F
def net(): return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1000))
"""
GENERATES = """
from transformers.generation.utils import GenerationMixin
if sys.argv[1] == "every-token":
    import slurm_gpumem.tracing.follow.generation as tracing; tracing.WINDOW = 10 ** 9
class Model(GenerationMixin, nn.Module):
    def __init__(self):
        super().__init__(); self.embed = nn.Embedding(1000, 512); self.head = nn.Linear(512, 1000)
    def forward(self, ids, past_key_values=None):
        x = self.embed(ids); seen = past_key_values.update(x)
        return self.head(x + F.softmax(x @ seen.mT, -1) @ seen)
model = Model().cuda().eval()
with torch.inference_mode():
    for _ in range(int(sys.argv[2])):
        out = model.generate(torch.randint(0, 1000, (64, 32)).cuda(), int(sys.argv[3]), len(sys.argv) > 4)
        assert out.shape == (64, 32 + int(sys.argv[3])), out.shape
"""
SCRIPTS: Dict[str, str] = {
    "forward": "model = net().cuda().eval()\nwith torch.no_grad(): model(torch.randn(4096, 256).cuda())",
    "transforms-and-losses": """
class Flip(nn.Module):
    def forward(self, image): return image.flip(-1)
flip, loss, model = Flip(), nn.MSELoss(), net().cuda().eval()
with torch.no_grad():
    x = torch.stack([flip(torch.randn(256)) for _ in range(64)]).cuda()
    for _ in range(2): loss(model(x), torch.zeros(64, 1000).cuda())
if sys.argv[1:]: open("labels.txt")
""",
    "weights-elsewhere": """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.weights = [torch.randn(256, 512).cuda()]
    def forward(self, x): return x @ self.weights[0]
Net()(torch.randn(64, 256).cuda())
""",
    "by-name": """
class Named(nn.Module):
    def __init__(self): super().__init__(); self.inner = net()
    def forward(self, x=None): return self.inner(x)
with torch.no_grad(): Named().cuda().eval()(x=torch.randn(48, 256).cuda())
""",
    "collects": """
model = net().cuda().eval(); kept = []
with torch.no_grad():
    for _ in range(40): kept.append(model(torch.randn(4096, 256).cuda()))
""",
    "dataset": """
model = net().cuda().eval()
dataset = torch.utils.data.TensorDataset(torch.randn(3000, 256))
with torch.inference_mode():
    for (x,) in torch.utils.data.DataLoader(dataset, 10): model(x.cuda()).cpu()
""",
    "evaluates-only": """
model = net().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1); model.eval()
with torch.no_grad(): model(torch.randn(64, 256).cuda())
""",
    "fails-later": """
model = net().cuda().eval()
with torch.no_grad(): model(torch.randn(64, 256).cuda())
open("labels.txt")
""",
    "leaves-by-itself": """
net().cuda()(torch.randn(4, 256).cuda())
try: raise ValueError("no such label")
except ValueError: sys.exit(1)
""",
    "ends-badly": "net().cuda()(torch.randn(4, 256).cuda()); sys.exit(3)",
    "serves": """
model = net().cuda().eval(); kept = []
with torch.no_grad():
    while True: kept.append(model(torch.randn(int(1e4) + len(kept), 256).cuda())); time.sleep(0.05)
""",
    "prepares": """
model = net().cuda(); optimizer = torch.optim.SGD(model.parameters(), 0.1); model.eval()
with torch.no_grad():
    while True: model(torch.randn(64, 256).cuda()); time.sleep(0.05)
""",
    "skeleton": """
with torch.device("meta"): skeleton = nn.Linear(16384, 16384)
other = nn.Linear(8192, 8192).to("meta"); third = torch.empty(1 << 28, device="meta").view(2, -1)
model = nn.Linear(64, 64, device="meta").to_empty(device="cuda").eval()
with torch.no_grad(): model(torch.randn(4, 64).cuda())
""",
    "on-the-cpu": "net()(torch.randn(4, 256))",
    "features-first": """
model = net().cuda().eval()
if sys.argv[1] == "features":
    with torch.no_grad(): model(torch.randn(65536, 256).cuda())
else:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(20): model(torch.randn(64, 256).cuda()).sum().backward(); optimizer.step()
""",
    "jumps": GENERATES,
    "every-token": GENERATES,
    "jumps-far": GENERATES,
    "again": GENERATES,
    "scores": GENERATES,
    "every-score": GENERATES,
}
SCRIPTS["transforms-then-fails"] = SCRIPTS["transforms-and-losses"]
ARGUMENTS = {
    "transforms-then-fails": ["fails"],
    "jumps": ["jumps", "1", "300"],
    "every-token": ["every-token", "1", "300"],
    "jumps-far": ["jumps", "1", "20000"],
    "again": ["jumps", "200", "50"],
    "scores": ["jumps", "1", "300", "scores"],
    "every-score": ["every-token", "1", "300", "scores"],
}
CUT_OFF = {"serves": 40.0, "prepares": 40.0}
Runs = Dict[str, "Future[TracedScript]"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder, pace = tmp_path_factory.mktemp("inference"), Pace()
    with OnDemand() as pool:
        found = {}
        for name, text in SCRIPTS.items():
            work = folder / name
            work.mkdir()
            (work / "infer.py").write_text(HEAD + text)
            if text == GENERATES:
                for path, code in LIBRARY.items():
                    (work / path).parent.mkdir(parents=True, exist_ok=True)
                    (work / path).write_text(code)
            found[name] = pool.submit(_trace, work, name, pace)
        yield found


def _trace(work: Path, name: str, pace: Pace) -> TracedScript:
    command: List[str] = [sys.executable, "infer.py", *ARGUMENTS.get(name, [])]
    if name == "features-first":
        both = f"{sys.executable} infer.py features && {sys.executable} infer.py train"
        command = ["sh", "-c", both]
    seconds = pace.limit_s(CUT_OFF[name]) if name in CUT_OFF else 300.0
    return pace.run(lambda: trace_command(command, Limits(seconds=seconds, onward_s=1.0), folder=str(work)))


def _error(run: Future[TracedScript]) -> str:
    with pytest.raises(TargetError) as caught:
        run.result()
    return str(caught.value)


def _estimated(traced: TracedScript) -> tuple[ModelSummary, Estimate]:
    summary, gpu = read_summary(traced.summary.decode()), find_gpu("h200")
    return summary, registry.run("auto", summary, training_job(summary, StatedTraining()), gpu)


def test_a_forward_pass_is_traced_as_inference(runs: Runs) -> None:
    traced = runs["forward"].result()
    assert_trace_kept("forward", traced)
    assert (traced.facts["kind"], traced.facts["steps"], traced.facts["passes"]) == ("inference", 0, 1)
    # The hidden layer before and after its activation, beside the input and the weights.
    assert traced.facts["peak_bytes"] > 4096 * (2 * 1024 + 256) * 4
    summary, estimate = _estimated(traced)
    assert [layer.kind for layer in summary.layers] == ["Sequential", "Linear", "ReLU", "Linear"]
    assert describe_estimated(summary, estimate) == "batch 4096, inference, fp32"
    lines = trace_lines("python infer.py", summary, traced, estimate, 1024)
    assert "seen: inference, no training (1 forward pass in" in lines[1]


def test_only_calls_of_models_are_forward_passes(runs: Runs) -> None:
    facts = runs["transforms-and-losses"].result().facts
    assert (facts["kind"], facts["passes"]) == ("inference", 2)
    assert "failed after 2 forward passes, before any" in _error(runs["transforms-then-fails"])


def test_a_module_that_hides_its_weights_is_a_model(runs: Runs) -> None:
    facts = runs["weights-elsewhere"].result().facts
    assert (facts["kind"], facts["passes"]) == ("inference", 1)


def test_no_utilization_is_predicted_for_inference(runs: Runs) -> None:
    summary, estimate = _estimated(runs["forward"].result())
    asked = with_utilization(estimate, find_gpu("h200"), summary)
    assert asked.utilization is None
    assert "the trace has no training" in asked.no_utilization


def test_the_batch_is_found_where_inputs_are_given_by_name(runs: Runs) -> None:
    assert read_summary(runs["by-name"].result().summary.decode()).batch == 48


def test_answers_that_a_script_collects_are_all_counted(runs: Runs) -> None:
    assert runs["collects"].result().facts["peak_bytes"] > 40 * 4096 * 1000 * 4


def test_a_data_set_of_equal_batches_ends_by_itself(runs: Runs) -> None:
    facts = runs["dataset"].result().facts
    assert (facts["kind"], facts["cut_off"]) == ("inference", False)
    assert facts["passes"] > 8


def test_an_optimizer_that_took_no_step_is_named(runs: Runs) -> None:
    traced = runs["evaluates-only"].result()
    assert traced.facts["kind"] == "inference"
    assert any("made an optimizer (SGD) that took no step" in note for note in traced.notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails-later", ["failed after 1 forward pass, before any optimizer step", "FileNotFoundError"]),
        ("leaves-by-itself", ["sys.exit(1) after ValueError: no such label", "try: raise ValueError"]),
        ("ends-badly", ["failed after 1 forward pass, before any optimizer step", "sys.exit(3)"]),
        (
            "prepares",
            ["stopped after ", " s, after ", "before any optimizer step", "collect less first"],
        ),
        ("on-the-cpu", ["without a step of an optimizer or a forward pass on the GPU"]),
    ],
)
def test_a_script_that_does_not_end_well_is_no_inference(runs: Runs, name: str, words: List[str]) -> None:
    message = _error(runs[name])
    assert [word for word in words if word not in message] == []


def test_a_loop_that_the_time_limit_cuts_off_says_whether_memory_grew(runs: Runs) -> None:
    traced = runs["serves"].result()
    assert (traced.facts["kind"], traced.facts["cut_off"], traced.facts["growing"]) == (
        "inference",
        True,
        True,
    )
    assert any("still growing, so a longer run needs more" in note for note in traced.notes)


def test_what_a_script_itself_puts_on_the_meta_device_takes_no_memory(runs: Runs) -> None:
    assert 64 * 64 * 4 < runs["skeleton"].result().facts["peak_bytes"] < 4 << 20


def test_training_after_inference_in_one_command_is_what_counts(runs: Runs) -> None:
    facts = runs["features-first"].result().facts
    assert facts["kind"] == "training"
    assert facts["steps"] >= 3


def test_generation_reaches_the_tokens_it_is_allowed_without_running_each(runs: Runs) -> None:
    jumps, every = runs["jumps"].result(), runs["every-token"].result()
    assert (jumps.facts["new_tokens"], every.facts["new_tokens"]) == (300, 300)
    assert jumps.facts["passes"] < 20 < 300 == every.facts["passes"]
    assert jumps.facts["peak_bytes"] == pytest.approx(every.facts["peak_bytes"], rel=0.001)
    assert _estimated(jumps)[1].peak_mib == pytest.approx(_estimated(every)[1].peak_mib, rel=0.01)
    assert any("taken to reach the 300 new tokens" in note for note in jumps.notes)


def test_a_very_long_generation_takes_no_more_room_in_the_trace(runs: Runs) -> None:
    facts = runs["jumps-far"].result().facts
    assert facts["events"] < 130_000
    # The cache of 64 texts, once more while it is copied.
    assert facts["peak_bytes"] > 2 * 64 * 20_000 * 512 * 4


def test_scores_that_are_kept_for_each_token_are_counted(runs: Runs) -> None:
    jumps, every = runs["scores"].result(), runs["every-score"].result()
    assert jumps.facts["peak_bytes"] == pytest.approx(every.facts["peak_bytes"], rel=0.01)


def test_equal_calls_of_generate_are_not_run_again(runs: Runs) -> None:
    facts = runs["again"].result().facts
    assert facts["passes"] > 200
    assert facts["events"] < 20_000
