"""The check in words."""

from wardround.datasets.table_check_text import class_words, column_words, in_full, in_short
from wardround.datasets.table_columns import ColumnSummary
from wardround.datasets.table_findings import FileSummary, Finding, HospitalSummary, TableCheck

CHECK = TableCheck(
    (FileSummary("folder/stays.csv", 1200, ";", ",", "Latin-1"),),
    1200,
    (
        ColumnSummary("age", "feature", "number", 12, 60, 18.0, 63.5, 97.0),
        ColumnSummary("admitted", "feature", "date", 0, 300, 0.0, 31.0, 365.0),
        ColumnSummary(
            "sex", "category", "words", 0, 4, levels=(("f", 600), ("m", 590), ("x" * 40, 9), ("d", 1))
        ),
        ColumnSummary("empty", "dropped", "empty", 1200, 0),
    ),
    "died",
    ("no", "yes"),
    (1020, 180),
    tuple(HospitalSummary(f"h{i}", 80, (70, 10), 56, 16) for i in range(15)),
    {"train": (700, 140), "validation": (100, 20), "test": (220, 20)},
    3,
    0,
    (Finding("error", "a"), *(Finding("warning", f"w{i}") for i in range(7)), Finding("note", "n")),
)


def test_in_full():
    text = in_full(CHECK)
    assert "folder/stays.csv: 1,200 rows; separator semicolon, decimal comma, encoding Latin-1" in text
    assert "label died: no (1,020 rows, 85 %), yes (180 rows, 15 %, predicted)" in text
    assert "split with seed 3: 840 train, 120 validation, 240 test rows" in text
    assert "15 hospitals: h0 80, " in text
    assert "(3 more)" in text
    assert "12 gaps (1.0 %)" in text
    assert "1 error, 7 warnings, 1 note" in text
    assert text.endswith("  note:    n")


def test_in_short():
    lines = in_short(CHECK)
    assert lines[0].startswith("stays.csv: 1,200 rows; 15 hospitals; label died: ")
    assert lines[1:3] == ["error: a", "warning: w0"]
    assert lines[-1] == "… and 3 more: see `wardround data check`"


def test_columns():
    shown = [column_words(column) for column in CHECK.columns]
    assert shown[0] == "number: 18 to 97, median 63.5"
    assert shown[1] == "date: 1970-01-01 to 1971-01-01, median 1970-02-01"
    assert shown[2] == f"words: f (600), m (590), {'x' * 23}… (9), … (1 more)"
    assert shown[3] == "empty"
    assert class_words(TableCheck((), 0, ())) == ""
