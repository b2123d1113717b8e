"""MPS servers for measured jobs: one user's, one for each user, or one for all users."""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, List, Mapping, Sequence

_CONTROL = "nvidia-cuda-mps-control"
Environments = Mapping[int, Mapping[str, str]]
"""By user id: what the environment of that user's jobs needs."""


@contextmanager
def servers(mode: str, uids: Sequence[int]) -> Iterator[Environments]:
    """The servers that a mode of `sample.MODES` asks for, up meanwhile; user 0 is who measures."""
    with ExitStack() as stack:
        if mode == "timeslice":
            yield {uid: {} for uid in uids}
        elif mode == "shared":
            yield dict.fromkeys(uids, stack.enter_context(_server(0, ["-multiuser-server"])))
        else:
            made: Dict[int, Mapping[str, str]] = {}
            for uid in dict.fromkeys(uids):
                made[uid] = stack.enter_context(_server(uid, []))
            yield made


@contextmanager
def _server(uid: int, options: List[str]) -> Iterator[Mapping[str, str]]:
    with tempfile.TemporaryDirectory(prefix="gpumem-mps-") as folder:
        # Other users' clients of a server for all must reach its pipe.
        os.chmod(folder, 0o1777)
        if uid:
            os.chown(folder, uid, uid)
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        given = {**os.environ, **environment}
        user = {"user": uid, "group": uid, "extra_groups": []} if uid else {}
        subprocess.run([_CONTROL, *options, "-d"], env=given, check=True, timeout=30, cwd="/", **user)  # type: ignore[call-overload]
        try:
            yield environment
        finally:
            subprocess.run([_CONTROL], input=b"quit\n", env=given, check=False, timeout=30, cwd="/", **user)  # type: ignore[call-overload]
