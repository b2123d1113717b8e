"""Fixtures for tests that need a real Slurm."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest
from hypothesis import settings

from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec
from tests.support.long_tests import is_long, read_list
from tests.support.slurm_daemons import stop_restarted
from tests.support.waiting import remove_tree

# A busy machine is no reason to fail: a property test is judged by its result, not by its time.
settings.register_profile(
    "gpumem", deadline=None, max_examples=int(os.environ.get("GPUMEM_TEST_EXAMPLES", "40"))
)
settings.load_profile("gpumem")

ClusterFactory = Callable[..., Cluster]
CLUSTER_FIXTURES = {"cluster", "make_cluster", "make_module_cluster"}
COLLECTED: pytest.StashKey[List[str]] = pytest.StashKey()
"""All tests of the files that were asked for, before any is deselected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-torch", action="store_true", help="skip what needs torch, as where it is not installed"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Users of jobs run programs from tests' folders. What another umask does is for tests that set it.
    os.umask(0o022)
    if config.getoption("--without-torch"):
        # importorskip finds no module where None stands; nothing else takes torch's seconds to import.
        sys.modules["torch"] = None  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    config.stash[COLLECTED] = [item.nodeid for item in items]
    entries = read_list()
    for item in items:
        if is_long(item.nodeid, entries):
            item.add_marker("long")
        if CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slurm")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of two nodes with four 40-GiB a100 each, shared by all tests of the session.

    Leave it as you found it: cancel your jobs, change no configuration. `make_cluster` is for the rest.
    """
    with _clusters() as make:
        yield make()


class _AsRoot:
    """The module os, to somebody who asks as whom this process runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def geteuid(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def _records_of_all_users() -> Iterator[None]:
    """An ordinary user's index has own jobs only; those of tests are made-up users'."""
    with pytest.MonkeyPatch.context() as patch:
        if os.geteuid() != 0:
            patch.setattr("slurm_gpumem.accounting.store.os", _AsRoot())
        yield


@pytest.fixture
def make_cluster() -> Iterator[ClusterFactory]:
    """Makes a cluster of the test's own from fields of ClusterSpec, and stops it afterwards."""
    with _clusters() as make:
        yield make


@pytest.fixture(scope="module")
def make_module_cluster() -> Iterator[ClusterFactory]:
    """The same for all tests of a module; it is stopped after the last of them."""
    with _clusters() as make:
        yield make


@pytest.fixture
def state_folder() -> Iterator[Path]:
    """An empty folder that users of jobs can enter and whose path is short enough for sockets."""
    # pytest's own folders are long, and closed to the users whose jobs run in the cluster.
    folder = Path(tempfile.mkdtemp(prefix="gpumem-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


class _clusters:
    """All clusters made within a `with` block, stopped and removed at its end."""

    def __init__(self) -> None:
        self._running: List[Cluster] = []

    def __enter__(self) -> ClusterFactory:
        return self._make

    def __exit__(self, *exc: object) -> None:
        for cluster in reversed(self._running):
            stop_restarted(cluster)
            cluster.stop()
            remove_tree(cluster.layout.root)

    def _make(self, **fields: Any) -> Cluster:
        fields.setdefault("state", Path(tempfile.mkdtemp(prefix="gpumem-")))
        root = os.environ.get("GPUMEM_TEST_SLURM_ROOT")
        if root:
            fields.setdefault("slurm_root", Path(root))
        try:
            cluster = up(ClusterSpec(**fields))
        except Exception:
            remove_tree(fields["state"])
            raise
        self._running.append(cluster)
        return cluster
