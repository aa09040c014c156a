"""Tables as hospitals export them: separators, decimal commas, encodings, dates."""

from __future__ import annotations

import numpy as np
import pytest

from wardround.datasets.csv_dialect import Dialect
from wardround.datasets.csv_files import numbers, read_table, read_text_table
from wardround.errors import DataError

HEADER = ["Größe", "Labor", "Station"]
ROWS = [["181,5", "1.204,25", "Süd"], ["169", "", "Nord"], ["174,0", "980", "Süd"]]


def write(path, separator=";", encoding="utf-8", rows=ROWS, header=HEADER):
    text = "\n".join(separator.join(cells) for cells in [header, *rows]) + "\n"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-8", "UTF-8"),
        ("utf-8-sig", "UTF-8"),
        ("latin-1", "Latin-1"),
        ("cp1252", "Latin-1"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
    ],
)
def test_a_european_export_is_read_as_it_is(tmp_path, separator, encoding, said):
    table = read_text_table(write(tmp_path / "t.csv", separator, encoding), HEADER)
    assert table.columns == {
        "Größe": ["181.5", "169", "174.0"],
        "Labor": ["1204.25", "", "980"],
        "Station": ["Süd", "Nord", "Süd"],
    }
    assert table.dialect == Dialect(separator, ",", said)


def test_what_is_given_is_not_guessed(tmp_path):
    path = write(tmp_path / "t.csv", ",", rows=[["1", "2", "a;b"]] * 3)
    assert read_table(path, HEADER, dialect=Dialect(",", ".", "utf-8"))["Station"] == ["a;b"] * 3
    with pytest.raises(DataError, match="no column 'Größe'"):
        read_table(path, HEADER, dialect=Dialect(";"))
    with pytest.raises(DataError, match="is not ascii text"):
        read_table(path, HEADER, dialect=Dialect(encoding="ascii"))
    with pytest.raises(DataError, match="no encoding is called 'utf-9'"):
        read_table(path, HEADER, dialect=Dialect(encoding="utf-9"))


def test_a_comma_may_mean_thousands_where_commas_separate(tmp_path):
    """1,234 in a comma-separated file: nobody knows, so nobody guesses; 1,23 can only be a decimal."""
    path = tmp_path / "t.csv"
    path.write_text('a,b\n"1,234","1,23"\n"2,500","0,5"\n')
    assert read_table(path, ["a"]) == {"a": ["1,234", "2,500"], "b": ["1.23", "0.5"]}
    assert read_table(path, ["a"], dialect=Dialect(decimal=","))["a"] == ["1.234", "2.500"]
    with pytest.raises(DataError, match="column 'a' holds '1,234'"):
        numbers(read_table(path, ["a"])["a"], "a", path)


def test_a_word_among_numbers_is_what_the_error_shows(tmp_path):
    path = write(tmp_path / "t.csv", rows=[["1,5", "7,2", "rot, 1,5"], ["2,5", "k.A.", "x"]])
    table = read_table(path, HEADER)
    assert table["Labor"] == ["7.2", "k.A."]
    assert table["Station"] == ["rot, 1,5", "x"], "words with commas stay as they are"
    with pytest.raises(DataError, match=r"column 'Labor' holds 'k\.A\.' \(row 2\)"):
        numbers(table["Labor"], "Labor", path)
    assert read_table(path, HEADER, missing=["k.A."])["Labor"] == ["7.2", ""]


def test_a_ragged_line_is_named_whatever_the_separator(tmp_path):
    path = write(tmp_path / "t.csv", rows=[["1", "2", "a"], ["1", "2"]])
    with pytest.raises(DataError, match="line 3: 2 cells where the header has 3"):
        read_table(path, HEADER)


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-03-01", "", "2023-12-31"],
        ["01.03.2024", "?", "31.12.2023"],
        ["01/03/2024", "", "31/12/2023"],
        ["03/01/2024", "", "12/31/2023"],
        ["2024-03-01T00:00:00Z", "", "2023-12-31 01:00:00+01:00"],
    ],
)
def test_dates_are_days(tmp_path, cells):
    days = numbers(cells, "admitted", tmp_path)
    reference = [np.datetime64(day, "D").astype(int) for day in ("2024-03-01", "2023-12-31")]
    assert days[[0, 2]].tolist() == reference
    assert np.isnan(days[1])


def test_dates_that_can_be_read_two_ways_are_refused(tmp_path):
    with pytest.raises(DataError, match="dates like 03/04/2024, in which day and month cannot be told"):
        numbers(["03/04/2024", "05/06/2024"], "admitted", tmp_path)


@pytest.mark.parametrize("cells", [["2024-13-01"], ["2024-02-30"], ["2024-01-01", "soon"], ["1.2.3"]])
def test_what_is_no_date_is_no_number(tmp_path, cells):
    with pytest.raises(DataError, match="not a number"):
        numbers(cells, "admitted", tmp_path)
