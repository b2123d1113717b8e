"""Curves on a terminal: no peak is lost, anything above nothing shows, plain terminals get plain letters."""

from __future__ import annotations

from slurm_gpumem.terminal.chart import Mark, Style, area_chart, block, plot, plot_width, resample, ticks


def test_a_spike_of_one_event_is_still_there_in_few_columns() -> None:
    assert resample([1.0] * 500 + [9.0] + [1.0] * 499, 10) == [1.0] * 5 + [9.0] + [1.0] * 4
    assert resample([None, None, 2.0, None], 2) == [None, 2.0]
    assert resample([1.0, 3.0], 4) == [1.0, 1.0, 3.0, 3.0]
    assert resample([], 4) == []


def test_a_cell_is_filled_by_eighths_and_the_lowest_shows_the_least_there_was() -> None:
    assert [block(value, 0, 8.0, 1, True) for value in (0.0, 0.01, 4.0, 8.0, 99.0, None)] == list(" ▁▄██ ")
    assert [block(value, 1, 2.0, 2, True) for value in (0.5, 1.5, 2.0)] == [" ", "▄", "█"]
    assert [block(value, 0, 8.0, 1, False) for value in (1.0, 4.0)] == [" ", "#"]


def test_a_plot_is_as_high_and_wide_as_asked_for() -> None:
    lines = plot([1.0, 2.0], 2.0, width=4, height=2, labels=["2.0G"], unicode=False)
    assert lines == ["2.0G |  ##", "     |####", "   0 +----"]


def test_a_chart_marks_its_limit_where_there_is_room() -> None:
    style = Style(width=60)
    lines = area_chart([100.0] * plot_width(style), style=style, height=6, mark=Mark(3000.0, "limit"))
    assert lines[0].endswith("╌")
    assert " limit " in lines[0]
    assert max(map(len, lines)) <= 60
    assert lines[-1].startswith("       0 ┤")


def test_an_axis_has_round_labels() -> None:
    assert [label for _, label in ticks(9_000.0)] == ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB"]
    assert [label for _, label in ticks(1_365.0)] == ["0", "500 MiB", "1000 MiB"]
