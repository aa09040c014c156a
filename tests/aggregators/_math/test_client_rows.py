import torch

from wardround.aggregators._math.client_rows import ClientRows


def test_rows_follow_their_clients_in_any_order():
    rows = ClientRows()
    matrix, known = rows.matrix_of(["a", "b", "c"], torch.empty(3, 2))
    assert not known.any()
    assert not matrix.any()
    matrix.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    again, known = rows.matrix_of(["a", "b", "c"], torch.empty(3, 2))
    assert again is matrix
    assert known.all()
    other, known = rows.matrix_of(["c", "d", "a"], torch.empty(3, 2))
    assert known.tolist() == [True, False, True]
    assert other[:, 0].tolist() == [3, 0, 1]
    assert {client: row[0].item() for client, row in rows.copies().items()} == {
        "a": 1,
        "b": 2,
        "c": 3,
        "d": 0,
    }


def test_who_is_away_does_not_keep_the_old_matrix():
    rows = ClientRows()
    rows.matrix_of(["a", "b"], torch.empty(2, 3))
    rows.matrix_of(["b", "c"], torch.empty(2, 3))
    assert rows._rows["a"].untyped_storage().nbytes() == 3 * 4


def test_rows_of_another_model_are_not_known():
    rows = ClientRows({"a": torch.ones(3)})
    for like in (torch.empty(1, 4), torch.empty(1, 3, dtype=torch.float64)):
        matrix, known = ClientRows(rows.copies()).matrix_of(["a"], like)
        assert not known.any()
        assert not matrix.any()


def test_what_is_given_is_copied():
    given = {"a": torch.ones(1, 3)[0]}
    rows = ClientRows(given)
    rows.matrix_of(["a"], torch.empty(1, 3))[0].zero_()
    assert given["a"].tolist() == [1, 1, 1]
