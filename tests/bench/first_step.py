"""How soon a trace understands a script: its first optimizer step beside the script's own.

    make bench-trace        (transformers and Lightning, where they are installed)

The target is 1.3 times the script's own time plus 3 s. The lists noted seconds of traces and of runs on a
GPU, not always of the same machine, nor of an idle one. Here it is CPU seconds of all processes, which other
work on the machine changes little; these scripts take the CPU by themselves where there is no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Dict, Iterator, List, Tuple

from lab.scripts.lists import LISTS
from lab.scripts.score import load
from slurm_gpumem.tracing.guard.limits import descendants
from slurm_gpumem.tracing.script.messages import State
from slurm_gpumem.tracing.script.run import Limits, trace_command

TIMES, PLUS_S = 1.3, 3.0
_TICKS = os.sysconf("SC_CLK_TCK")
FIRST = """
import os
def told(*_):
    spent = os.times()
    print("first step", sum(spent[:4]), flush=True)
    os._exit(0)
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(told)
"""
LOOP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for x, y in DataLoader(TensorDataset(torch.randn(2560, 64), torch.zeros(2560, dtype=torch.int64)), 32):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
"""
TRAINER = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
model = BertForSequenceClassification(BertConfig(hidden_size=64, num_attention_heads=2, num_hidden_layers=2))
data = [{"input_ids": torch.randint(0, 500, (32,)), "labels": torch.tensor(0)} for _ in range(64)]
Trainer(model, TrainingArguments("output", max_steps=20), train_dataset=data).train()
"""
LIGHTNING = """
import torch, pytorch_lightning
class Net(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Linear(64, 8)
    def training_step(self, batch, number): return self.net(batch[0]).pow(2).mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 64)), batch_size=8)
pytorch_lightning.Trainer(max_epochs=1).fit(Net(), data)
"""
SCRIPTS = {"torch": LOOP, "transformers": TRAINER, "pytorch_lightning": LIGHTNING}


def main() -> int:
    """Both."""
    print(f"time to the first optimizer step, of {TIMES} times the script's own + {PLUS_S:g} s")
    print("\n".join(of_lists()))
    for package, text in SCRIPTS.items():
        if importlib.util.find_spec(package) is None:
            print(f"{package}: not installed, not measured")
        else:
            print(here(package, text), flush=True)
    return 0


def of_lists() -> Iterator[str]:
    """Seconds of the scripts whose trace and run noted them."""
    for name in LISTS:
        both = [(row.get("trace_first_step"), row.get("start_seconds")) for row in load([name])]
        shares = [traced / (TIMES * own + PLUS_S) for traced, own in both if traced and own]
        if shares:
            within = sum(share <= 1 for share in shares)
            yield f"{name}: {within} of {len(shares)} scripts in time, median {median(shares):.2f} of it"


def here(package: str, text: str) -> str:
    """CPU seconds of one script on this machine, without a trace and in one."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(FIRST + text)
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, script], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        own = float(done.stdout.rpartition("first step")[2])
        script.write_text(text)
        traced, processes = _traced(str(script), folder)
    share = traced / (TIMES * own + PLUS_S)
    said = f"{package}: {traced:.1f} s of CPU, {own:.1f} s without a trace: {share:.2f} of it"
    return f"{said}; processes that import torch: {processes}"


def _traced(script: str, folder: str) -> Tuple[float, int]:
    spent: List[float] = []
    before = sum(os.times()[:4])
    torch_processes: Dict[str, int] = {}

    def watch(state: State, _: float) -> None:
        if state.training and not spent:
            spent.append(sum(os.times()[:4]) - before + sum(map(_cpu, descendants(os.getpid()))))
        torch_processes["all"] = state.torch_processes

    trace_command([sys.executable, script], Limits(seconds=600.0), folder=folder, progress=watch)
    return spent[0], torch_processes["all"]


def _cpu(pid: int) -> float:
    """Of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
