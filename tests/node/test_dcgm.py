from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sources.dcgm import FIELDS as ALL_FIELDS
from slurm_gpumem.node.sources.dcgm import DcgmSource, DmonReader, Key, Values, answering_source
from tests.support.waiting import until

FIELDS = {1002: "sm_active", 1003: "sm_occupancy", 1005: "dram_active"}
"""What was asked for when these were printed."""
DOCUMENTED = """#Entity   SMACT        SMOCC        DRAMA
ID
GPU 1     0.000        0.000        0.000
GPU 0     0.984        0.412        0.337
#Entity   SMACT        SMOCC        DRAMA
ID
GPU 1     N/A          N/A          N/A
"""
TITLES = {"UUID#": 40, "SMACT": 5, "SMOCC": 5, "TENSO": 5, "DRAMA": 5, "PCITX": 20, "PCIRX": 20}
TITLES.update({"NVLTX": 20, "NVLRX": 20})
"""DCGM's short names and their widths, which are the same in all versions."""
NUMBERS = {54: "UUID#", 1002: "SMACT", 1003: "SMOCC", 1004: "TENSO", 1005: "DRAMA", 1009: "PCITX"}
NUMBERS.update({1010: "PCIRX", 1011: "NVLTX", 1012: "NVLRX"})
LEFT = {"3.3": 10, "4.4": 11, "4.6": 16}
"""Of versions that begin each column at its left: the width of the first."""
UUIDS = ("GPU-e665046a-bc33-f1cf-45d8-3bb2ebe43516", "GPU-9165ca67-552f-a457-77ad-2f0b8eadede0")
BUSY = ("0.984", "0.412", "0.337", "0.251", "864034668", "104857600", "450000000000", "0")
REFUSED = "Error setting watches. Result: -6: Feature not supported"


def printed(version: str, *rows: Sequence[str], fields: Iterable[int] = ALL_FIELDS) -> list[str]:
    """A header and rows (entity, values) as dmon of that version prints them; "" is no value at all."""
    titles = [NUMBERS[number] for number in fields]
    if version not in LEFT:  # 2: right-aligned, the entity's name alone within its width
        head = ["# Entity" + "".join(f"{title:>{TITLES[title] + 2}}" for title in titles), "      Id"]
        lines = []
        for entity, *values in rows:
            kind, _, number = entity.rpartition(" ")
            cells = [
                (" " if len(value) >= TITLES[title] + 2 else "") + f"{value:>{TITLES[title] + 2}}"
                for title, value in zip(titles, values)
            ]
            lines.append(f"{kind:>8} {number}" + "".join(cells))
        return ["", *head, *lines]
    widths = [TITLES[title] + 6 for title in titles]

    def line(first: str, cells: Sequence[str]) -> str:
        cut = [cell if len(cell) <= w else cell[: w - 3] + "..." for cell, w in zip(cells, widths)]
        return f"{first:<{LEFT[version]}}" + "".join(f"{cell:<{w + 2}}" for cell, w in zip(cut, widths))

    return [line("#Entity", titles), line("ID", [""] * len(titles)), *(line(e, v) for e, *v in rows)]


def parse_dmon(lines: Iterable[str], fields: Mapping[int, str] = ALL_FIELDS) -> Dict[Key, Values]:
    """GPU → its last values."""
    reader = DmonReader(fields)
    return dict(row for row in map(reader.row, lines) if row is not None)


@pytest.mark.parametrize("version", ["2.2", *LEFT])
def test_each_version_s_output_is_read(version: str) -> None:
    rows = [("GPU 3", UUIDS[0], *BUSY), ("GPU 0", UUIDS[1], *["N/A"] * 8)]
    parts = [(f"{kind} 0", UUIDS[0], *["0.5"] * 8) for kind in ("GPU-I", "GPU-CI")]
    found = parse_dmon([*printed(version, *rows, *parts), *printed(version, *rows)])
    assert found == {
        UUIDS[0]: {
            "sm_active": 0.984,
            "sm_occupancy": 0.412,
            "dram_active": 0.337,
            "tensor_active": 0.251,
            "pcie_tx_mib_s": pytest.approx(824.008),
            "pcie_rx_mib_s": 100.0,
            "nvlink_tx_mib_s": pytest.approx(429_153.4),
            "nvlink_rx_mib_s": 0.0,
        },
        UUIDS[1]: dict.fromkeys(name for name in ALL_FIELDS.values() if name != "uuid"),
    }


def test_a_value_that_is_left_out_leaves_the_others_where_they_are() -> None:
    row = ("GPU 0", UUIDS[0], "0.984", "", *BUSY[2:6], "", "0")
    found = parse_dmon(printed("4.6", row))[UUIDS[0]]
    assert (found["sm_active"], found["sm_occupancy"], found["dram_active"]) == (0.984, None, 0.337)
    assert (found["nvlink_tx_mib_s"], found["nvlink_rx_mib_s"]) == (None, 0.0)
    # Version 3 prints what there is from the left on: which value is missing cannot be seen.
    head, unit, line = printed("3.3", row)
    assert parse_dmon([head, unit, "".join(line.split("             ")).strip()]) == {}


