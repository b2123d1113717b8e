"""Computed ranks against real ones: PyTorch's own DDP, FSDP1 and FSDP2 on the CPU, byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

pytest.importorskip("torch")

import torch

from slurm_gpumem import summarize
from slurm_gpumem.summaries.types import ModelSummary
from tests.estimators.ranks import one_rank
from tests.estimators.ranks.rank_figures import of_rank

SHARDED = ("fsdp", "fsdp-grad-op", "fsdp1", "fsdp1-grad-op")
REPLICATED = ("ddp", "ddp,gradient_as_bucket_view")
Figures = Dict[str, Dict[str, int]]


@pytest.fixture(scope="module")
def summary() -> ModelSummary:
    batch = torch.zeros(one_rank.ROWS, 101)
    return summarize(one_rank.build(), batch, optimizer="adamw", loss="mse", scalable=False)


def _start(folder: Path, backend: str, rank: int, ranks: int, *strategies: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, one_rank.__file__, backend, str(rank), str(ranks), str(folder), *strategies]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def _ended(running: List[subprocess.Popen[bytes]]) -> None:
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()[-2000:]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> List[Figures]:
    folder = tmp_path_factory.mktemp("two")
    _ended([_start(folder, "gloo", rank, 2, *REPLICATED, *SHARDED) for rank in (0, 1)])
    return [json.loads((folder / f"gloo-2-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module", params=[3, 4])
def first_of_several(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Figures]:
    folder, ranks = tmp_path_factory.mktemp("several"), int(request.param)
    _ended([_start(folder, "fake", 0, ranks, *SHARDED)])
    return ranks, json.loads((folder / f"fake-{ranks}-0.json").read_text())


@pytest.mark.parametrize("strategy", [*REPLICATED, *SHARDED])
def test_two_processes_hold_the_parameters_gradients_and_states_that_were_computed(
    summary: ModelSummary, two_processes: List[Figures], strategy: str
) -> None:
    computed = of_rank(summary, strategy, 2)
    real = two_processes[0][strategy]
    assert (computed["weights"], computed["optimizer"]) == (real["weights"], real["optimizer"])
    held = computed["buckets"] if strategy == REPLICATED[1] else computed["gradients"]
    assert held == real["gradients"]
    # The last rank's shards may be smaller, never larger.
    assert two_processes[1][strategy]["optimizer"] <= computed["optimizer"]


@pytest.mark.parametrize("strategy", REPLICATED)
def test_the_most_that_a_process_under_ddp_holds_is_what_was_computed(
    summary: ModelSummary, two_processes: List[Figures], strategy: str
) -> None:
    assert of_rank(summary, strategy, 2)["peak"] == pytest.approx(
        two_processes[0][strategy]["peak"], rel=0.005
    )


@pytest.mark.parametrize("strategy", SHARDED)
def test_the_most_that_a_rank_under_fsdp_holds_is_what_was_computed(
    summary: ModelSummary, first_of_several: tuple[int, Figures], strategy: str
) -> None:
    ranks, figures = first_of_several
    computed, real = of_rank(summary, strategy, ranks), figures[strategy]
    for part in ("weights", "gradients", "optimizer"):
        assert computed[part] == real[part]
    # FSDP2's buffers for gathering have a pool of their own on a GPU, counted at its largest: two units.
    assert computed["peak"] * 0.995 <= real["peak"] <= (computed["peak"] + computed["pool"]) * 1.005
    if not computed["pool"]:
        assert real["peak"] == pytest.approx(computed["peak"], rel=0.005)
