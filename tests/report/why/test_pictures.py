"""The drawing of `gpumem why`, whatever the model is called."""

from __future__ import annotations

from typing import List, Tuple
from xml.etree import ElementTree

import pytest

from slurm_gpumem.estimators.explain.advice import PeakReasons, peak_reasons
from slurm_gpumem.estimators.gpu_types.gpus import find_gpu
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.report.why.svg import COLOURS, why_svg
from slurm_gpumem.summaries.types import ModelSummary
from tests.estimators.explain.small_trace import small_summary

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
    sites = tuple(site._replace(module=site.module and EVIL + site.module) for site in summary.trace.sites)
    return _reasons(summary._replace(name=EVIL, trace=summary.trace._replace(sites=sites)))


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
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn


def _of_class(tree: ElementTree.Element, tag: str, name: str) -> List[ElementTree.Element]:
    return [element for element in tree.iter(f"{SVG}{tag}") if element.get("class") == name]


def _axis_labels(tree: ElementTree.Element) -> List[ElementTree.Element]:
    return [text for text in tree.iter(f"{SVG}text") if text.get("text-anchor") == "end"]


def _points(path: str) -> List[Tuple[float, float]]:
    pairs = (pair.split() for pair in path.strip("MZ").split("L"))
    return [(float(x), float(y)) for x, y in pairs]