def test_without_uuids_gpus_have_their_numbers() -> None:
    assert parse_dmon(printed("4.4", ("GPU 1", "0.5", "N/A", "0.25"), fields=FIELDS), FIELDS) == {
        1: {"sm_active": 0.5, "sm_occupancy": None, "dram_active": 0.25}
    }
    blank = ("GPU 1", "<<<NULL>>>", *BUSY)
    assert [*parse_dmon(printed("4.4", blank))] == [1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Error: unable to establish a connection to the specified host: localhost",
        "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.",
        REFUSED,
        "No data returned from the hostengine.",
        "dmon was stopped due to receiving a signal",
        "GPU 0 0.5",
        "GPU x 1 1 1",
        "GPU \u00b2 1 1 1",
        "GPU 0 1 1 1 1",
        "GPU 0 LINK 3 1",
        "GPU",
    ],
)
def test_lines_of_other_shapes_are_passed_over(line: str) -> None:
    assert parse_dmon([line], FIELDS) == {}


@given(st.lists(st.text(max_size=60), max_size=5))
def test_no_output_breaks_the_parser(lines: list[str]) -> None:
    for values in parse_dmon(lines, FIELDS).values():
        assert all(value is None or 0 <= value <= 1.5 for value in values.values())


class _Nvml:
    """What DCGM is laid over."""

    def sample(self, uuid: str) -> GpuSample:
        return GpuSample(memory_used_mib=1.0, power_w=300.0)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dcgmi that prints what is in a file and then waits or ends."""
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/output\n[ -e {tmp_path}/stay ] && exec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "stay").touch()
    return tmp_path


def test_its_values_are_laid_over_nvmls(dcgmi: Path) -> None:
    (dcgmi / "output").write_text(DOCUMENTED)
    source = DcgmSource(_Nvml(), {"GPU-aa": 0, "GPU-bb": 1}, 1.0, FIELDS)  # type: ignore[arg-type]
    assert source.answers()
    assert source.sample("GPU-aa") == GpuSample(
        1.0, sm_active=0.984, sm_occupancy=0.412, dram_active=0.337, power_w=300.0
    )
    assert source.sample("GPU-bb").sm_active is None
    source.close()


def test_dcgm_s_own_numbers_of_gpus_do_not_count_where_it_says_uuids(dcgmi: Path) -> None:
    lines = printed("4.6", ("GPU 0", UUIDS[1], *["N/A"] * 8), ("GPU 3", UUIDS[0], *BUSY))
    (dcgmi / "output").write_text("\n".join(lines) + "\n")
    source = answering_source(_Nvml(), {UUIDS[0]: 0, UUIDS[1]: 1, "GPU-cc": 3}, 1.0)  # type: ignore[arg-type]
    assert source is not None
    sample = source.sample(UUIDS[0])
    assert (sample.sm_active, sample.tensor_active, sample.pcie_rx_mib_s) == (0.984, 0.251, 100.0)
    assert source.sample(UUIDS[1]).sm_active is None
    assert source.sample("GPU-cc") == GpuSample(1.0, power_w=300.0)
    source.close()


def test_a_node_that_lacks_one_field_still_has_the_others(dcgmi: Path) -> None:
    (dcgmi / "output").write_text(
        "\n".join([*printed("4.6", ("GPU 0", "0.5", "0.4", "0.3"), fields=FIELDS), ""])
    )
    program = dcgmi / "dcgmi"
    refuses = f"case $* in *,1012*) echo '{REFUSED}' >&2; exit 250;; esac"
    program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuses}\n"))
    source = answering_source(_Nvml(), {"GPU-aa": 0}, 1.0)  # type: ignore[arg-type]
    assert source is not None
    sample = source.sample("GPU-aa")
    assert (sample.sm_active, sample.dram_active, sample.tensor_active) == (0.5, 0.3, None)
    source.close()


def test_a_host_engine_that_is_away_is_no_source(dcgmi: Path) -> None:
    (dcgmi / "stay").unlink()
    (dcgmi / "output").write_text(
        "Error: unable to establish a connection to the specified host: localhost\n"
    )
    assert not DcgmSource(_Nvml(), {"GPU-aa": 0}, 1.0, FIELDS).answers()  # type: ignore[arg-type]


def test_old_values_do_not_outlive_the_program(dcgmi: Path) -> None:
    (dcgmi / "stay").unlink()
    (dcgmi / "output").write_text(DOCUMENTED)
    source = DcgmSource(_Nvml(), {"GPU-aa": 0}, 1.0, FIELDS)  # type: ignore[arg-type]
    source.answers(1.0)
    until(lambda: source.sample("GPU-aa").sm_active is None)
    source.close()
