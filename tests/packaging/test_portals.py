"""The forms for Open OnDemand and JupyterHub: what they make of a choice, and of what no form offers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.node.conftest import REPOSITORY

PORTALS = REPOSITORY / "packaging" / "portals"
RENDER = """
require 'erb'; require 'yaml'; require 'json'
given = JSON.parse(ARGV[1], symbolize_names: true)
text = ERB.new(File.read(ARGV[0]), trim_mode: '-').result_with_hash(given)
puts YAML.load(text).to_json
"""
needs_ruby = pytest.mark.skipif(
    shutil.which("ruby") is None, reason="needs ruby, which renders the form's ERB"
)


def ondemand(share: str = "10", hours: str = "2", when_full: str = "wait") -> List[str]:
    """The words of sbatch that Open OnDemand takes from the form's answers."""
    given = json.dumps({"gpu_share": share, "bc_num_hours": hours, "when_full": when_full})
    argv = ["ruby", "-e", RENDER, str(PORTALS / "ondemand" / "submit.yml.erb"), given]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=True, env={**os.environ, "LANG": "C.UTF-8"}
    )
    words: List[str] = json.loads(done.stdout)["script"]["native"]
    return words


class Section(SimpleNamespace):
    """A part of a Jupyter configuration, made when it is named."""

    def __getattr__(self, name: str) -> Section:
        self.__dict__[name] = Section()
        return self.__dict__[name]  # type: ignore[no-any-return]


def jupyterhub() -> Any:
    """Our part of jupyterhub_config.py, as JupyterHub runs it."""
    found: Dict[str, Any] = {"get_config": Section}
    exec((PORTALS / "jupyterhub_config.py").read_text(), found)
    return found["c"].SlurmSpawner


@needs_ruby
def test_a_session_asks_for_its_share_and_its_part_of_the_host() -> None:
    words = ["--gres=shard:10", "--cpus-per-task=2", "--mem=20G", "--time=2:00:00"]
    assert ondemand() == words
    assert ondemand(when_full="leave") == [*words, "--deadline=now+130minutes"]


@needs_ruby
def test_an_answer_that_no_form_offers_is_the_smallest() -> None:
    words = ["--gres=shard:5", "--cpus-per-task=1", "--mem=10G", "--time=1:00:00"]
    assert ondemand('9"\n    - "--uid=root', "-4", "x") == words


def test_the_hub_takes_only_shares_of_its_own_form() -> None:
    spawner = jupyterhub()
    assert spawner.options_from_form({"share": ["10"]}) == {
        "gres": "shard:10",
        "nprocs": "2",
        "memory": "20G",
    }
    smallest = {"gres": "shard:5", "nprocs": "1", "memory": "10G"}
    for form in ({}, {"share": ["99"]}, {"share": ["10\n#SBATCH --uid=root"]}):
        assert spawner.options_from_form(form) == smallest
    assert spawner.options_form.count("<option") == 4


@pytest.mark.slurm
@needs_ruby
def test_slurm_takes_both_and_drops_a_session_that_would_start_too_late(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(nodes=(NodeSpec("n1"),))
    for words in (ondemand(), ondemand(when_full="leave")):
        done = cluster.run(["sbatch", "--hold", "--parsable", "-o", "/dev/null", *words, "--wrap=true"])
        assert done.returncode == 0, done.stderr
        shown = cluster.run(["scontrol", "show", "job", done.stdout.strip()], check=True).stdout
        assert "shard:10" in shown
        assert ("Deadline=N/A" in shown) is not any("deadline" in word for word in words)
