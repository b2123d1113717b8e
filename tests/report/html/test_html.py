"""The page's text: what is in it, what cannot get into it, how large it becomes."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace
from typing import Any, Dict, List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.accounting.types import WHOLE, Device, Freshness, JobTotals
from slurm_gpumem.report.html.accuracy import MOST_OUTSTANDING, MOST_POINTS, Scatter
from slurm_gpumem.report.html.page import page
from slurm_gpumem.report.html.types import PageSource
from tests.accounting.made_jobs import START, detail, job, made_jobs, observed, source, summary
from tests.support.timing import best_cpu_s, slowness

EVIL = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "--><img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "{{data}}{{script}}",
    "\x1b[2J\x00\x07\u202egnp.exe",
    "=cmd|'/c calc'!A0",
    "]]>&lt;b&gt;\u2028\u2029",
    "\ud800 lone",
    "x" * 5_000,
)


class _Reader(html.parser.HTMLParser):
    """All tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: List[Tuple[str, Dict[str, Any]]] = []
        self.scripts: List[str] = []
        self.text: List[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Any]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)


def _data(text: str) -> Dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    table: Dict[str, Any] = json.loads(found.group(1))
    return table


def test_it_tells_the_figures_of_a_meeting() -> None:
    rows = made_jobs(60)
    text = page(source(rows))
    total = summary(rows)
    words = " ".join(_Reader(text).text)
    assert "GPU sharing on cluster c" in words
    assert f"less than {total.alone_s / 3600:,.0f} alone" in words
    assert "60 of 60 jobs asked for a share" in words
    data = _data(text)
    assert data["scatter"]["jobs"] == 60
    assert sum(data["errors"]["estimates"]) == sum(row.error is not None for row in rows)
    (change,) = data["changes"]
    assert change["before_s"] == pytest.approx(total.alone_s)
    assert change["after_s"] == pytest.approx(total.used_s)
    assert 0 < change["sm"][0] < change["sm"][1] <= 1
    assert len(data["timeline"]["stays"]) == 60


