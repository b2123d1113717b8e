"""A small canvas that writes itself as a PNG file: rectangles, lines, letters; nothing but zlib."""

from __future__ import annotations

import struct
import zlib
from typing import Dict, List, Sequence, Tuple

from slurm_gpumem.terminal.stroke_font import ADVANCE, strokes

Colour = Tuple[int, int, int]
WHITE: Colour = (255, 255, 255)


class Canvas:
    """Pixels by colour of a palette (at most 256), white at first; x to the right, y down."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._rows = [bytearray(width) for _ in range(height)]
        self._palette: Dict[Colour, int] = {WHITE: 0}

    def rectangle(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Fill a rectangle; what lies outside the canvas is left out."""
        index = self._index(colour)
        left, right = max(0, x), min(self.width, x + width)
        if right <= left:
            return
        filled = bytes([index]) * (right - left)
        for row in self._rows[max(0, y) : max(0, min(self.height, y + height))]:
            row[left:right] = filled

    def text(
        self, x: float, y: float, text: str, colour: Colour, *, size: float = 14.0, weight: float = 1.4
    ) -> None:
        """Write a line of text whose capitals reach from y to y + size * 0.7, on a white ground."""
        unit = size * 0.7 / 6
        for position, letter in enumerate(text):
            left = x + position * ADVANCE * unit
            for stroke in strokes(letter):
                points = [(left + px * unit, y + py * unit) for px, py in stroke]
                for start, end in zip(points, points[1:]):
                    self._line(start, end, colour, weight)

    def _line(
        self, start: Tuple[float, float], end: Tuple[float, float], colour: Colour, width: float
    ) -> None:
        """A line with soft edges: each pixel by its distance from it."""
        reach = width / 2 + 1
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy or 1.0
        for y in range(max(0, int(min(y0, y1) - reach)), min(self.height, int(max(y0, y1) + reach) + 1)):
            for x in range(max(0, int(min(x0, x1) - reach)), min(self.width, int(max(x0, x1) + reach) + 1)):
                along = max(0.0, min(1.0, ((x + 0.5 - x0) * dx + (y + 0.5 - y0) * dy) / length))
                across = ((x + 0.5 - x0 - along * dx) ** 2 + (y + 0.5 - y0 - along * dy) ** 2) ** 0.5
                cover = min(1.0, width / 2 + 0.5 - across)
                if cover > 0.05:
                    self._blend(x, y, colour, cover)

    def _blend(self, x: int, y: int, colour: Colour, cover: float) -> None:
        # Few steps of grey, and never lighter than what is there: strokes meet without seams.
        step = round(cover * 6) / 6
        mixed = tuple(round(255 + (part - 255) * step) for part in colour)
        index = self._index((mixed[0], mixed[1], mixed[2]))
        row = self._rows[y]
        if sum(self._colours()[row[x]]) > sum(mixed):
            row[x] = index

    def _colours(self) -> Sequence[Colour]:
        return list(self._palette)

    def _index(self, colour: Colour) -> int:
        if colour not in self._palette:
            if len(self._palette) == 256:
                raise ValueError("a canvas has at most 256 colours")
            self._palette[colour] = len(self._palette)
        return self._palette[colour]

    def png(self) -> bytes:
        """The file's content."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 3, 0, 0, 0)
        palette = b"".join(bytes(colour) for colour in self._palette)
        rows = b"".join(b"\0" + bytes(row) for row in self._rows)
        chunks: List[Tuple[bytes, bytes]] = [
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        ]
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def text_width(text: str, size: float = 14.0) -> float:
    """Pixels that a line of text takes."""
    return len(text) * ADVANCE * size * 0.7 / 6


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
