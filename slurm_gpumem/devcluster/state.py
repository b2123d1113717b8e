"""The data of a started cluster, on disk, so that a later command can find it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from slurm_gpumem.devcluster.layout import Layout
from slurm_gpumem.devcluster.processes import Process, alive
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec, Undivided
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.files import write_atomic

_SCHEMA = 1


@dataclass
class ClusterState:
    """The cluster in one state directory: its spec and the processes started so far."""

    spec: ClusterSpec
    processes: List[Process] = field(default_factory=list)

    def controller(self) -> Optional[Process]:
        """The running slurmctld; a cluster is "up" if it has one."""
        return next((p for p in self.processes if p.program == "slurmctld" and alive(p)), None)


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Lock the state directory, so that `up` and `down` never work in it at the same time."""
    try:
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DevClusterError(f"{layout.lock}: {error.strerror}; is this another user's cluster?") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevClusterError(
                f"{layout.root}: another gpumem devcluster command is at work in this state directory; "
                "wait for it or choose another with --state"
            ) from None
        yield
    finally:
        os.close(descriptor)


def save(layout: Layout, state: ClusterState) -> None:
    """Write the state atomically: a reader sees the old one or the new one."""
    spec = dataclasses.asdict(state.spec)
    spec["state"] = str(state.spec.state)
    spec["slurm_root"] = None if state.spec.slurm_root is None else str(state.spec.slurm_root)
    content = {
        "schema": _SCHEMA,
        "spec": spec,
        "processes": [dataclasses.asdict(process) for process in state.processes],
    }
    write_atomic(layout.state_file, json.dumps(content, indent=1) + "\n")


def load(layout: Layout) -> Optional[ClusterState]:
    """The state, or None if no cluster was started."""
    try:
        content = json.loads(layout.state_file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DevClusterError(
            f"{layout.state_file}: cannot be read ({error}); is it a dev cluster's?"
        ) from None
    try:
        if content["schema"] != _SCHEMA:
            raise DevClusterError(f"{layout.state_file}: written by another version of gpumem")
        return ClusterState(
            spec=_spec(content["spec"]),
            processes=[Process(**process) for process in content["processes"]],
        )
    except (KeyError, TypeError) as error:
        raise DevClusterError(f"{layout.state_file}: is not a dev cluster's state ({error!r})") from None


def _spec(content: Dict[str, Any]) -> ClusterSpec:
    return ClusterSpec(
        **{
            **content,
            "nodes": tuple(_node(node) for node in content["nodes"]),
            "extra_conf": tuple(content["extra_conf"]),
            "whole_nodes": tuple(content["whole_nodes"]),
            "state": Path(content["state"]),
            "slurm_root": None if content["slurm_root"] is None else Path(content["slurm_root"]),
        }
    )


def _node(fields: Dict[str, Any]) -> NodeSpec:
    # JSON has lists only.
    instances = tuple(Undivided(*kind) for kind in fields["instances"])
    return NodeSpec(**{**fields, "instances": instances})
