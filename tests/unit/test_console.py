"""What the command line prints where there is room, where there is little, and where nobody says how much."""

import io
import re
import sys

import pytest

from lakehouse.cli import console

NAMES = [f"column_{number}" for number in range(16)]
ROWS = [[f"2026-01-01T00:00:0{number % 10}Z" for number in range(16)], ["–"] * 16]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(monkeypatch, stream: io.StringIO, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream)
    console.print_rows(NAMES, ROWS)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_in_a_pipe_a_row_is_a_line_however_long(monkeypatch):
    lines = printed(monkeypatch, io.StringIO(), 80)
    assert sum("2026-01-01T00:00:00Z" in line for line in lines) == 1
    (row,) = [line for line in lines if "2026" in line]
    assert all(value in row for value in ROWS[0])
    (header,) = [line for line in lines if "column_0" in line]
    assert all(name in header for name in NAMES)


@pytest.mark.parametrize("columns", [80, 200])
def test_in_a_narrow_terminal_each_row_is_a_list_and_its_values_stay_whole(monkeypatch, columns):
    lines = printed(monkeypatch, Terminal(), columns)
    assert "row 1 of 2" in lines[0]
    for name, value in zip(NAMES, ROWS[0], strict=True):
        assert any(line.split() == [name, value] for line in lines), f"{name} in {lines}"


def test_where_there_is_room_a_terminal_shows_a_table(monkeypatch):
    lines = printed(monkeypatch, Terminal(), 500)
    assert sum("column_0" in line and "column_15" in line for line in lines) == 1
