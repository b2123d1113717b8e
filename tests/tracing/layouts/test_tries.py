"""Every way out of a trace that we know, in each mode: none reaches anything outside."""

from __future__ import annotations

import functools
import platform
from dataclasses import replace
from pathlib import Path
from typing import Dict

import pytest

from tests.tracing.layouts.layouts import BY_NAME, in_shell, run_in
from tests.tracing.layouts.tries import TRIES

_FILE = Path(__file__).with_name("tries.py")
_TARGETS = f"""
mkdir -p $D/srv/tries $D/srv/files; chmod 1777 $D/srv/files; mount --bind $D/srv /srv; cp {_FILE} $D/tries.py
mount -t tmpfs -o mode=1777 none /dev/shm
"""
MODES = {"private copy": "local home", "Landlock only": "Landlock only"}
NOT_COVERED = {("Landlock only", "fifo_emptied")}
"""What docs/user/trace.md says."""


@functools.cache
def reached(layout: str, *, bare: bool = False) -> Dict[str, bool]:
    """Which tries changed something outside."""
    site = replace(
        BY_NAME[layout],
        watched=("/home",) if not bare else (),
        daemons=(("-m", "tests.tracing.layouts.witness", "$D", "$D/report"),),
    )
    found = run_in(site, in_shell("exec /usr/bin/python3 -I $LAYOUT/tries.py"), _TARGETS, bare=bare)
    assert found["observed"], found["errors"]
    answer: Dict[str, bool] = found["observed"]["reached"]
    return answer


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls are x86_64's")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TRIES)
def test_it_reaches_nothing_outside(name: str, mode: str) -> None:
    if not reached("local home", bare=True)[name]:
        pytest.skip("this machine does not allow it without a trace either")
    assert reached(MODES[mode])[name] == ((mode, name) in NOT_COVERED)
