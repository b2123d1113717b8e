"""Numbers and names as people read them, wherever they read them."""

from __future__ import annotations

from typing import List, Optional

import pytest

from slurm_gpumem.errors import UsageError
from slurm_gpumem.text import clipped, count, fitted, near_names, printable
from slurm_gpumem.units import (
    duration,
    energy,
    exact_mib,
    format_at_least,
    format_mib,
    gpu_hours,
    hours,
    parse_mib,
    percent,
    short_mib,
    sizes_in,
)


@pytest.mark.parametrize(
    ("text", "mib"), [("12G", 12_288), ("1.5g", 1536), ("512M", 512), ("1GiB", 1024), ("1k", 1)]
)
def test_a_size_is_read_in_the_ways_people_write_it(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.G", "12 apples", "\u0661G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a memory size"):
        parse_mib(text)


@pytest.mark.parametrize(("text", "meant"), [("6", "6G"), ("1.5", "1.5G"), ("12288", "12288M")])
def test_a_bare_number_is_refused_with_the_unit_that_was_probably_meant(text: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"'{text}' has no unit; did you mean {meant}\?"):
        parse_mib(text)
    assert parse_mib(text, default_unit="g") == round(float(text) * 1024)
    assert parse_mib("0") == 0


OPTIMIZERS = ["adam", "adamw", "sgd", "sgd-momentum", "rmsprop", "adagrad", "lion", "adafactor"]


@pytest.mark.parametrize(
    ("given", "known", "near"),
    [
        ("muon", OPTIMIZERS, []),
        ("mi300", ["rtx3090", "rtx3060", "h100", "a100", "l40s"], []),
        ("fp16", ["fp32", "bf16"], []),
        ("adm", OPTIMIZERS, ["adam"]),
        ("SGD_momentun", OPTIMIZERS, ["sgd-momentum"]),
        ("ada", OPTIMIZERS, ["adam", "adamw", "adagrad", "adafactor"]),
        ("batchsize", ["batch-size"], ["batch-size"]),
        ("fp23", ["fp32", "tf32"], ["fp32"]),
        ("", OPTIMIZERS, []),
    ],
)
def test_only_a_slip_is_answered_with_a_name(given: str, known: List[str], near: List[str]) -> None:
    assert near_names(given, known) == near


def test_a_size_to_reserve_is_never_rounded_down() -> None:
    assert (format_mib(12_290), format_at_least(12_290)) == ("12.0 GiB", "12.1 GiB")
    assert (format_mib(620), format_at_least(620)) == ("620 MiB", "620 MiB")
    assert (short_mib(12_290), short_mib(620)) == ("12.0G", "620M")


@pytest.mark.parametrize(
    ("part", "shown", "signed"),
    [
        (0.034, "3%", "+3%"),
        (-0.034, "-3%", "-3%"),
        (0.001, "0%", "0%"),
        (-0.001, "0%", "0%"),
        (12.0, ">999%", ">+999%"),
        (None, "", ""),
    ],
)
def test_a_percent_has_a_sign_where_it_says_something(part: Optional[float], shown: str, signed: str) -> None:
    assert (percent(part), percent(part, sign=True)) == (shown, signed)
    assert percent(0.0794, digits=1) == "7.9%"


def test_times_are_written_as_slurm_writes_them() -> None:
    assert duration(183_845.4) == "2-03:04:05"
    assert duration(59.6) == "00:01:00"
    assert duration(None) == ""


def test_gpu_time_and_energy_have_as_many_digits_as_matter() -> None:
    assert [hours(value) for value in (1e6, 90_000, 360)] == ["278", "25.0", "0.10"]
    assert gpu_hours(3600, 7200) == ("1.0", "2.0 GPU-hours")
    assert gpu_hours(60, 120) == ("1.0", "2.0 GPU-minutes")
    assert [energy(value) for value in (1e8, 1e6, 1e3, None)] == ["27.8 kWh", "278 Wh", "0.3 Wh", ""]


def test_names_of_others_cannot_steer_a_terminal_and_end_in_time() -> None:
    assert printable("a\x1b[2J\u202eb\ud800") == "a?[2J?b?"
    assert clipped("x" * 5_000, 8) == "x" * 7 + "…"
    assert clipped("\x07" * 8, 8) == "?" * 8
    assert (fitted("resnet50", 4), fitted("vit", 4)) == ("res+", "vit")
    assert (count(1, "job"), count(1_200, "job"), count(2, "entry", "entries")) == (
        "1 job",
        "1,200 jobs",
        "2 entries",
    )


@pytest.mark.parametrize(
    ("unit", "texts"),
    [
        (None, ["11.9 GiB", "12.0 GiB", "12,201 MiB", "11.9G"]),
        ("MiB", ["12,201 MiB", "12,201 MiB", "12,201 MiB", "12201M"]),
        ("GiB", ["11.9 GiB", "12.0 GiB", "11.92 GiB", "11.9G"]),
        ("GB", ["12.8 GB", "12.8 GB", "12.79 GB", "12.8GB"]),
    ],
)
def test_all_sizes_come_in_one_unit_where_one_is_asked_for(unit: Optional[str], texts: List[str]) -> None:
    with sizes_in(unit):
        assert [write(12_201) for write in (format_mib, format_at_least, exact_mib, short_mib)] == texts
    assert format_mib(12_201) == "11.9 GiB"


def test_what_is_to_be_reserved_is_never_rounded_down() -> None:
    for unit in ("MiB", "GiB", "GB"):
        with sizes_in(unit):
            for mib in (1, 1023, 1024, 1025, 12_201, 81_920):
                number, name = format_at_least(mib).replace(",", "").split()
                assert float(number) * {"MiB": 1, "GiB": 1024, "GB": 1e9 / 2**20}[name] >= mib * 0.999999
