"""Measurements from DCGM: one `dcgmi dmon` that keeps printing; processes still come from NVML."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.sources.base import MEASURES
from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource, OverNvml
from slurm_gpumem.units import MIB

_UUID = "uuid"
_MEASURES = {measure.field: measure for measure in MEASURES}
FIELDS: Mapping[int, str] = {
    54: _UUID,
    **{measure.dcgm: measure.field for measure in MEASURES if measure.dcgm is not None},
}
"""By DCGM's field numbers; memory, power and energy are the same from NVML, without a daemon between. DCGM's
numbers of GPUs are its own: it keeps them when GPUs come and go, and leaves out those that it cannot open."""
ACTIVITY: Mapping[int, str] = {
    number: field for number, field in FIELDS.items() if field in ("sm_active", "sm_occupancy", "dram_active")
}
"""What every GPU has that DCGM can profile at all."""
_KEPT_ROWS = 600

Key = Union[int, str]
"""Of a GPU: its UUID where the rows have it, else DCGM's number."""
Values = Dict[str, Optional[float]]


class DmonReader:
    """Reads what `dcgmi dmon` prints, of DCGM 2 to 4; lines of other shapes are passed over.

        #Entity         SMACT        PCITX
        ID
        GPU 0           0.312        864034668

    Headers repeat. From version 3 on cells begin where their names do; version 4 leaves one blank where there
    is no value. Errors go to stderr, those of the connection to stdout.
    """

    def __init__(self, fields: Mapping[int, str]) -> None:
        self._names = tuple(fields.values())
        self._header = ""

    def row(self, line: str) -> Optional[Tuple[Key, Values]]:
        """A GPU and its values; None for other lines, and for parts of a GPU: "GPU-I 1", "GPU 0 LINK 2"."""
        if line.startswith("#"):
            self._header = line
        words = line.split()
        if words[:1] != ["GPU"] or not "".join(words[1:2]).isdecimal() or words[2:3] == ["LINK"]:
            return None
        cells = words[2:]
        if len(cells) != len(self._names):
            cells = self._columns(line)
            if len(cells) != len(self._names):
                return None
        found = dict(zip(self._names, cells))
        uuid = found.pop(_UUID, "")
        values = {name: _number(name, cell) for name, cell in found.items()}
        return (uuid if uuid.startswith("GPU-") else int(words[1])), values

    def _columns(self, line: str) -> List[str]:
        """The cells below each name of the header, where the line is as long; else none."""
        starts = [match.start() for match in re.finditer(r"\S+", self._header)][1:]
        if len(line) != len(self._header):
            return []
        return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], len(line)])]


def _number(name: str, cell: str) -> Optional[float]:
    """None for "N/A", for a blank, and for a number that was cut off ("12345...")."""
    try:
        value = float(cell)
    except ValueError:
        return None
    measure = _MEASURES[name]
    return measure.checked(value / MIB if measure.rate else value)


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


class DcgmSource(OverNvml):
    """NVML with DCGM's activity values laid over it."""

    name = "dcgm"

    def __init__(
        self,
        base: NvmlSource,
        indexes: Mapping[str, int],
        interval_s: float,
        fields: Mapping[int, str] = FIELDS,
        instances: Optional[GpmSource] = None,
    ) -> None:
        super().__init__(base)
        self._instances = instances
        """For MIG instances, which DCGM numbers in a way of its own."""
        self._indexes = indexes
        self._command = [
            "dcgmi", "dmon", "-e", ",".join(map(str, fields)), "-d", str(max(100, int(interval_s * 1000))),
        ]  # fmt: skip
        self._stream: Optional[subprocess.Popen[bytes]] = None
        self._rest = b""
        self._reader = DmonReader(fields)
        self._latest: Dict[Key, Values] = {}
        self._rows: Dict[Key, List[Values]] = {}
        """Per GPU: what was printed since the last `sample`."""
        self._retry_at = 0.0

    def answers(self, within_s: float = 5.0) -> bool:
        """Whether the host engine delivers values."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self._read()
            if any(values["sm_active"] is not None for values in self._latest.values()):
                return True
            if self._stream is None:
                return False
            time.sleep(0.05)
        return False

    def sample(self, uuid: str) -> GpuSample:
        if is_instance(uuid):
            return (self._instances or self._base).sample(uuid)
        self._read()
        key = uuid if uuid in self._latest else self._indexes.get(uuid, -1)
        # dcgmi prints more often than this is called: the mean of what it has printed since.
        latest = self._latest.get(key, {})
        rows = self._rows.pop(key, None) or [latest]
        values = {
            name: None if value is None else _mean([row.get(name) for row in rows])
            for name, value in latest.items()
        }
        return self._base.sample(uuid)._replace(**values)

    def close(self) -> None:
        self.stop()
        super().close()

    def stop(self) -> None:
        """End dcgmi."""
        if self._stream is not None:
            self._stream.kill()
            self._stream.wait()
            self._stream = None

    def _read(self) -> None:
        """Take what dcgmi has printed; start it again, a minute later, when it died."""
        if self._stream is None:
            if time.monotonic() < self._retry_at:
                return
            self._retry_at = time.monotonic() + 60
            try:
                self._stream = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            except OSError:
                return
            assert self._stream.stdout is not None
            os.set_blocking(self._stream.stdout.fileno(), False)
        lines, ended = self._lines()
        for key, values in filter(None, map(self._reader.row, lines)):
            self._latest[key] = values
            self._rows.setdefault(key, []).append(values)
            del self._rows[key][:-_KEPT_ROWS]
        if ended:
            self.stop()
            # Old values must not pass for new ones.
            self._latest, self._rows = {}, {}

    def _lines(self) -> Tuple[List[str], bool]:
        assert self._stream is not None
        assert self._stream.stdout is not None
        ended = False
        while True:
            try:
                data = os.read(self._stream.stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode(errors="replace") for line in lines], ended


def answering_source(
    base: NvmlSource, indexes: Mapping[str, int], interval_s: float, instances: Optional[GpmSource] = None
) -> Optional[DcgmSource]:
    """A source with as many fields as this node's DCGM has; None where it has none."""
    # One field that it does not have makes dcgmi refuse all of them.
    for fields in (FIELDS, ACTIVITY):
        source = DcgmSource(base, indexes, interval_s, fields, instances)
        if source.answers():
            return source
        source.stop()
    return None
