"""The page in a real browser: it draws, fits a phone and a sheet, and runs nobody's script."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

import pytest

from slurm_gpumem.accounting.types import Device, JobRow
from slurm_gpumem.report.html.page import page
from tests.accounting.made_jobs import START, job, made_jobs, source
from tests.report.html.browser import Browser, find_chromium

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (apt-get install chromium)")
DEVICES = tuple(Device(f"n{number}", f"GPU-{number}") for number in range(4))
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
NONSENSE = (
    "Array.from(document.querySelectorAll('svg'), x => x.outerHTML)"
    ".filter(x => /NaN|undefined|Infinity/.test(x))"
)
CHARTS = ("changes", "scatter", "errors", "timeline")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser(str(PROGRAM))
    yield started
    started.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 120 jobs, one of them with names that would like to be markup."""
    rows = [*made_jobs(120), job(9_999, user=EVIL, model=EVIL, state=EVIL, peak_mib=None)]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(source(rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_it_draws_everything_without_a_complaint_or_a_request(
    browser: Browser, shown: Path, width: int, dark: bool
) -> None:
    browser.open(shown, width=width, dark=dark)
    assert browser.complaints == []
    assert browser.requests == [shown.resolve().as_uri()]
    assert browser.run("document.body.dataset.ready") == "yes"
    for name in CHARTS:
        assert browser.run(f"document.querySelectorAll('#{name} > svg *').length") > 5, name
    assert browser.run(NONSENSE) == []
    # Nothing sticks out sideways.
    assert browser.run("document.documentElement.scrollWidth") <= width
    light, text = (
        browser.run(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    assert (_brightness(light) < 60, _brightness(text) > 180) == (dark, dark)


def _brightness(colour: str) -> float:
    return sum(map(int, colour.strip("rgb()").split(","))) / 3


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [job(1, end=None, run_s=None, gpu_s=None, used_s=None, state="RUNNING")],
        [job(1, end=START, run_s=0.0, gpu_s=0.0, used_s=0.0)],
        [job(number, estimate_mib=1, peak_mib=2**39, request_mib=None) for number in range(3)],
        [
            job(n, start=START + n * 4e7, end=START + n * 4e7 + 60, devices=DEVICES[n : n + 1])
            for n in range(4)
        ],
    ],
    ids=["none", "running", "no time", "absurd sizes", "years"],
)
def test_odd_selections_are_drawn_too(browser: Browser, tmp_path: Path, rows: List[JobRow]) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(source(rows)), encoding="utf-8")
    browser.open(path, width=700)
    assert browser.complaints == []
    assert browser.run("document.body.dataset.ready") == "yes"
    assert browser.run(NONSENSE) == []


def test_nobodys_name_is_run_or_becomes_an_element(browser: Browser, shown: Path) -> None:
    browser.open(shown)
    assert browser.run("document.title") == "GPU sharing on cluster c"
    assert browser.run("document.querySelectorAll('img, script').length") == 2


def test_its_own_policy_stops_a_script_that_got_in_all_the_same(
    browser: Browser, shown: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    text = shown.read_text(encoding="utf-8")
    broken.write_text(text.replace("<main", "<script>document.title='owned'</script><main"), encoding="utf-8")
    browser.open(broken)
    assert browser.run("document.title") == "GPU sharing on cluster c"
    assert any("Content Security Policy" in said for said in browser.complaints)


def test_the_timeline_zooms_and_tells_who_is_under_the_pointer(browser: Browser, shown: Path) -> None:
    browser.open(shown)
    before = browser.run("document.getElementById('timeline').textContent")
    browser.run("document.querySelector('#timeline-bar [aria-label=\"Zoom in\"]').click()")
    assert browser.run("document.getElementById('timeline').textContent") != before
    said = browser.run(
        "(() => { const shape = document.querySelector('#timeline svg[role] path');"
        " const box = shape.getBoundingClientRect();"
        " shape.dispatchEvent(new PointerEvent('pointermove',"
        " {bubbles: true, clientX: box.left + box.width / 2, clientY: box.bottom - 2}));"
        " return document.getElementById('tip').textContent; })()"
    )
    assert "GiB" in said
    assert "n1/gpu0" in said


def test_it_can_be_turned_dark_by_hand(browser: Browser, shown: Path) -> None:
    browser.open(shown)
    browser.run("document.getElementById('theme').click()")
    assert _brightness(browser.run("getComputedStyle(document.body).backgroundColor")) < 60
    assert browser.run("document.getElementById('theme').textContent") == "Light"


def test_it_prints_on_a_few_sheets(browser: Browser, shown: Path) -> None:
    browser.open(shown, dark=True)
    sheets = browser.pdf()
    assert sheets.startswith(b"%PDF")
    assert 1 <= sheets.count(b"/Type /Page\n") + sheets.count(b"/Type /Page ") <= 6
    browser.open(shown, width=700, paper=True)
    assert browser.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    assert browser.run("document.documentElement.scrollWidth") <= 700
    assert browser.complaints == []


def test_everything_can_be_reached_and_read_without_a_mouse_or_eyes(browser: Browser, shown: Path) -> None:
    browser.open(shown)
    assert browser.run("document.documentElement.lang") == "en"
    nameless = (
        "Array.from(document.querySelectorAll('button, input, svg[role=img]'))"
        ".filter(x => !(x.ariaLabel || x.textContent || x.labels && x.labels.length)).length"
    )
    assert browser.run(nameless) == 0
    assert browser.run("document.querySelectorAll('h1').length") == 1
    for described in browser.run(
        "Array.from(document.querySelectorAll('[aria-describedby]'), x => x.getAttribute('aria-describedby'))"
    ):
        assert browser.run(f"document.getElementById('{described}').textContent.length") > 20
