"""Trainings that are told to save, end, and go on from their checkpoint: with every framework, as one run."""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Dict, List

import pytest

pytest.importorskip("torch", reason="needs PyTorch")

from slurm_gpumem.formats.slot_state import LATEST, read_slot_state

HEAD = """
import os, signal
def tell(step):
    if str(step) == os.environ.get("TELL_AT"):
        signal.raise_signal(int(os.environ.get("TELL_BY", signal.SIGUSR1)))
def say(step, loss):
    print(step, repr(loss.item()), flush=True)
"""
PLAIN = """
import random, torch
from slurm_gpumem.adapters.slots import Slot
torch.manual_seed(0); random.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
MADE
for step in slot.steps(20):
    loss = (model(torch.randn(4, 8)) * random.random()).pow(2).mean()
    optimizer.zero_grad(); BACKWARD; optimizer.step(); scheduler.step()
    say(step, loss); tell(step)
print("finished")
"""
PYTORCH = PLAIN.replace("MADE", "slot = Slot(model=model, optimizer=optimizer, scheduler=scheduler)").replace(
    "BACKWARD", "loss.backward()"
)
OFTEN = PYTORCH.replace("Slot(model", "Slot(every_s=0, model")
ACCELERATE = PLAIN.replace(
    "MADE",
    "from accelerate import Accelerator; a = Accelerator(cpu=True)\n"
    "model, optimizer, scheduler = a.prepare(model, optimizer, scheduler); slot = Slot(accelerator=a)",
).replace("BACKWARD", "a.backward(loss)")
TRAINER = """
import sys, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from slurm_gpumem.adapters.transformers import SlotCallback, resume_file
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        loss = (self.layer(x) - labels).pow(2).mean()
        say(trainer.state.global_step, loss)
        return {"loss": loss}
class Teller(TrainerCallback):
    def on_step_begin(self, args, state, control, **_): tell(state.global_step)
torch.manual_seed(0)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(40)]
args = TrainingArguments(output_dir=sys.argv[1], max_steps=20, per_device_train_batch_size=4, use_cpu=True,
                         save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no", seed=1)
trainer = Trainer(model=Model(), args=args, train_dataset=data, callbacks=[SlotCallback(), Teller()])
trainer.train(resume_from_checkpoint=resume_file())
print("finished")
"""
LIGHTNING = """
import sys, torch
try:
    from lightning import pytorch as pl
except ImportError:
    import pytorch_lightning as pl
from slurm_gpumem.adapters.lightning import SlotCallback, resume_file
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) - batch[1]).pow(2).mean()
        say(self.trainer.global_step, loss); tell(self.trainer.global_step)
        return loss
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr=0.01)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.ones(80, 8), torch.ones(80, 1))
trainer = pl.Trainer(max_steps=20, accelerator="cpu", logger=False, enable_progress_bar=False,
                     enable_checkpointing=False, default_root_dir=sys.argv[1], callbacks=[SlotCallback()])
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=resume_file())
print("finished")
"""
TOGETHER = {
    "pytorch": (
        PYTORCH,
        "slot = Slot",
        "import torch.distributed as d; d.init_process_group('gloo'); slot = Slot",
    ),
    "accelerate": (ACCELERATE, "", ""),
    "transformers": (TRAINER, "use_cpu=True", "use_cpu=True, ddp_backend='gloo'"),
    "lightning": (LIGHTNING, 'accelerator="cpu"', 'accelerator="cpu", strategy="ddp", devices=2'),
}
"""What two processes need more."""
PROGRAMS = {
    "pytorch": (PYTORCH, "torch"),
    "accelerate": (ACCELERATE, "accelerate"),
    "transformers": (TRAINER, "transformers"),
    "lightning": (LIGHTNING, "lightning"),
}


