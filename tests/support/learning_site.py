"""A site with job records as nodes write them, from which `gpumem learn` learns."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from math import exp
from pathlib import Path
from typing import Any, Dict

from slurm_gpumem.estimators.learned import GpuConstant, load_constants

GPUMEM = str(Path(sys.executable).with_name("gpumem"))


class Site:
    """A site with a gpumem.toml, a spool of records, and the command at hand."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.config = folder / "gpumem.toml"
        self.config.write_text(f'[node]\nspool = "{self.spool}"\n')
        self.learned = folder / "gpumem-learned.json"
        self._jobs = 0

    def learn(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "GPUMEM_SITE_CONFIG": str(self.config), "HOME": str(self.spool.parent)}
        return subprocess.run(
            [GPUMEM, "learn", *argv], env=env, capture_output=True, text=True, timeout=120, check=False
        )

    @property
    def constants(self) -> Dict[str, GpuConstant]:
        return load_constants(str(self.learned))

    def record(self, model: int, est: int, req: int, took: int, **more: Any) -> None:
        """One job of a model: estimated, asked for, took; `state` "OOM" for one that its limit ended."""
        self._jobs += 1
        state = more.get("state", "COMPLETED")
        limit = more.get("limit", -(-req // 1024) * 1024)
        oom = state == "OOM"
        claim = {"est": str(est), "req": str(req), "by": more.get("by", "corrected"), "batch": "32"}
        claim.update({"fp": f"{model:016x}", "opt": "adam", "prec": "fp32", "shards": str(limit // 1024)})
        claim.update({key: more[key] for key in ("base", "parts") if key in more})
        uuid = f"GPU-{model:08x}"
        table = {
            "schema": "gpumem-job/2",
            "job_id": more.get("job", self._jobs),
            "restarts": more.get("restarts", 0),
            "cluster": "site",
            "partition": "gpu",
            "node": "n1",
            "user": "u",
            "uid": more.get("uid", 1000 + self._jobs % 7),
            "mode": "mps",
            "gpus": [uuid],
            "claim": "gpumem/1:" + ",".join(f"{key}={value}" for key, value in claim.items()),
            "shards": limit // 1024,
            "limit_mib": limit,
            "start": 1000.0 + self._jobs,
            "end": 5000.0 + self._jobs,
            "exit_code": 1 if state in ("OOM", "FAILED") else 0,
            "signal": 0,
            "state": None if oom else state,
            "peak_mib": limit if oom else took,
            "gpu": {uuid: {"name": more.get("gpu", "NVIDIA A100-SXM4-40GB"), "peak_mib": took}},
            "samples": more.get("samples", 60),
            "verdict": "oom" if oom else None,
            "notes": [],
            "events": [],
            "met": [],
        }
        name = f"{table['job_id']}.{table['restarts']}.n1.json"
        (self.spool / name).write_text(json.dumps(table))

    def fill(self, jobs: int, models: int, ratio: float, noise: float, seed: int = 1, **more: Any) -> None:
        """Jobs that took `ratio` of their estimate, give or take `noise`; some end at their limit."""
        draw = random.Random(seed)
        own = {model: ratio * exp(draw.gauss(0, noise)) for model in range(models)}
        for _ in range(jobs):
            model = draw.randrange(models)
            est = draw.randint(1500, 30_000)
            req = round(est * more.get("margin", 1.3))
            took = round(est * own[model] * exp(draw.gauss(0, noise / 4)))
            limit = -(-req // 1024) * 1024
            self.record(model, est, req, took, **({"state": "OOM"} if took > limit else {}))
