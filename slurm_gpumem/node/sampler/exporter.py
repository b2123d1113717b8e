"""Keeps the node's counts and writes its metrics file, seldom; the sampler calls it."""

from __future__ import annotations

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import write_atomic
from slurm_gpumem.formats.job_record import JobRecord
from slurm_gpumem.formats.live import Live
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.records import find_record
from slurm_gpumem.node.sampler.counters import load_tally
from slurm_gpumem.node.sampler.prometheus import render

_EVERY_S = 15.0
"""Between two writes of the file: as often as Prometheus scrapes by default."""


class Exporter:
    """One node's metrics."""

    def __init__(self, folder: RunFolder, config: NodeConfig, node: str) -> None:
        self._folder = folder
        self._config = config
        self._node = node
        self._tally = load_tally(folder.counters)
        self._written = float("-inf")

    def ended(self, job_id: int, restarts: int) -> None:
        """Count a run whose record is closed."""
        record = find_record(self._config.spool, job_id, restarts, self._node)
        if record is not None and record.end is not None:
            self.count(record)

    def count(self, record: JobRecord) -> None:
        """Count a run by its record."""
        self._tally.add(record)
        self._tally.save(self._folder.counters)

    def write(self, live: Live, now: float) -> None:
        """The file, when the site wants one and it is due."""
        if self._config.prometheus_file is not None and now - self._written >= _EVERY_S:
            self._written = now
            self._write(live, running=True)

    def close(self) -> None:
        """The sampler ends: its jobs' and GPUs' series end with it, the counts stay."""
        if self._config.prometheus_file is not None:
            self._write(Live(node=self._node), running=False)

    def _write(self, live: Live, *, running: bool) -> None:
        if self._config.prometheus_file is not None:
            text = render(live, self._tally, running=running, users=self._config.prometheus_users)
            write_atomic(self._config.prometheus_file, text, mode=0o644)