class Training:
    """A program that is run as the node's hooks would run it."""

    def __init__(self, code: str, folder: Path) -> None:
        self.code, self.folder, self.saves = HEAD + code, folder, folder / "saves"
        self.losses: List[str] = []
        self.finished = False

    def env(self, number: int, **more: object) -> Dict[str, str]:
        """The variables of one run."""
        found = self.saves / LATEST
        resume = {"GPUMEM_RESUME": "1", "GPUMEM_RESUME_FILE": str(found.resolve())} if found.exists() else {}
        given = {
            "GPUMEM_SLOT_DIR": str(self.saves),
            "SLURM_RESTART_COUNT": str(number),
            "GPUMEM_SLOT_END": "4000000000",
            "GPUMEM_SAVE_AT": "4000000000",
        }
        return {**given, **resume, **{key: str(value) for key, value in more.items()}}

    def run(self, number: int, **more: object) -> int:
        """One run in this process, which saves the time to load torch; its exit code."""
        handlers = {one: signal.getsignal(one) for one in (signal.SIGUSR1, signal.SIGTERM)}
        printed, code = io.StringIO(), 0
        try:
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
                patch.setattr(sys, "argv", ["train.py", str(self.folder / "out")])
                for key, value in self.env(number, **more).items():
                    patch.setenv(key, value)
                exec(compile(self.code, "train.py", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            code = int(str(end.code))
        finally:
            self.at_end = signal.getsignal(signal.SIGUSR1)
            for one, handler in handlers.items():
                signal.signal(one, handler)
        self.take(printed.getvalue())
        return code

    def take(self, printed: str) -> None:
        """What it printed for each step."""
        self.finished = "finished" in printed
        self.losses += [line for line in printed.splitlines() if line[:1].isdigit()]

    @property
    def steps(self) -> List[int]:
        return [int(line.split()[0]) for line in self.losses]


def uninterrupted(code: str, folder: Path) -> List[str]:
    folder.mkdir()
    whole = Training(code, folder)
    assert whole.run(0) == 0
    assert whole.finished
    return whole.losses


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_training_in_three_slots_has_the_losses_of_one_run(tmp_path: Path, name: str) -> None:
    code, package = PROGRAMS[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    training = Training(code, tmp_path)
    assert training.run(0, TELL_AT=6) == 75
    assert not training.finished
    state = read_slot_state(training.saves)
    assert state is not None
    assert (state.run, state.step, state.ended) == (0, 7, True)
    assert training.run(1, TELL_AT=11) == 75
    assert training.run(2) == 0
    assert training.finished
    assert training.steps == list(range(20))
    assert training.losses == uninterrupted(code, tmp_path / "whole")


def test_a_training_that_is_killed_goes_on_from_its_last_whole_checkpoint(tmp_path: Path) -> None:
    training = Training(OFTEN, tmp_path)
    killed = subprocess.run(
        [sys.executable, "-c", training.code],
        env={**os.environ, **training.env(0, TELL_AT=9, TELL_BY=int(signal.SIGKILL))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    training.take(killed.stdout)
    (training.saves / ".step-10").mkdir()
    (training.saves / ".step-10" / "rank0.pt").write_bytes(b"torn")
    assert training.run(1) == 0
    # Step 9 was not saved any more: it is done again, with the same result.
    assert training.steps == [*range(10), *range(9, 20)]
    assert training.losses[9:10] + training.losses[11:] == uninterrupted(OFTEN, tmp_path / "whole")[9:]
    assert training.losses[9] == training.losses[10]
    assert [path.name for path in training.saves.glob("*step-*")] == ["step-20"]


def test_sigterm_saves_and_leaves_it_to_slurm_what_follows(tmp_path: Path) -> None:
    training = Training(PYTORCH, tmp_path)
    assert training.run(0, TELL_AT=3, TELL_BY=int(signal.SIGTERM)) == 75
    state = read_slot_state(training.saves)
    assert state is not None
    assert (state.step, state.ended) == (4, False)
    assert training.run(1) == 0
    assert training.steps == list(range(20))


def test_the_clock_tells_where_no_signal_comes(tmp_path: Path) -> None:
    training = Training(PYTORCH, tmp_path)
    assert training.run(0, GPUMEM_SAVE_AT=1) == 75
    assert training.steps == [0]
    assert training.at_end == signal.SIG_IGN, "a signal that comes while Python ends would kill it"


def test_outside_of_a_job_nothing_is_saved(tmp_path: Path) -> None:
    training = Training(PYTORCH, tmp_path)
    assert training.run(0, GPUMEM_SLOT_DIR="") == 0
    assert not training.saves.exists()


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "saves").write_text("a file")
    training = Training(PYTORCH, tmp_path)
    with pytest.warns(UserWarning, match="no checkpoints: .*GPUMEM_CHECKPOINTS names another"):
        assert training.run(0) == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_full_disk_at_a_slots_end_costs_no_step_and_no_older_checkpoint(tmp_path: Path, name: str) -> None:
    code, package = PROGRAMS[name]
    pytest.importorskip(package, reason=f"{package} is not installed")
    training = Training(code, tmp_path)
    assert training.run(0, TELL_AT=3) == 75
    saved = (training.saves / LATEST).resolve()
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, most[1]))
    try:
        with pytest.warns(UserWarning, match="gpumem: no checkpoint at step 10"):
            assert training.run(1, TELL_AT=9) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert training.finished
    assert training.steps == list(range(20))
    assert (training.saves / LATEST).resolve() == saved
    assert saved.exists()
    found = (*training.saves.glob("*step-*"), *(tmp_path / "out").glob("checkpoint-10"))
    assert [path.name for path in found] == [path.name for path in training.saves.glob("step-4")]


@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_where_one_process_cannot_save_the_others_do_not_wait_for_it(
    tmp_path: Path, name: str, short: int
) -> None:
    pytest.importorskip(PROGRAMS[name][1], reason=f"{name} is not installed")
    code, old, new = TOGETHER[name]
    training = Training(code.replace(old, new), tmp_path)
    full = "import os, resource\nif os.environ['RANK'] == os.environ['SHORT']:\n"
    full += "    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
    given = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    given.update(TORCHELASTIC_RUN_ID="test", GLOO_SOCKET_IFNAME="lo", SHORT=short, TELL_AT=9)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", full + training.code, str(tmp_path / "out")],
            env={**os.environ, **training.env(0, RANK=rank, LOCAL_RANK=rank, **given)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    wrote = short == 0 or name != "lightning"  # where the first process writes for all
    for rank, (printed, said) in zip(ranks, told):
        assert (rank.returncode, "finished" in printed) == ((0, True) if wrote else (75, False)), said
        assert ("gpumem: no checkpoint at step 10" in said) == wrote, said
    assert (training.saves / LATEST).exists() != wrote


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
