"""Records as a table."""

import pytest

from wardround.api.tables import Records, client_row, round_row
from wardround.errors import ParameterError
from wardround.records import ClientRecord, LeftOut, RoundRecord

CLIENTS = Records(
    [
        ClientRecord(
            number, f"hospital <{name}>", weight=1 / 3, flag=name == "b", columns={"norm": float(number)}
        )
        for number in range(1, 8)
        for name in "abc"
    ],
    client_row,
)


def test_rows_are_records_and_columns_are_lists():
    assert [record.round for record in CLIENTS][:4] == [1, 1, 1, 2]
    assert isinstance(CLIENTS[-1], ClientRecord)
    assert CLIENTS["norm"][-1] == 7.0
    assert CLIENTS[3:5]["client"] == ["hospital <a>", "hospital <b>"]
    assert CLIENTS.select(flag=True, round=2)["client"] == ["hospital <b>"]
    with pytest.raises(ParameterError, match="no column 'wieght'; did you mean 'weight'"):
        CLIENTS["wieght"]


def test_as_a_frame():
    pytest.importorskip("pandas")
    frame = CLIENTS.to_pandas()
    assert list(frame.columns) == CLIENTS.columns
    assert frame["norm"].tolist() == CLIENTS["norm"]
    assert frame[frame.flag].client.unique().tolist() == ["hospital <b>"]


def test_long_tables_are_shown_in_part():
    text, page = repr(CLIENTS), CLIENTS._repr_html_()
    assert len(text.splitlines()) == 13, "heading, ten rows, dots, size"
    assert "[21 rows × 11 columns]" in text
    assert "hospital &lt;b&gt;" in page
    assert "<a>" not in page
    assert page.count("<tr>") == 12


def test_a_round_has_its_metrics_beside_it():
    rounds = Records(
        [
            RoundRecord(1, {"train": 1.0, "evaluate": 0.5}),
            RoundRecord(
                2, metrics={"auroc": 0.7}, validation={"auroc": 0.6}, left_out={"b": LeftOut("absent", "x")}
            ),
        ],
        round_row,
    )
    assert rounds["auroc"] == [None, 0.7]
    assert rounds["validation_auroc"] == [None, 0.6]
    assert rounds["left_out"] == [None, "b"]
    assert rounds["seconds"] == [1.5, 0]
