"""Traces of whole scripts are what they were; where a change is meant, the test run with WRITE=1 keeps it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from slurm_gpumem.tracing.script.run import TracedScript
from tests.support.kept import assert_kept

_KEPT = Path(__file__).resolve().parents[1] / "tracing" / "script" / "traces.json"


def assert_trace_kept(name: str, traced: TracedScript) -> None:
    """Of a short script that came to its end: how many of many steps are looked at depends on the machine."""
    assert traced.facts["ended"] or traced.facts["cut_off"] is False, traced.facts
    facts = json.dumps([traced.facts, traced.notes, traced.ranks, len(traced.changed)], sort_keys=True)
    summary = re.sub(r'"torch":"[^"]*"', "", traced.summary.decode())
    assert_kept(_KEPT, {f"{name}: facts": facts, f"{name}: trace": summary})
