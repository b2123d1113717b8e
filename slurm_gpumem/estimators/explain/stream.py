"""A trace's events with their blocks by name, so that a changed training step can be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.summaries.trace_types import Phase, Site, Trace


@dataclass
class Event:
    """One allocation (`site` is set) or release of a block."""

    block: int
    site: Optional[int]
    phase: str
    step: int

    @property
    def allocates(self) -> bool:
        """Whether the block is allocated here."""
        return self.site is not None


class Stream:
    """A mutable copy of a trace; `trace()` writes it back."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.sites: List[Site] = list(trace.sites)
        self._numbers: Dict[Site, int] = {site: at for at, site in enumerate(trace.sites)}
        self.events: List[Event] = []
        starts = list(trace.phases)
        at = 0
        block = 0
        for index, value in enumerate(trace.events):
            while at + 1 < len(starts) and starts[at + 1].event <= index:
                at += 1
            phase = starts[at]
            if value >= 0:
                self.events.append(Event(block, value, phase.name, phase.step))
                block += 1
            else:
                self.events.append(Event(block + value, None, phase.name, phase.step))
        self.blocks = block
        self.site_of: Dict[int, int] = {e.block: e.site for e in self.events if e.site is not None}

    def site(self, event: Event) -> Site:
        """Where an event's block was allocated."""
        return self.sites[self.site_of[event.block]]

    def new_block(self, site: int) -> int:
        """Another block of a site."""
        self.blocks += 1
        self.site_of[self.blocks] = site
        return self.blocks

    def add_site(self, site: Site) -> int:
        """The number of a site, which may be a new one."""
        if site not in self._numbers:
            self._numbers[site] = len(self.sites)
            self.sites.append(site)
        return self._numbers[site]

    def released_at(self) -> Dict[int, int]:
        """For each block the index of the event that releases it."""
        return {e.block: at for at, e in enumerate(self.events) if not e.allocates}

    def trace(self) -> Trace:
        """The stream as a trace again."""
        numbers: Dict[int, int] = {}
        events: List[int] = []
        phases: List[Phase] = []
        before: Tuple[str, int] = ("", -1)
        for event in self.events:
            if (event.phase, event.step) != before:
                before = (event.phase, event.step)
                phases.append(Phase(len(events), event.phase, event.step))
            if event.site is not None:
                numbers[event.block] = len(numbers)
                events.append(event.site)
            else:
                events.append(numbers[event.block] - len(numbers))
        if not phases or phases[0].event:
            phases.insert(0, self._trace.phases[0])
        # Where cached memory is given back is not known of a changed stream.
        return self._trace._replace(
            sites=tuple(self.sites), events=tuple(events), phases=tuple(phases), emptied=()
        )
