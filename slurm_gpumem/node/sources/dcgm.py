"""Measurements from DCGM: one `dcgmi dmon` that keeps printing; processes still come from NVML."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.sources.base import MEASURES
from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource, OverNvml

FIELDS: Mapping[int, str] = {measure.dcgm: measure.field for measure in MEASURES if measure.dcgm is not None}
"""By DCGM's field numbers; memory, power and energy are the same from NVML, without a daemon between."""


_KEPT_ROWS = 600


def parse_dmon(
    lines: Iterable[str], fields: Mapping[int, str] = FIELDS
) -> Dict[int, Dict[str, Optional[float]]]:
    """GPU number → its last values. Headers repeat; N/A is None; odd lines are passed over."""
    found: Dict[int, Dict[str, Optional[float]]] = {}
    for line in lines:
        words = line.split()
        # "GPU 0   0.312 ..." and, with MIG, "GPU-I 1", "GPU-CI 2", which are no whole GPUs.
        if len(words) != 2 + len(fields) or words[0] != "GPU" or not words[1].isdigit():
            continue
        found[int(words[1])] = dict(zip(fields.values(), map(_number, words[2:])))
    return found


def _number(word: str) -> Optional[float]:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 <= value <= 1.5 else None


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
        self._fields = fields
        self._command = [
            "dcgmi", "dmon", "-e", ",".join(map(str, fields)), "-d", str(max(100, int(interval_s * 1000))),
        ]  # fmt: skip
        self._stream: Optional[subprocess.Popen[bytes]] = None
        self._rest = b""
        self._latest: Dict[int, Dict[str, Optional[float]]] = {}
        self._rows: Dict[int, List[Dict[str, Optional[float]]]] = {}
        """Per GPU: what was printed since the last `sample`."""
        self._retry_at = 0.0

    def answers(self, within_s: float = 5.0) -> bool:
        """Whether the host engine delivers values."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            self._read()
            if any(value is not None for values in self._latest.values() for value in values.values()):
                return True
            if self._stream is None:
                return False
            time.sleep(0.05)
        return False

    def sample(self, uuid: str) -> GpuSample:
        if is_instance(uuid):
            return (self._instances or self._base).sample(uuid)
        self._read()
        index = self._indexes.get(uuid, -1)
        # dcgmi prints more often than this is called: the mean of what it has printed since.
        latest = self._latest.get(index, {})
        rows = self._rows.pop(index, None) or [latest]
        values = {
            name: None if latest.get(name) is None else _mean([row.get(name) for row in rows])
            for name in self._fields.values()
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
        for line in lines:
            for index, values in parse_dmon([line], self._fields).items():
                self._latest[index] = values
                self._rows.setdefault(index, []).append(values)
                del self._rows[index][:-_KEPT_ROWS]
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
