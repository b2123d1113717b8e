"""Job records as nodes write them, made for a test, and stores of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Optional

from slurm_gpumem.accounting.store import Store, open_store
from slurm_gpumem.config.accounting import AccountingConfig

DAY = 86_400.0
NOON = 1_700_049_600.0
"""2023-11-15 12:00 UTC."""
UUID = "GPU-00000001-0000-0000-0000-000000000000"


def record(job_id: int = 1, **changes: Any) -> Dict[str, Any]:
    """One closed record of a job that shared a GPU for an hour; `claim` changes words of the comment."""
    claim = {
        "est": "11900",
        "req": "13000",
        "by": "corrected",
        "gpu": "a100",
        "batch": "128",
        "shards": "13",
        "oom": "requeue",
        "model": "resnet50",
        "fp": "0123456789abcdef",
        "opt": "adam",
        "prec": "fp32",
        "parts": "97+97+195+9948+310+495+758",
        **changes.pop("claim", {}),
    }
    gpu = changes.pop("gpu_name", "NVIDIA A100-SXM4-40GB")
    uuids = changes.get("gpus", [UUID])
    values: Dict[str, Any] = {
        "schema": "gpumem-job/2",
        "job_id": job_id,
        "restarts": 0,
        "cluster": "site",
        "partition": "gpu",
        "node": "n1",
        "user": "usr1",
        "uid": 71001,
        "mode": "mps",
        "gpus": uuids,
        "claim": "gpumem/1:" + ",".join(f"{key}={value}" for key, value in claim.items()),
        "shards": 13,
        "shards_verified": True,
        "limit_mib": 13_312,
        "start": NOON,
        "end": NOON + 3600,
        "exit_code": 0,
        "signal": 0,
        "state": "COMPLETED",
        "peak_mib": 11_600.0,
        "mean_mib": 9_000.0,
        "energy_j": 720_000.0,
        "met": [],
        "samples": 3600,
        "events": [],
        "hints": [],
        "notes": [],
        **changes,
    }
    values.setdefault(
        "gpu",
        {
            uuid: {
                "number": 0,
                "name": gpu,
                "memory_mib": 40_960,
                "peak_mib": values["peak_mib"],
                "mean_mib": values["mean_mib"],
                "energy_j": values["energy_j"],
                "sm_active_share": 0.4,
                "gpu_sm_active": 0.8,
                "curve": f"{values['start']} 60.0;500 9000 - 11600;0 40 80 -",
            }
            for uuid in uuids
        },
    )
    return values


def write(folder: Path, table: Dict[str, Any], text: Optional[str] = None) -> Path:
    """Put a record where a node would, or another text under its name."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{table['job_id']}.{table['restarts']}.{table['node']}.json"
    path.write_text(json.dumps(table, separators=(",", ":")) + "\n" if text is None else text)
    return path


def site(root: Path) -> AccountingConfig:
    """A site whose nodes write to `root`/spool."""
    return AccountingConfig(root / "spool", root / "spool", root / "site-index", root / "index")


def opened(root: Path, *, force: bool = True) -> Store:
    """The store of `site(root)`, up to date, without asking any Slurm."""
    return open_store(config=site(root), join=False, force=force)
