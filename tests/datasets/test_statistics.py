"""What a client says of its table, and that one liar moves nobody's centre or scale."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wardround.datasets.statistics import (
    CategoryStatistics,
    NumberStatistics,
    TableStatistics,
    describe_table,
    merge_numbers,
    weighted_median,
)
from wardround.datasets.table import Table
from wardround.errors import DataError

FINITE = st.floats(-1e12, 1e12)
SPREAD = st.floats(0, 1e12)


def table(values, words=None, targets=None):
    count = len(values)
    return Table(
        {"x": np.array(values, dtype=float)},
        {"w": np.array(words or ["a"] * count, dtype=object)},
        np.array(targets if targets is not None else [0] * count),
        np.arange(count),
    )


def test_statistics_are_those_of_the_known_values():
    values = np.random.default_rng(0).normal(120, 15, 400)
    values[::10] = np.nan
    said = describe_table(table(values), np.arange(400), ["no", "yes"]).columns["x"]
    known = values[~np.isnan(values)]
    assert said.count == 360
    assert said.missing == pytest.approx(0.1)
    assert said.mean == pytest.approx(known.mean(), abs=1e-3 * known.std())
    assert said.spread == pytest.approx(known.std(), rel=1e-3)
    assert said.quantiles == pytest.approx({q: np.quantile(known, q) for q in said.quantiles}, abs=1e-2)
    assert set(said.quantiles) == {0.05, 0.25, 0.5, 0.75, 0.95}


def test_only_the_rows_that_are_the_clients():
    said = describe_table(table([1.0] * 10 + [99.0] * 10), np.arange(10), ["no"])
    assert said.rows == 10
    assert said.columns["x"].mean == 1
    assert said.columns["x"].spread == 0


@pytest.mark.parametrize("floor", [1, 5, 8])
def test_nothing_is_said_of_fewer_patients_than_the_floor(floor):
    words = ["common"] * 40 + ["rare"] * 6 + ["single"] + [""] * 3
    said = describe_table(
        table(np.arange(50.0), words, [0] * 43 + [1] * 7), np.arange(50), ["no", "yes"], floor
    )
    counts = {"common": 40, "rare": 6, "single": 1}
    assert said.columns["w"].levels == {word: n for word, n in counts.items() if n >= floor}
    assert said.columns["w"].missing == (0.06 if floor <= 3 else 0.0)
    assert set(said.classes) == ({"no", "yes"} if floor <= 7 else {"no"})
    # Beyond a quantile there are enough values on either side.
    assert all(min(q, 1 - q) * 50 >= floor for q in said.columns["x"].quantiles)


def test_a_column_with_too_few_values_is_not_described():
    said = describe_table(table([1.0, 2.0, 3.0, 4.0] + [np.nan] * 16), np.arange(20), ["no"], 5).columns["x"]
    assert said == NumberStatistics(0, 0.8)


def test_what_is_sent_is_read_back():
    said = describe_table(table(np.arange(40.0), ["a", "b"] * 20, [0, 1] * 20), np.arange(40), ["no", "yes"])
    assert TableStatistics.from_dict(said.to_dict()) == said
    import json

    assert TableStatistics.from_dict(json.loads(json.dumps(said.to_dict()))) == said


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], {"rows": 3}, {"rows": -1, "classes": {}, "columns": {}},
        {"rows": True, "classes": {}, "columns": {}},
        {"rows": 3, "classes": {"a": 2.5}, "columns": {}},
        {"rows": 3, "classes": {"a" * 300: 2}, "columns": {}},
        {"rows": 3, "classes": {str(i): 1 for i in range(500)}, "columns": {}},
        {"rows": 3, "classes": {}, "columns": {"x": {"type": "number", "count": 3, "missing": 2.0}}},
        {"rows": 3, "classes": {}, "columns": {"x": {"type": "words", "count": 3, "missing": 0.0}}},
        {"rows": 3, "classes": {}, "columns": {"x": {"type": "number", "count": 10**30, "missing": 0}}},
        {"rows": 3, "classes": {}, "columns": {str(i): None for i in range(9000)}},
        *(
            {"rows": 3, "classes": {}, "columns": {"x": {
                "type": "number", "count": 3, "missing": 0.0, "mean": mean, "spread": spread, "quantiles": {},
            }}}
            for mean, spread in ((float("nan"), 1.0), (1.0, float("inf")), (1.0, -1.0), ("many", 1.0))
        ),
    ],
)  # fmt: skip
def test_statistics_that_cannot_be_right_are_refused(wrong):
    with pytest.raises(DataError, match="statistics that cannot be read"):
        TableStatistics.from_dict(wrong)


@given(st.lists(FINITE, min_size=1, max_size=9))
def test_with_equal_weights_it_is_the_median(values):
    expected = np.median(np.array(values))
    assert weighted_median(values, [1] * len(values)) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 6)), min_size=1, max_size=8))
def test_a_weight_is_that_many_copies(pairs):
    values, weights = [float(v) for v, _ in pairs], [w for _, w in pairs]
    copies = [value for value, weight in zip(values, weights, strict=True) for _ in range(weight)]
    assert weighted_median(values, weights) == pytest.approx(float(np.median(copies)))


CLIENT = st.builds(
    lambda count, mean, spread, median: NumberStatistics(count, 0.0, mean, spread, {0.5: median}),
    st.integers(1, 10**6), FINITE, SPREAD, FINITE,
)  # fmt: skip


@given(st.lists(CLIENT, min_size=2, max_size=6), CLIENT, st.integers(0, 2**53), st.data())
def test_one_liar_stays_within_what_the_others_say(honest, liar, count, data):
    liar = NumberStatistics(
        max(count, 1), 0.0, liar.mean * 1e12, liar.spread * 1e12, {0.5: liar.mean * -1e12}
    )
    place = data.draw(st.integers(0, len(honest)))
    merged = merge_numbers([*honest[:place], liar, *honest[place:]])
    for value, said in (
        (merged.centre, [client.mean for client in honest]),
        (merged.median, [client.quantiles[0.5] for client in honest]),
    ):
        assert min(said) <= value <= max(said)
    spreads = [client.spread for client in honest]
    assert min(spreads) <= merged.scale <= max(spreads) or merged.scale == 1.0


@given(st.lists(CLIENT, min_size=3, max_size=3), st.lists(CLIENT, min_size=2, max_size=2))
def test_two_liars_of_five_too_where_hospitals_are_of_a_size(honest, liars):
    honest = [NumberStatistics(100, 0.0, c.mean, c.spread, c.quantiles) for c in honest]
    merged = merge_numbers([*honest, *liars])
    means = [client.mean for client in honest]
    assert min(means) <= merged.centre <= max(means)


@given(st.lists(CLIENT, min_size=1, max_size=6), st.randoms())
def test_the_order_of_clients_does_not_matter(clients, random):
    shuffled = list(clients)
    random.shuffle(shuffled)
    assert merge_numbers(shuffled) == merge_numbers(clients)


def test_clients_that_agree_are_merged_to_what_they_say():
    one = NumberStatistics(50, 0.0, 120.0, 15.0, {0.5: 118.0})
    merged = merge_numbers([one, one, one])
    assert (merged.centre, merged.scale, merged.median) == (120.0, 15.0, 118.0)


def test_a_column_that_nobody_has_or_that_never_varies_is_not_scaled():
    nobody = merge_numbers([NumberStatistics(0, 1.0)])
    assert (nobody.centre, nobody.scale, nobody.median) == (0.0, 1.0, 0.0)
    assert merge_numbers([NumberStatistics(9, 0.0, 3.0, 0.0, {})] * 3).scale == 1.0


def test_a_liar_cannot_speak_for_hospitals_too_small_to_say_a_median():
    small = NumberStatistics(8, 0.0, 120.0, 15.0, {})
    assert (
        merge_numbers([small] * 4 + [NumberStatistics(10**9, 0.0, 120.0, 15.0, {0.5: 1e9})]).median == 120.0
    )


def test_categories_say_levels():
    said = describe_table(table([0.0] * 10, ["3.0"] * 10), np.arange(10), ["no"]).columns["w"]
    assert said == CategoryStatistics(10, 0.0, {"3": 10})  # as levels are compared
