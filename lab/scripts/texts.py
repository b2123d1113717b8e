"""What a row says of a job's summary texts, which need no GPU."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict

from lab.scripts.lists import Prepared


def texts(script: Prepared, seconds: float) -> Dict[str, Any]:
    """All texts of the job's network (lab/networks/texts.py), or why there are none."""
    python = script.command[0]
    command = [python, "-m", "lab.networks.texts", json.dumps(script.job)]
    try:
        done = subprocess.run(
            command,
            cwd=script.folder,
            env=script.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"texts_error": f"not done after {seconds:.0f} s"}
    if done.returncode:
        return {"texts_error": done.stderr[-600:]}
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
