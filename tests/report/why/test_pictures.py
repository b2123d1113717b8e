"""The pictures of `gpumem why`: one drawing, in a file and in a page; whatever the model is called."""

from __future__ import annotations

import html.parser
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import List, Tuple
from xml.etree import ElementTree

import pytest

from slurm_gpumem.estimators.explain.reasons import PeakReasons, peak_reasons
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.report.why.html import why_html
from slurm_gpumem.report.why.series import COLOURS
from slurm_gpumem.report.why.svg import why_svg
from slurm_gpumem.summaries.types import ModelSummary
from tests.estimators.explain.small_trace import small_summary
from tests.report.html.browser import Browser, find_chromium

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</text></svg></style><script>document.title='owned'</script>\x1b[2J\u202e$x^2$&amp;{{ name }}"


def _reasons(summary: ModelSummary) -> PeakReasons:
    assert summary.trace is not None
    return peak_reasons(summary, TrainingJob(summary.trace.job.batch), find_gpu("a100"))


@pytest.fixture(scope="module")
def reasons() -> PeakReasons:
    return _reasons(small_summary())


@pytest.fixture(scope="module")
def hostile() -> PeakReasons:
    summary = small_summary()
    assert summary.trace is not None
    sites = tuple(replace(site, module=site.module and EVIL + site.module) for site in summary.trace.sites)
    return _reasons(replace(summary, name=EVIL, trace=replace(summary.trace, sites=sites)))


def test_the_areas_reach_as_high_as_the_memory_did(reasons: PeakReasons) -> None:
    tree = ElementTree.fromstring(why_svg(reasons))
    areas = {path.get("fill"): _points(str(path.get("d"))) for path in tree.iter(f"{SVG}path")}
    assert {COLOURS[name] for name in ("weights", "optimizer", "gradients", "activations")} <= set(areas)
    levels = {
        label.text: float(str(grid.get("y1")))
        for grid, label in zip(_of_class(tree, "line", "grid"), _axis_labels(tree))
    }
    pixels_per_mib = (levels["0"] - levels["1000 MiB"]) / 1000
    highest = min(y for points in areas.values() for _, y in points)
    assert (levels["0"] - highest) / pixels_per_mib == pytest.approx(
        reasons.timeline.peak_bytes / 2**20, rel=0.01
    )
    words = [text.text for text in tree.iter(f"{SVG}text")]
    assert {"Small", "forward", "backward", "optimizer", "activations"} <= set(words)


def test_a_names_markup_stays_a_name(hostile: PeakReasons) -> None:
    drawn = why_svg(hostile)
    tree = ElementTree.fromstring(drawn)
    assert {element.tag.replace(SVG, "") for element in tree.iter()} == {
        "svg", "style", "rect", "text", "line", "path", "title",
    }  # fmt: skip
    page = why_html(hostile)
    for text in (drawn, page):
        assert "<script" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    found = _Reader(page)
    assert "&amp;{{ name }}" in found.title
    assert found.title.startswith("</text></svg>")


def test_the_page_says_how_much_each_change_saves(reasons: PeakReasons) -> None:
    page = why_html(reasons)
    assert f'<td class="n">{reasons.advice[0].saves_mib:,}</td>' in page
    assert reasons.advice[0].what in page
    assert "Nothing that we know would lower it" in why_html(replace(reasons, advice=()))


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page_without_a_complaint_or_a_request(
    hostile: PeakReasons, tmp_path: Path, dark: bool
) -> None:
    path = tmp_path / "why.html"
    path.write_text(why_html(hostile), encoding="utf-8")
    browser = Browser(str(find_chromium()))
    try:
        browser.open(path, width=900, dark=dark)
        assert browser.complaints == []
        assert browser.requests == [path.resolve().as_uri()]
        assert browser.run("document.title").startswith("</text></svg>")
        # The policy lets both style sheets through: the page's, and the drawing's own.
        grounds = [
            browser.run("getComputedStyle(document.body).backgroundColor"),
            browser.run("getComputedStyle(document.querySelector('.ground')).fill"),
        ]
        assert len(set(grounds)) == 1
        assert ("255, 255, 255" in grounds[0]) is not dark
    finally:
        browser.close()


def test_pixels_come_from_matplotlib(hostile: PeakReasons) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib here (pip install 'slurm-gpumem[plot]')")
    from slurm_gpumem.report.why.png import why_png

    width, height = _read_png(why_png(hostile))
    assert (width, height) == (1200, 640)


def _of_class(tree: ElementTree.Element, tag: str, name: str) -> List[ElementTree.Element]:
    return [element for element in tree.iter(f"{SVG}{tag}") if element.get("class") == name]


def _axis_labels(tree: ElementTree.Element) -> List[ElementTree.Element]:
    return [text for text in tree.iter(f"{SVG}text") if text.get("text-anchor") == "end"]


def _points(path: str) -> List[Tuple[float, float]]:
    pairs = (pair.split() for pair in path.strip("MZ").split("L"))
    return [(float(x), float(y)) for x, y in pairs]


class _Reader(html.parser.HTMLParser):
    """The page's title as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._tag = ""
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag == "title" and not self.title:
            self.title = data


def _read_png(data: bytes) -> Tuple[int, int]:
    """Width and height of a PNG; its checksums are checked on the way."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, size = 8, (0, 0)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        at += 12 + length
    return size[0], size[1]
