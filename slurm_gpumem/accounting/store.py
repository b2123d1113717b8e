"""Open the store and ask it: `open_store()`, then `select`, `detail`, `summary`, `wasters`."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import ALL, Filters, Freshness, JobDetail, JobRow, Summary, Waster


class Store:
    """The indexed records that the caller may see; a context manager."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index."""

    @property
    def freshness(self) -> Freshness:
        """What the answers stand on."""
        raise NotImplementedError

    def select(self, filters: Filters = ALL, *, limit: Optional[int] = None) -> Iterator[JobRow]:
        """The jobs, oldest end first (running ones last); with `limit`, the latest so many."""
        raise NotImplementedError

    def detail(self, row: JobRow) -> JobDetail:
        """One job in depth: reads its records again, curves included."""
        raise NotImplementedError

    def summary(self, filters: Filters = ALL) -> Summary:
        """Sums over all jobs."""
        raise NotImplementedError

    def summary_by(self, group: str, filters: Filters = ALL) -> Sequence[Summary]:
        """Sums for every user, account, model, gpu, partition or day; the largest first, days in order."""
        raise NotImplementedError

    def wasters(self, filters: Filters = ALL, *, limit: int = 5) -> Tuple[Waster, ...]:
        """Who keeps the most memory from others without using it."""
        raise NotImplementedError


def open_store(*, refresh: bool = True) -> Store:
    """The store of this site as the caller may see it, brought up to date first."""
    raise NotImplementedError
