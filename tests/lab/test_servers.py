"""Servers for measured jobs of several users; a stand-in for the control program notes its calls."""

import os
from pathlib import Path

import pytest

from lab.collect.servers import servers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="runs jobs as other users")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in noted: user, arguments, pipe folder, what it was asked."""
    tmp_path.chmod(0o755)
    notes = tmp_path / "calls"
    notes.touch()
    notes.chmod(0o666)
    tool = tmp_path / "nvidia-cuda-mps-control"
    said = "$(id -u) [$*] $CUDA_MPS_PIPE_DIRECTORY $order"
    tool.write_text(f'#!/bin/sh\n[ "$*" ] || read order\necho "{said}" >> {notes}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):  # pytest's own folders are for one user only
            parent.chmod(0o755)
    return notes


@needs_root
def test_each_user_gets_a_server_of_its_own(calls: Path) -> None:
    with servers("per-user", [65531, 65532, 65531]) as environments:
        first, second = (environments[uid]["CUDA_MPS_PIPE_DIRECTORY"] for uid in (65531, 65532))
        assert first != second
        assert os.stat(first).st_uid == 65531
    assert calls.read_text().splitlines() == [
        f"65531 [-d] {first} ",
        f"65532 [-d] {second} ",
        f"65532 [] {second} quit",
        f"65531 [] {first} quit",
    ]


def test_one_server_for_all_users_is_asked_for_by_its_option(calls: Path) -> None:
    with servers("shared", [65531, 65532]) as environments:
        assert environments[65531] == environments[65532]
        folder = environments[65531]["CUDA_MPS_PIPE_DIRECTORY"]
    started, ended = calls.read_text().splitlines()
    assert "[-multiuser-server -d]" in started
    assert ended.endswith(f"[] {folder} quit")


def test_time_slices_need_no_server(calls: Path) -> None:
    with servers("timeslice", [0, 65531]) as environments:
        assert environments == {0: {}, 65531: {}}
    assert calls.read_text() == ""
