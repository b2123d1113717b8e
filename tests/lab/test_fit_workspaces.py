"""The fit of cuDNN's workspaces: what it makes of measured operators, and what it says without numpy."""

from __future__ import annotations

import subprocess
import sys

from lab.probe.measured_calls import _beyond


def test_a_workspace_is_what_is_held_beside_the_results() -> None:
    assert _beyond([100, 7, -7], [100]) == [0, 7]
    assert _beyond([30, 5, -5, 20, 9, 4, -9, -4], [30, 20]) == [0, 5, 13]


def test_a_call_that_made_other_results_is_left_out() -> None:
    assert _beyond([100], [50]) is None
    assert _beyond([50, 3], [50]) is None


def test_a_missing_library_is_named_with_the_way_to_get_it() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from lab.command import exit_code; "
        "from lab.fit import workspaces as fit; sys.exit(exit_code(fit.main))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "gpumem: numpy is not installed: pip install -e '.[train]'"
