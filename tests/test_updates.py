import numpy as np
import pytest
import torch
from torch import nn

from wardround import updates as module
from wardround.updates import Aggregation, Layout, Parts, Updates, drop_malformed, row_squared_norms


def test_numpy_is_taken_without_a_copy_and_torch_too():
    array = np.ones((2, 3), dtype="float32")
    assert np.shares_memory(Updates(array).matrix.numpy(), array)
    tensor = torch.ones(2, 3)
    assert Updates(tensor).matrix.data_ptr() == tensor.data_ptr()
    assert (len(Updates(tensor)), Updates(tensor).dimension) == (2, 3)


@pytest.mark.parametrize("dtype", ["float16", "int64"])
def test_other_numbers_become_float32(dtype):
    assert Updates(np.ones((2, 3), dtype=dtype)).matrix.dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"matrix": torch.ones(3)}, "matrix of clients × parameters"),
        ({"matrix": torch.ones(2, 3), "clients": ["a"]}, "clients has 1 entries for 2 updates"),
        ({"matrix": torch.ones(2, 3), "clients": ["a", "a"]}, "twice: a"),
        ({"matrix": torch.ones(2, 3), "num_samples": [1, 2, 3]}, "num_samples has 3 entries for 2 updates"),
        ({"matrix": torch.ones(2, 3), "metrics": {"loss": [1.0]}}, "loss has 1 entries for 2 updates"),
        ({"matrix": [torch.ones(2, 2)]}, "an update is a vector"),
        ({"matrix": [torch.tensor(1.0), torch.ones(2)]}, "an update is a vector"),
    ],
)
def test_what_does_not_fit_together_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        Updates(**given)


