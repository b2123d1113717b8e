"""Code where a summary may stand: traced once, kept, refused where it was traced otherwise."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.summaries.parsers.own import to_json
from tests.estimators.explain.small_trace import small_summary
from tests.support.needs import needs_torch

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, depth)]
        self.sizes = torch.tensor([2, 3]).tolist()
        self.register_buffer("turns", torch.tensor(2))
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        for _ in range(int(self.turns)):
            x = self.layer(x)
        return x

def build():
    assert not open("config.txt").read().strip() == "broken"
    return Net()

def student_and_teacher():
    return Net(), nn.Linear(64, 1000)

def distill(models, batch, optimizer):
    student, teacher = models
    loss = teacher(student(batch)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, int(torch.randn(100).abs().max() + 60))

    def forward(self, x):
        return self.layer(x)
"""


class Place:
    """A folder with code, and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net.py").write_text(CODE)
        (folder / "config.txt").write_text("fine\n")

    def gpumem(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GPUMEM_")}
        env.update(
            {
                "PYTHONIOENCODING": "utf-8",
                "GPUMEM_SITE_CONFIG": "/dev/null/x",
                "HOME": str(self.folder),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
            }
        )
        command = [sys.executable, "-m", "slurm_gpumem", *args]
        return subprocess.run(
            command, capture_output=True, text=True, env=env, cwd=self.folder, input=stdin, check=False
        )

    def kept(self) -> Path:
        (found,) = (self.folder / "cache" / "gpumem" / "traces").glob("*")
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@needs_torch
def test_estimate_traces_code_and_fit_takes_the_trace_until_a_file_changes(place: Place) -> None:
    asked = ("net.py:build", "--input", "64", "--batch-size", "32", "--gpu", "h200")
    first = place.gpumem("estimate", *asked)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("Net, batch 32, Adam, fp32, h200")
    head, _, summary = gzip.decompress(place.kept().read_bytes()).partition(b"\n")
    changed = json.dumps({**json.loads(head), "notes": ["the kept one"]}).encode()
    place.kept().write_bytes(gzip.compress(changed + b"\n" + summary))
    assert "the kept one" in place.gpumem("fit", *asked).stderr
    (place.folder / "config.txt").write_text("fine, but other\n")
    assert "the kept one" not in place.gpumem("fit", *asked).stderr


@needs_torch
def test_an_estimate_of_code_follows_the_jobs_own_pytorch_and_variables(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (
        "estimate", "net.py:build", "--input", "64", "--batch-size", "32", "--gpu", "h200", "--explain",
        "-v",
    )  # fmt: skip
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    done = place.gpumem(*asked, "--torch", "1.13")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "as PyTorch 1.13 does: zero_grad() keeps the gradients through the forward pass (traced)" in said
    assert "CUBLAS_WORKSPACE_CONFIG=:16:8" in said


@needs_torch
def test_a_builder_may_return_several_modules_and_all_of_them_count(place: Place) -> None:
    out = place.folder / "both.json"
    asked = ("summarize", "net.py:student_and_teacher", "--input", "64", "--batch-size", "8", "-o", str(out))
    one = place.gpumem(*asked, "--grad-accumulation", "2")
    assert one.returncode == 0, one.stderr
    assert "69,160 parameters" in one.stdout, "64 x 64 + 64 of the student, 64 x 1000 + 1000 of the teacher"
    assert "loss: cross-entropy over [8, 64]" in one.stdout
    assert json.loads(out.read_text())["trace"]["job"]["grad_accumulation"] == 2
    own = place.gpumem(*asked, "--step-callable", "net.py:distill")
    assert own.returncode == 0, own.stderr
    refused = place.gpumem(*asked, "--step-callable", "net.py:distill", "--grad-accumulation", "2")
    assert refused.returncode == 2
    assert "accumulates itself" in refused.stderr


@needs_torch
def test_a_model_that_reads_what_meta_tensors_do_not_have_is_built_on_the_cpu(place: Place) -> None:
    done = place.gpumem("estimate", "net.py:Reads", "--input", "64", "--batch-size", "8")
    assert done.returncode == 0, done.stderr
    assert "built on the CPU, because it reads values: net.py, line" in done.stderr


def test_a_summary_comes_from_standard_input(place: Place) -> None:
    text = to_json(small_summary())
    for command in ("estimate", "fit", "why"):
        done = place.gpumem(command, "-", "--gpu", "a100", stdin=text)
        assert done.returncode == 0, done.stderr
    empty = place.gpumem("estimate", "-")
    assert empty.returncode == 2
    assert "standard input is empty" in empty.stderr


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        *((command, ["--optimizer", "sgd"], "not sgd") for command in ("estimate", "fit", "why")),
        *((command, ["--precision", "bf16"], "not bf16") for command in ("estimate", "fit", "why")),
        *(
            (command, ["--grad-accumulation", "4"], "without gradient accumulation")
            for command in ("estimate", "fit", "why")
        ),
        ("estimate", ["--loss", "mse"], "not mse"),
    ],
)
def test_what_a_trace_was_made_without_is_refused(
    place: Place, command: str, options: list[str], said: str
) -> None:
    summary = place.folder / "small.json"
    document = json.loads(to_json(small_summary()))
    document["trace"]["job"].update(optimizer="adam", loss="cross-entropy over [8, 10]")
    summary.write_text(json.dumps(document))
    done = place.gpumem(command, str(summary), "--gpu", "a100", *options)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "trace again" in done.stderr
