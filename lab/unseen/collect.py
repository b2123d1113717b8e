"""Trace the published Transformers and run them on fake tensors; needs torch and transformers, no GPU.

    python -m lab.unseen.collect [--only NAME]

Writes lab/data/unseen/NAME.json.xz: our summary with its trace, and FakeTensorMode's peak. What is there
already is not made again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn

from lab.faketensor import live_peak_mib
from lab.places import UNSEEN, shown
from lab.unseen.published import LENGTH, TRANSFORMERS, Published
from slurm_gpumem.summaries.own import to_json
from slurm_gpumem.tracing.trace_model import summarize


def collect(job: Published) -> Dict[str, Any]:
    """The traced summary and FakeTensorMode's answer."""
    with torch.device("meta"):
        model = _built(job)
        summary = summarize(
            model, lambda size: _batch(job, size, labels=True), batch_size=job.batch, optimizer=job.optimizer
        )
    # Weights without values: memory that is never touched.
    real = model.to_empty(device="cpu")
    peak = live_peak_mib(real, lambda: _batch(job, job.batch, labels=False))
    return {"faketensor_mib": round(peak), "summary": json.loads(to_json(summary))}


def _built(job: Published) -> nn.Module:
    kind = getattr(importlib.import_module("transformers"), job.build)
    model: nn.Module = kind(kind.config_class(**job.args)).train()
    return model


def _batch(job: Published, size: int, *, labels: bool) -> Dict[str, Tensor]:
    tokens = torch.zeros(size, LENGTH, dtype=torch.int64)
    found = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if labels:
        found["labels"] = tokens[:, 0] if "Classification" in job.build else tokens
    return found


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.unseen.collect", description=__doc__)
    parser.add_argument("--only", default="", help="models whose name contains this text")
    parser.add_argument("--out", type=Path, default=UNSEEN, help=f"default: {shown(UNSEEN)}")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for job in TRANSFORMERS:
        path = options.out / f"{job.name}.json.xz"
        if options.only in job.name and not path.exists():
            content = json.dumps(collect(job), separators=(",", ":"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lzma.compress(content.encode()))
            print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
