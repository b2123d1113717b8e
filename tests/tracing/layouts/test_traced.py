"""Training scripts that write as people's do, traced for real in every layout: `make test-layouts`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from typing import Any, Dict

import pytest

from tests.support.needs import needs_torch
from tests.support.other_user import user_python
from tests.tracing.layouts.layouts import BY_NAME, LAYOUTS, Layout, run_in

pytestmark = needs_torch
PACKAGES = os.environ.get("GPUMEM_TEST_PACKAGES", "")
"""A folder with transformers and Lightning, where the tests' own Python has none."""
GPUMEM = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main())"

FOLDERS = """
import os, torch, torch.nn as nn
os.makedirs("output/checkpoints", exist_ok=True)
os.makedirs(os.path.expanduser("~/.cache/mine"), exist_ok=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    model(torch.randn(32, 64, device="cuda")).pow(2).mean().backward()
    optimizer.step(); optimizer.zero_grad()
    torch.save(model.state_dict(), f"output/checkpoints/{step}.pt")
    os.replace(f"output/checkpoints/{step}.pt", "last.ckpt")
open("log.txt", "a").write("done")
"""
HUB = """
import os, torch
os.makedirs("repo", exist_ok=True)
open("repo/hubconf.py", "w").write("import torch\\ndef net(): return torch.nn.Linear(64, 64)\\n")
torch.hub.set_dir(os.path.expanduser("~/.cache/torch/hub"))
os.makedirs(torch.hub.get_dir(), exist_ok=True)
model = torch.hub.load("repo", "net", source="local").cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(32, 64, device="cuda")).pow(2).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""
TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
model = BertForSequenceClassification(BertConfig(
    vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128))
data = [{"input_ids": torch.randint(0, 500, (32,)), "labels": torch.tensor(0)} for _ in range(64)]
arguments = TrainingArguments("output", per_device_train_batch_size=8, max_steps=6, save_steps=3)
Trainer(model, arguments, train_dataset=data).train()
"""
LIGHTNING = """
import torch, pytorch_lightning as pl
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Linear(64, 8)
    def training_step(self, batch, number): return self.net(batch[0]).pow(2).mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
pl.Trainer(max_epochs=2, accelerator="gpu", devices=1).fit(Net(), data)
"""
SCRIPTS = {"makes folders": FOLDERS, "torch.hub": HUB, "HF Trainer": TRAINER, "Lightning": LIGHTNING}
_NEEDS = {"HF Trainer": "transformers", "Lightning": "pytorch_lightning"}
_WITH_COPIES = [layout for layout in LAYOUTS if layout.copies]


@functools.cache
def _has(python: str, path: str, package: str) -> bool:
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([python, "-c", f"import {package}"], env=env, check=False).returncode == 0


def traced(layout: Layout, script: str) -> Dict[str, Any]:
    """`gpumem trace` of a script in its working directory, as the layout's user."""
    found = user_python()
    if found is None:
        pytest.skip("no Python that a user other than root may start has torch")
    python, environment = found
    path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH", ""), PACKAGES)))
    needed = _NEEDS.get(script, "torch")
    if not _has(python, path, needed):
        pytest.skip(f"{needed} is not installed (GPUMEM_TEST_PACKAGES names a folder that has it)")
    more = f"cat > $D/train.py <<'END'\n{SCRIPTS[script]}\nEND\nchmod 644 $D/train.py"
    options = "--json --gpu a100 --time-limit 300"
    command = f'exec {python} -c "{GPUMEM}" trace {options} -- {python} $LAYOUT/train.py'
    return run_in(
        layout,
        ["sh", "-c", command],
        more,
        bare=True,
        environment={"PYTHONPATH": path},
        timeout_s=600,
    )


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("layout", _WITH_COPIES, ids=[layout.name for layout in _WITH_COPIES])
def test_it_is_traced_wherever_a_private_copy_is_possible(layout: Layout, script: str) -> None:
    found = traced(layout, script)
    assert found["code"] == 0, found["errors"]
    answer = json.loads(found["output"])
    assert answer["private"]["files"] == "overlay"
    assert answer["facts"]["steps"] >= 3
    # gpumem's own folder was there for a while.
    assert [path for path in found["changed"] if path != layout.environment.get("TMPDIR")] == []


def test_under_landlock_alone_what_the_trace_refused_is_named_as_the_traces() -> None:
    found = traced(BY_NAME["Landlock only"], "makes folders")
    assert found["code"] == 2
    assert "The trace refused this, and the job would not" in found["errors"]
    assert "the trace stopped it" in found["errors"]
    assert "--gpu-mem" in found["errors"]
    assert found["changed"] == []


def test_where_nothing_protects_the_script_is_not_run_and_the_other_ways_are_named() -> None:
    found = traced(BY_NAME["neither namespaces nor Landlock"], "makes folders")
    assert found["code"] == 2
    for words in ("cannot trace safely here", "--gpu-mem", 'trace.where = "job"', "--model FILE"):
        assert words in found["errors"]
    assert found["changed"] == []