def test_it_asks_nothing_of_any_network() -> None:
    text = page(source(made_jobs(20)))
    for tag, attributes in _Reader(text).tags:
        assert tag not in ("iframe", "object", "embed", "img", "base", "form")
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "data:,")[:6] in ("data:,", "#main"), (tag, attributes)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    (policy,) = (
        attributes["content"]
        for tag, attributes in _Reader(text).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("evil", EVIL)
def test_no_name_becomes_markup(evil: str) -> None:
    rows = [
        job(
            1,
            user=evil,
            model=evil,
            job_name=evil,
            state=evil,
            gpu=evil,
            cluster=evil,
            devices=(Device(evil, evil, None, evil, 1000),),
        ),
        job(2, companions=(1,)),
    ]
    plain = _Reader(page(source([job(1), job(2, companions=(1,))])))
    made = replace(
        source(rows, title=evil),
        selection=evil,
        freshness=Freshness(2, 1, {evil: 1}, START, evil, False),
    )
    text = page(made)
    found = _Reader(text)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 2
    assert set(tags) <= {tag for tag, _ in plain.tags} | {"section"}
    for _, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert not any(ord(letter) < 32 and letter not in "\n" for letter in text)
    assert "\u202e" not in text
    text.encode("utf-8")
    assert _data(text)["timeline"]["stays"]


@settings(max_examples=30)
@given(name=st.text(max_size=80))
def test_any_name_survives_as_text(name: str) -> None:
    text = page(source([job(1, user=name), job(2)]))
    assert len(_Reader(text).scripts) == 2
    assert _data(text)["scatter"]["jobs"] == 2


def test_without_any_job_there_is_a_page_too() -> None:
    text = page(PageSource(rows=[], total=JobTotals("")))
    assert "0 jobs" in text
    assert _data(text)["timeline"] is None


def test_a_job_that_lasted_no_time_is_on_no_timeline() -> None:
    data = _data(page(source([job(1, end=START, run_s=0.0, gpu_s=0.0, used_s=0.0)])))
    assert data["timeline"] is None
    assert data["changes"] == []


def test_jobs_of_which_little_is_known_are_told_as_far_as_it_goes() -> None:
    unknown = (
        "estimate_mib request_mib peak_mib mean_mib shards limit_mib gpu_memory_mib end run_s wait_s submit "
        "sm_share energy_j gpu_s used_s"
    )
    bare = job(3, devices=(), sharing=WHOLE, **dict.fromkeys(unknown.split()))
    data = _data(page(source([bare], curves=False)))
    assert data["scatter"]["jobs"] == 0
    assert data["changes"] == []
    data = _data(
        page(source([job(1, peak_mib=0), bare, job(2, end=None, run_s=None, gpu_s=None)], curves=False))
    )
    assert data["scatter"]["jobs"] == 1
    assert data["timeline"]["jobs"] == 2


def test_a_site_that_observes_sees_what_sharing_would_save() -> None:
    rows = observed(made_jobs(40))
    text = page(source(rows))
    (change,) = _data(text)["changes"]
    assert "would" in change["title"]
    assert change["after_s"] < change["before_s"]
    assert "Sharing would take" in text


def test_a_requeued_jobs_runs_stand_on_the_timeline_where_they_were() -> None:
    row = job(1, attempts=2, ooms=1)
    told = detail(row)
    first = told.runs[0]._replace(
        end=START + 600,
        stays=tuple(stay._replace(end=START + 600) for stay in told.runs[0].stays),
    )
    second = told.runs[0]._replace(
        restarts=1,
        start=START + 900,
        stays=tuple(
            stay._replace(start=START + 900, curve=None, device=Device("n2", "GPU-2", 3, "", 40_960))
            for stay in told.runs[0].stays
        ),
    )
    made = replace(source([row]), detail=lambda row: told._replace(runs=(first, second)))
    data = _data(page(made))["timeline"]
    assert [name for name, _, _ in data["gpus"]] == ["n1/gpu0", "n2/gpu3"]
    assert [(stay[1], stay[2]) for stay in data["stays"]] == [
        (START, START + 600),
        (START + 900, START + 3600),
    ]


def _page_of_a_hundred_thousand_jobs() -> str:
    some = made_jobs(1_000, nodes=4, cards=8, every_s=90)
    return page(replace(source(some), rows=some * 100))


@pytest.mark.timing
def test_a_page_of_a_hundred_thousand_jobs_takes_seconds() -> None:
    assert best_cpu_s(_page_of_a_hundred_thousand_jobs, 1) < 20 * slowness()


def test_a_hundred_thousand_jobs_give_a_page_of_bounded_size_that_says_so() -> None:
    text = _page_of_a_hundred_thousand_jobs()
    assert len(text) < 3_000_000
    data = _data(text)
    assert data["scatter"]["jobs"] == 100_000
    assert len(data["scatter"]["points"]) <= MOST_OUTSTANDING
    assert sum(n for _, _, n in data["scatter"]["cells"]) == 100_000
    assert not data["timeline"]["complete"]
    assert len(data["occupancy"]["rows"]) > 12


def test_up_to_some_thousand_jobs_each_is_a_point() -> None:
    scatter = Scatter()
    for number in range(MOST_POINTS):
        scatter.add(job(number))
    assert len(scatter.result()["points"]) == MOST_POINTS
    scatter.add(job(MOST_POINTS, peak_mib=20_000))
    assert [point[4] for point in scatter.result()["points"]] == [MOST_POINTS]


def test_errors_are_counted_where_they_belong() -> None:
    peaks = (11_999, 12_001, 9_500, 4_000, 30_000)
    rows = [job(number, peak_mib=peak) for number, peak in enumerate(peaks)]
    errors = _data(page(source(rows)))["errors"]
    # The first bin is for all below −50 %, each of the others 5 % wide, the last for 100 % and more.
    expected = [0] * 32
    for peak in peaks:
        place = int((12_000 / peak - 1 + 0.5) // 0.05) + 1
        expected[min(max(place, 0), 31)] += 1
    assert errors["estimates"] == expected
    assert expected[11] == 1  # 0 to +5 %
    assert expected[10] == 1  # −5 to 0 %
