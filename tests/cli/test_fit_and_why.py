"""`gpumem fit` and `gpumem why` as people and scripts run them."""

from __future__ import annotations

import html.parser
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.summaries.own import to_json
from tests.estimators.explain.small_trace import small_summary

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def _gpumem(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("GPUMEM_", "COLUMNS"))
    }
    environment.update(
        {"PYTHONIOENCODING": "utf-8", "GPUMEM_SITE_CONFIG": "/dev/null/x", "HOME": "/dev/null/x"}
    )
    command = [sys.executable, "-m", "slurm_gpumem", *args]
    return subprocess.run(command, capture_output=True, text=True, env={**environment, **env}, check=False)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traced") / "small.json"
    path.write_text(to_json(small_summary()))
    return str(path)


def test_fit_answers_with_a_batch_that_fits_and_the_curve(traced: str) -> None:
    done = _gpumem("fit", traced, "--gpu", "a100-40gb", COLUMNS="72")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Small (gpumem, ")
    assert lines[1].startswith("largest batch for one a100 (40.0 GiB): ")
    assert any("╌ one a100" in line for line in lines)
    assert max(len(line) for line in lines[3:]) <= 72
    assert "▲" in done.stdout


def test_fit_as_json_holds_what_it_says(traced: str) -> None:
    result = json.loads(_gpumem("fit", traced, "--gpu", "a100", "--shards", "3", "--json").stdout)
    assert result["schema"] == "gpumem-fit/1"
    answer = result["fits"][0]
    assert answer["at"]["batch_size"] == answer["batch_size"]
    assert answer["at"]["request_mib"] <= answer["limit_mib"] == 3 * 1024
    assert answer["batch_size_at_best"] >= answer["batch_size"]
    again = json.loads(
        _gpumem(
            "estimate", traced, "--gpu", "a100", "--batch-size", str(answer["batch_size"]), "--json"
        ).stdout
    )
    assert again["request_mib"] == answer["at"]["request_mib"]
    peaks = [point["peak_mib"] for point in result["curve"]]
    assert peaks == sorted(peaks)


def test_fit_says_no_with_its_exit_code(traced: str) -> None:
    assert _gpumem("fit", traced, "--gpu", "a100", "--batch-size", "100000").returncode == 1
    done = _gpumem("fit", traced, "--gpu", "a100", "--shards", "1")
    assert done.returncode == 1
    assert "does not fit 1 shard of one a100" in done.stdout


def test_fit_without_a_gpu_shows_the_usual_ones(traced: str) -> None:
    done = _gpumem("fit", traced)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[3:]][:3] == ["GPU", "t4", "v100"]


def test_fit_takes_ordinary_summaries_and_plain_terminals() -> None:
    done = _gpumem("fit", str(EXAMPLES / "small-cnn.txt"), "--gpu", "t4", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "largest batch for one t4" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["fit", "nothing.txt"], "no such file"),
        (["fit", "nothing.py:build"], "nothing.py: no such file"),
        (["fit", str(EXAMPLES / "bert.txt"), "--input", "3,4"], "is a summary; --input would only matter"),
        (["fit", str(EXAMPLES / "bert.txt"), "--gpu", "z9000"], "unknown GPU 'z9000'"),
        (["why", str(EXAMPLES / "bert.txt")], "only layers, no trace"),
        (["summarize", "timm:resnet50", "-o", "/nowhere/x.json", "--batch-size", "4"], "there is no folder"),
        (["summarize", "timm:resnet50", "-o", "x.json"], "no batch size"),
        (["summarize", "timm:resnet50", "-o", "x.json", "--batch-size", "4", "--precision", "fp12"], "fp12"),
    ],
)
def test_bad_input_is_one_message_and_code_2(args: List[str], said: str) -> None:
    done = _gpumem(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_why_shows_the_step_the_tensors_and_what_would_help(traced: str) -> None:
    done = _gpumem("why", traced)
    assert done.returncode == 0, done.stderr
    assert "of tensors in the backward pass" in done.stdout
    assert "│forward" in done.stdout
    assert "▲ peak" in done.stdout
    assert "256 MiB  head" in done.stdout
    assert "checkpointing each of the 2 Block blocks" in done.stdout
    assert "loss in 4 parts: head" in done.stdout


def test_why_as_json_adds_up(traced: str) -> None:
    result = json.loads(_gpumem("why", traced, "--json").stdout)
    assert result["schema"] == "gpumem-why/1"
    assert sum(result["parts"].values()) == result["peak_mib"]
    highest = max(sum(point["mib"]) for point in result["timeline"])
    assert round(highest) == result["allocated_mib"]
    assert result["phases"][0]["name"] == "forward"


def test_why_writes_a_picture_and_a_page_that_need_nothing_else(traced: str, tmp_path: Path) -> None:
    picture, page = tmp_path / "w.png", tmp_path / "w.html"
    done = _gpumem("why", traced, "--png", str(picture), "--html", str(page))
    assert done.returncode == 0, done.stderr
    width, height, pixels = _read_png(picture.read_bytes())
    assert len(pixels) == height * (width + 1)
    assert len(set(pixels)) > 10
    text = page.read_text()
    assert "http" not in text
    assert "<script" not in text
    html.parser.HTMLParser().feed(text)
    assert text.count("<path ") >= 3


def _read_png(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and rows of a PNG; its checksums are checked on the way."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    return width, height, zlib.decompress(chunks[b"IDAT"])
