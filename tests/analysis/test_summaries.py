"""Tables of means over seeds."""

import pytest

from wardround.analysis import analyze


@pytest.mark.slow
def test_means_and_deviations_stand_in_the_table(three_seeds, table_of):
    table = table_of(analyze(three_seeds), "performance")
    row = next(row for row in table.rows if row[1] == "clean" and row[2] == "caac")
    assert row[3:5] == [3, "0.810 ± 0.010"]
    row = next(row for row in table.rows if row[1] != "clean" and row[2] == "caac")
    assert row[list(table.columns).index("ΔAUROC")] == "0.090 ± 0.010"
