"""Networks of public repositories: built from where they are, each by its own modules, never by another's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

pytest.importorskip("torch", reason="networks are built with torch")

from lab.networks.build import build_model
from lab.networks.entries import Entry
from lab.networks.jobs import Job
from lab.networks.repositories import FOLDER, build_from_repository
from lab.networks.texts import summary_texts
from lab.score.trace_rows import trace_row

NET = """
import torch
from layers import width


class Config:
    def __init__(self, depth):
        self.depth = depth


class Net(torch.nn.Module):
    def __init__(self, configs, sizes=(1,)):
        super().__init__()
        self.asked, self.sizes = configs, sizes
        self.one = torch.nn.Linear(width, 2)
"""


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, width in (("ann+nets", 3), ("bob+nets", 5)):
        package = tmp_path / name / "models"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("import a_library_that_nobody_has\n")
        (package / "net.py").write_text(NET)
        (tmp_path / name / "layers.py").write_text(f"width = {width}\n")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        # Only theirs: what torch imports at its first use cannot be imported twice.
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "")
        if str(place).startswith(str(tmp_path)):
            del sys.modules[name]


def test_two_repositories_with_modules_of_one_name_are_each_built_from_their_own(repositories: Path) -> None:
    widths = [
        build_from_repository(f"{owner}/nets@c0ffee:models.net.Net", {"configs": {}}).one.in_features  # type: ignore[union-attr]  # a layer
        for owner in ("ann", "bob", "ann")
    ]
    assert widths == [3, 5, 3]


def test_modules_of_a_folder_between_root_and_file_are_found(repositories: Path) -> None:
    folder = repositories / "ann+nets" / "src" / "models"
    folder.mkdir(parents=True)
    (folder / "deep.py").write_text("from between import Net\n")
    (folder.parent / "between.py").write_text(NET)
    model: Any = build_from_repository("ann/nets@c0ffee:src.models.deep.Net", {"configs": {}})
    assert model.one.in_features == 3


def test_a_table_with_a_class_is_an_instance_of_the_modules_class(repositories: Path) -> None:
    model: Any = build_from_repository(
        "ann/nets@c0ffee:models.net.Net", {"configs": {"class": "Config", "depth": 7}}
    )
    assert (type(model.asked).__name__, model.asked.depth) == ("Config", 7)


GPU_NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device
        self.weight = torch.nn.Parameter(torch.randn(64, 64).cuda())
        self.one = torch.nn.Linear(64, 64).to(device)

    def forward(self, x):
        shift = torch.zeros(x.shape[0], 64).cuda()
        if torch.cuda.is_available():
            shift = shift + torch.ones(64, device=self.device)
        return self.one(x @ self.weight) + shift.to(self.device)
"""


def test_a_network_that_says_cuda_is_traced_and_described_without_a_gpu(repositories: Path) -> None:
    (repositories / "ann+nets" / "gpu_net.py").write_text(GPU_NET)
    entry = Entry(
        id="repository/gpu-net",
        source="repository",
        family="handwritten-ann",
        build="ann/nets@c0ffee:gpu_net.Net",
        task="squares",
        args={"device": "cuda:0"},
        task_args={"inputs": ["float S"]},
        sizes=(64,),
    )
    job = Job(entry, 64, 8, "adam", "fp32", {})
    trace = trace_row(job.as_row()).trace
    assert trace is not None
    assert trace.job.batch == 8
    texts = summary_texts(job)
    assert texts["parameters"] == 2 * 64 * 64 + 64
    assert "Linear(in_features=64" in texts["print"]


def test_an_entry_is_built_by_its_source(repositories: Path) -> None:
    entry = Entry(
        id="repository/net",
        source="repository",
        family="handwritten-ann",
        build="ann/nets@c0ffee:models.net.Net",
        task="squares",
        args={"configs": {}},
    )
    assert build_model(entry).training