@pytest.mark.parametrize("d", [1, 100, 16_384, 40_000])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_squared_norms_at_any_scale(d, scale):
    matrix = torch.randn(3, d, generator=torch.Generator().manual_seed(d)) * scale
    expected = (matrix.double() ** 2).sum(1)
    torch.testing.assert_close(row_squared_norms(matrix), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(row_squared_norms(matrix.double()), expected, rtol=1e-12, atol=0)


def test_guard_keeps_what_is_well_formed_in_order():
    rows = [
        torch.ones(4),
        torch.tensor([1, torch.inf, 0, 0]),
        torch.ones(3),
        torch.zeros(4),
        torch.ones(4) * 2,
    ]
    sent = Updates(rows, num_samples=[1, 2, 3, 4, -1], metrics={"loss": [1.0, 2, 3, 4, 5]})
    kept = drop_malformed(sent)
    assert kept.rows.tolist() == [0, 3]
    assert kept.dropped == {
        "client-01": "not finite",
        "client-02": "length 3 instead of 4",
        "client-04": "sample count -1",
    }
    assert list(kept.dropped) == ["client-01", "client-02", "client-04"]
    assert kept.updates.clients == ("client-00", "client-03")
    assert kept.updates.metrics["loss"].tolist() == [1, 4]
    assert kept.updates.squared_norms.tolist() == [4, 0]


def test_the_right_length_is_the_layouts_or_the_models_and_not_the_majoritys():
    short = [torch.ones(3), torch.ones(3), torch.ones(4)]
    assert list(drop_malformed(Updates(short)).dropped) == ["client-02"]
    assert list(drop_malformed(Updates(short), 4).dropped) == ["client-00", "client-01"]
    layout = Layout(("w",), ((2, 2),))
    assert list(drop_malformed(Updates(short, layout=layout)).dropped) == ["client-00", "client-01"]


def test_nobody_well_formed_leaves_an_empty_matrix_of_the_right_width():
    kept = drop_malformed(Updates([torch.ones(3), torch.ones(2)]), 5)
    assert kept.updates.matrix.shape == (0, 5)
    assert len(kept.dropped) == 2


def test_a_norm_beyond_float64_counts_as_not_finite():
    assert drop_malformed(Updates(torch.full((1, 4), 1e200, dtype=torch.float64))).dropped == {
        "client-00": "not finite"
    }


def test_neighbouring_rows_are_a_view_and_others_a_copy():
    matrix = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    updates = Updates(matrix)
    assert updates.select([1, 2, 3]).matrix.data_ptr() == matrix[1].data_ptr()
    assert torch.equal(updates.select([4, 0]).matrix, matrix[[4, 0]])
    assert len(updates.select([])) == 0


def test_guard_measures_each_row_once():
    calls = []

    def measure(matrix):
        calls.append(len(matrix))
        return row_squared_norms(matrix)

    matrix = torch.ones(4, 8)
    matrix[2] = torch.nan
    kept = drop_malformed(Updates(matrix), measure=measure)
    assert kept.updates.squared_norms.tolist() == pytest.approx([8, 8, 8])
    assert calls == [4]


def test_layout_of_a_network_marks_batch_norm_and_goes_there_and_back():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    layout = Layout.of(net)
    state = net.state_dict()
    vector = layout.flatten(state)
    assert layout.size == len(vector) == 2 * 3 + 3 + 4 * 3
    assert layout.batch_norm_mask.tolist() == [False] * 9 + [True] * 12
    for name, value in layout.unflatten(vector).items():
        assert torch.equal(value, state[name])


def split(change=None, columns=10):
    """Updates of three clients split by two outcomes, of which `change` may spoil something."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 2, columns, generator=generator)
    correction, counts = torch.randn(3, columns, generator=generator), torch.tensor([[4.0, 6.0]] * 3).double()
    matrix = rows.sum(1) + correction
    if change is not None:
        change(rows, counts)
    return Updates(matrix, num_samples=[10] * 3, parts=Parts(rows, counts, correction=correction))


def untold(rows, counts):
    """Fewer patients of an outcome than a client tells: their part is in the other."""
    rows[1, 0] += rows[1, 1]
    rows[1, 1], counts[1, 1] = 0, torch.nan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (None, None),
        (lambda rows, counts: rows[1, 0, 0].add_(1.0), "its parts do not add up to the update"),
        (lambda rows, counts: rows[1, 1, 9].add_(1.0), "its parts do not add up to the update"),
        (lambda rows, counts: rows[1, 1, 9].add_(1e-6), None),  # rounding
        (lambda rows, counts: rows[1, 1, 3].fill_(torch.inf), "not finite"),
        (lambda rows, counts: counts[1, 0].fill_(-1), "impossible counts of outcomes"),
        (lambda rows, counts: counts[1, 0].fill_(1e30), "impossible counts of outcomes"),
        (
            lambda rows, counts: counts[1, 0].fill_(5),
            "its counts of outcomes do not add up to its sample count",
        ),
        (
            lambda rows, counts: counts[1].copy_(torch.tensor([10.0, 0.0])),
            "a part of an outcome that it has no patient of",
        ),
        (untold, None),
        (
            lambda rows, counts: counts[1, 1].fill_(torch.nan),
            "a part of an outcome that it has no patient of",
        ),
    ],
)
def test_parts_of_an_update_must_fit_it(change, reason, monkeypatch):
    monkeypatch.setattr(module, "GAP_COLUMNS", 4)  # the columns are read in three pieces
    result = drop_malformed(split(change))
    assert list(result.dropped.values()) == ([] if reason is None else [reason])
    assert result.rows.tolist() == ([0, 1, 2] if reason is None else [0, 2])


def test_a_single_sample_of_one_outcome_gives_no_part_of_another():
    rows = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[1.0, 2.0], [0.5, 0.5]]])
    counts = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    result = drop_malformed(Updates(rows.sum(1), parts=Parts(rows, counts)))
    assert result.dropped == {"client-01": "a part of an outcome that it has no patient of"}


def test_who_has_no_sample_may_have_parts_all_the_same():
    rows = torch.ones(2, 2, 3)
    counts = torch.tensor([[2.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    assert not drop_malformed(Updates(rows.sum(1), parts=Parts(rows, counts))).dropped


def test_norms_below_the_smallest_normal_number_are_zero():
    smallest = torch.finfo(torch.float32).tiny
    rows = torch.zeros(3, 5)
    rows[:, 2] = torch.tensor([smallest / 4, 2 * smallest, 1.0])
    sent = rows.clone()
    kept = drop_malformed(Updates(rows))
    assert not kept.dropped
    assert not kept.updates.matrix[0].any()
    assert kept.updates.squared_norms[0] == 0
    assert torch.equal(kept.updates.matrix[1:], sent[1:])
    assert (kept.updates.squared_norms[1:] > 0).all()
    assert torch.equal(rows, sent), "what was sent stays as it is"


def test_a_layout_has_as_many_shapes_and_kinds_as_names():
    for names, shapes, kinds in ((3, 2, 2), (2, 3, 3), (2, 2, 3)):
        with pytest.raises(ValueError, match="as many shapes and kinds as names"):
            Layout(("a", "b", "c")[:names], ((1,),) * shapes, ("parameter",) * kinds)


def test_a_result_for_some_clients_is_spread_over_all():
    result = Aggregation(
        torch.ones(2), torch.tensor([0.25, 0.75]), torch.tensor([1.0, 2.0]), torch.tensor([False, True]),
        {"norm": torch.tensor([3.0, 4.0])},
    ).spread(torch.tensor([2, 0]), 3)  # fmt: skip
    assert result.weights.tolist() == [0.75, 0, 0.25]
    assert result.flags.tolist() == [True, True, False]
    assert torch.equal(result.scores.isnan(), torch.tensor([False, True, False]))
    assert result.columns["norm"][[0, 2]].tolist() == [4, 3]
    nothing = Aggregation(torch.ones(2)).spread(torch.tensor([0]), 3)
    assert nothing.weights is nothing.scores is nothing.flags is None
