"""PyTorch in time slots on real daemons: the loss goes on where it was."""

from __future__ import annotations

import subprocess
from typing import List

import pytest

from tests.recovery.conftest import Site, needs_root
from tests.support.other_user import user_python

pytest.importorskip("torch")

pytestmark = [needs_root, pytest.mark.slurm]

STEPS = 60
SLOTS = "mine gpumem/1:est=11000,req=12288,by=test,shards=12,oom=requeue,slot=40"
PROGRAM = f"""
import os, time
import torch
from slurm_gpumem.adapters.slots import Slot

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
slot = Slot(model=model, optimizer=optimizer, scheduler=scheduler)
for step in slot.steps({STEPS}):
    x = torch.randn(4, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", step, f"{{loss.item():.6f}}", flush=True)
    time.sleep(0.8 if "SLURM_JOB_ID" in os.environ else 0)
"""


def losses(text: str) -> List[str]:
    return [line for line in text.splitlines() if line.startswith("loss ")]


def test_losses_and_steps_are_those_of_a_run_without_slots(module_site: Site) -> None:
    site = module_site
    path = site.root / "out" / "train.py"
    path.write_text(PROGRAM)
    found = user_python()
    assert found is not None
    python, env = found
    argv = ["/usr/sbin/runuser", "-u", "nobody", "--", python, str(path)]
    alone = subprocess.run(argv, env=env, check=True, capture_output=True, text=True)
    words = "".join(f"export {key}={value}; " for key, value in env.items())
    job = site.submit(
        f"{words}{python} {path}",
        comment=SLOTS,
        env={"GPUMEM_CHECKPOINTS": f"{site.root}/out/saved"},
    )
    shown = site.ended(job, "COMPLETED", 900)  # on a busy machine a slot may be over after one step
    assert int(shown["RestartCnt"]) >= 1
    assert losses(site.out(job)) == losses(alone.stdout)
    assert len(losses(alone.stdout)) == STEPS
