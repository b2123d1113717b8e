"""Jobs as a store would give them out: packed onto GPUs by their requests, measured, some out of memory."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import (
    OBSERVED,
    SHARED,
    Attempt,
    Curve,
    Device,
    Freshness,
    GpuStay,
    JobDetail,
    JobRow,
    JobTotals,
)
from slurm_gpumem.report.html.types import PageSource

MODELS = (
    ("resnet50", 11_600),
    ("bert-base", 8_300),
    ("mobilenetv3", 2_100),
    ("vit-b16", 17_900),
    ("gpt2-medium", 22_500),
    ("unet", 14_200),
    ("efficientnet-b4", 9_400),
)
USERS = ("usr1", "usr2", "usr3", "usr4", "usr5", "usr6", "usr7", "usr8", "usr9", "usr10")
START = 1_789_000_000.0
CARD_MIB = 81_920


def job(job_id: int = 1, **changes: object) -> JobRow:
    """A plain job that shared a GPU for an hour and did well."""
    row = JobRow(
        job_id=job_id,
        cluster="c",
        user="usr1",
        uid=71001,
        account="lab",
        partition="gpu",
        job_name="train",
        model="resnet50",
        fingerprint="",
        batch=128,
        optimizer="adam",
        precision="fp32",
        estimator="corrected",
        parts={},
        estimate_mib=12_000,
        request_mib=13_312,
        shards=13,
        limit_mib=13_312,
        peak_mib=11_600,
        mean_mib=10_900,
        sharing=SHARED,
        gpu="a100",
        gpu_memory_mib=CARD_MIB,
        devices=(Device("n1", "GPU-0000", 0, "NVIDIA A100-SXM4-80GB", CARD_MIB),),
        companions=(),
        submit=START - 60,
        start=START,
        end=START + 3600,
        wait_s=60.0,
        run_s=3600.0,
        state="COMPLETED",
        exit_code=0,
        signal=0,
        attempts=1,
        ooms=0,
        sm_share=0.4,
        gpu_sm=0.7,
        energy_j=900_000.0,
        gpu_s=3600.0,
        used_s=1800.0,
        would_s=None,
        alone_s=3000.0,
        slowdown=1.2,
        alone_by="predicted",
    )
    made = row._replace(**changes)
    return made._replace(company=tuple(map(str, made.companions)))


@dataclass
class _Card:
    device: Device
    stays: List[Tuple[float, float, int, int]]
    """(start, end, shards, job)"""

    def free(self, at: float) -> int:
        return CARD_MIB // 1024 - 2 - sum(shards for start, end, shards, _ in self.stays if start <= at < end)


def made_jobs(
    count: int, *, nodes: int = 2, cards: int = 4, seed: int = 1, every_s: float = 160.0
) -> List[JobRow]:
    """`count` jobs in the order of their end."""
    dice = random.Random(seed)
    pool = [
        _Card(
            Device(f"n{node + 1}", f"GPU-{node:04x}{number:04x}", number, "NVIDIA A100-SXM4-80GB", CARD_MIB),
            [],
        )
        for node in range(nodes)
        for number in range(cards)
    ]
    rows, clock = [], START
    for number in range(count):
        clock += dice.expovariate(1 / every_s)
        rows.append(_one(dice, 4711 + number, clock, pool))
        if number % 64 == 0:
            for card in pool:
                card.stays = [stay for stay in card.stays if stay[1] > clock - 3600]
    return sorted(rows, key=lambda row: row.end or math.inf)


def _one(dice: random.Random, job_id: int, now: float, pool: Sequence[_Card]) -> JobRow:
    model, typical = dice.choice(MODELS)
    batch = dice.choice((32, 64, 128, 256))
    peak = round(typical * (0.4 + 0.6 * batch / 128) * dice.uniform(0.9, 1.1))
    estimate = round(peak * math.exp(dice.gauss(0.03, 0.06)) * (0.62 if dice.random() < 0.02 else 1))
    request = math.ceil(estimate * 1.12 / 1024) * 1024
    shards = request // 1024
    start = now
    while not (fitting := [card for card in pool if card.free(start) >= shards]):
        start = min(end for card in pool for _, end, _, _ in card.stays if end > start)
    card, run = fitting[0], min(60_000.0, dice.lognormvariate(8.6, 0.7))
    here = [stay for stay in card.stays if stay[0] < start + run and stay[1] > start]
    card.stays.append((start, start + run, shards, job_id))
    oom = peak > request
    others = sum(min(start + run, end) - max(start, begin) for begin, end, _, _ in here) / run
    user = USERS[min(len(USERS) - 1, int(dice.expovariate(0.5)))]
    return job(
        job_id,
        user=user,
        model=model,
        batch=batch,
        estimate_mib=estimate,
        request_mib=request,
        shards=shards,
        limit_mib=request,
        peak_mib=min(peak, CARD_MIB),
        mean_mib=round(peak * 0.9),
        devices=(card.device,),
        companions=tuple(stay[3] for stay in here),
        submit=now - 20,
        start=start,
        end=start + run,
        wait_s=start - now + 20,
        run_s=run,
        attempts=2 if oom else 1,
        ooms=int(oom),
        state="FAILED" if dice.random() < (0.3 if oom else 0.02) else "COMPLETED",
        sm_share=dice.uniform(0.12, 0.6) / (1 + others * 0.4),
        energy_j=run * 280 / (1 + others),
        gpu_s=run,
        used_s=run / (1 + others),
        alone_s=run / (1 + others * 0.2),
    )


def observed(rows: Iterable[JobRow]) -> List[JobRow]:
    """The same jobs at a site that only looks on."""
    return [
        row._replace(
            sharing=OBSERVED,
            shards=0,
            limit_mib=None,
            used_s=row.gpu_s,
            would_s=row.used_s,
            companions=(),
        )
        for row in rows
    ]


def detail(row: JobRow) -> JobDetail:
    """Its one run with a curve that rises and stays."""
    end = row.end or row.start + 600
    steps = 24
    peak = row.peak_mib or 0
    sizes = tuple(
        round(peak * (0.35 + 0.05 * step)) if step < 2 else round(peak * (0.97 + 0.03 * math.sin(step)))
        for step in range(steps)
    )
    curve = Curve(row.start, (end - row.start) / steps, sizes, (row.sm_share,) * steps)
    stays = tuple(
        GpuStay(device, row.start, row.end, peak_mib=row.peak_mib, curve=curve) for device in row.devices
    )
    run = Attempt(
        0,
        row.devices[0].node if row.devices else "n1",
        row.start,
        row.end,
        row.state,
        row.exit_code,
        row.signal,
        "mps",
        row.shards,
        row.limit_mib,
        row.peak_mib,
        bool(row.ooms),
        stays=stays,
    )
    return JobDetail(row, (run,))


def summary(rows: Sequence[JobRow], group: str = "") -> JobTotals:
    """The sums of the rows."""
    errors = sorted(abs(row.error) for row in rows if row.error is not None)
    measured = [row for row in rows if row.error is not None]
    granted = [row for row in rows if row.granted_mib and row.peak_mib and row.run_s]
    return JobTotals(
        group,
        jobs=len(rows),
        estimated=len(errors),
        median_error=statistics.median(errors) if errors else None,
        p95_error=errors[int(len(errors) * 0.95)] if errors else None,
        under_estimate=sum((row.error or 0) < 0 for row in measured),
        under_request=sum((row.peak_mib or 0) > (row.request_mib or 0) for row in measured),
        shared=sum(row.sharing == SHARED for row in rows),
        observed=sum(row.sharing == OBSERVED for row in rows),
        gpu_s=sum(row.gpu_s or 0 for row in rows),
        used_s=sum(row.used_s or 0 for row in rows),
        alone_s=sum(row.alone_s or 0 for row in rows),
        alone_used_s=sum(row.used_s or 0 for row in rows if row.alone_s),
        alone_run_s=sum(row.gpu_s or 0 for row in rows if row.alone_s),
        would_s=sum(row.would_s or 0 for row in rows),
        would_of_s=sum(row.gpu_s or 0 for row in rows if row.would_s is not None),
        ooms=sum(row.ooms for row in rows),
        oom_recovered=sum(row.recovered for row in rows),
        oom_lost=sum(row.ooms > 0 and not row.recovered for row in rows),
        energy_j=sum(row.energy_j or 0 for row in rows),
        energy_jobs=sum(row.energy_j is not None for row in rows),
        granted_mib_s=sum((row.granted_mib or 0) * (row.run_s or 0) for row in granted),
        peak_mib_s=sum(min(row.peak_mib or 0, row.granted_mib or 0) * (row.run_s or 0) for row in granted),
        sm_s=sum((row.sm_share or 0) * (row.gpu_s or 0) for row in rows),
        sm_gpu_s=sum(row.gpu_s or 0 for row in rows),
    )


def by(rows: Sequence[JobRow], key: Callable[[JobRow], str]) -> List[JobTotals]:
    """A summary of each group, the largest first."""
    groups: Dict[str, List[JobRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted((summary(some, name) for name, some in groups.items()), key=lambda one: -one.jobs)


def source(
    rows: Sequence[JobRow],
    *,
    curves: bool = True,
    made_at: Optional[float] = None,
    title: str = "GPU sharing on cluster c",
) -> PageSource:
    """A page's source from rows alone."""
    import time

    def day(row: JobRow) -> str:
        return time.strftime("%Y-%m-%d", time.localtime(row.start))

    return PageSource(
        rows=rows,
        total=summary(rows),
        users=[one.group for one in by(rows, lambda row: row.user)],
        by_day=sorted(by(rows, day), key=lambda one: one.group),
        freshness=Freshness(len(rows), 2, {"torn": 2}, START, "", True),
        detail=detail if curves else None,
        title=title,
        made_at=made_at or START + 30 * 86_400,
    )
