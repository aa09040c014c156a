"""Raw columns in, features out: fitted from statistics, saved and read back."""

import json

import numpy as np
import pytest

from wardround.datasets.preprocessing import Preprocessing, PreprocessingParams, Scaling, fit_preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.schema_check import SchemaMismatch
from wardround.datasets.statistics import describe_table
from wardround.datasets.table import Table
from wardround.errors import ConfigError

SCHEMA = Schema.from_dict(
    {
        "columns": [
            {"name": "age", "range": [0, 200]},
            {"name": "pain", "type": "category", "levels": ["no", "yes"]},
            {"name": "bp", "required": False},
        ],
        "label": {"name": "y", "classes": ["0", "1"]},
    }
)

IDENTITY = {"fill": 0, "centre": 0, "scale": 1}


def client(mean, count=200, seed=0):
    rng = np.random.default_rng(seed)
    ages = rng.normal(mean, 10, count).clip(0, 200)
    ages[::7] = np.nan
    words = np.array(["yes", "no", ""] * count, dtype=object)[:count]
    return Table({"age": ages, "bp": ages * 2}, {"pain": words}, np.zeros(count, int), np.arange(count))


def fit(*tables, **params):
    said = [describe_table(table, np.arange(len(table)), ["0", "1"]) for table in tables]
    return fit_preprocessing(SCHEMA, said, PreprocessingParams(**params))


def test_one_client_is_standardised():
    table = client(60)
    features = fit(table).transform(table)
    assert features.dtype == np.float32
    known = ~np.isnan(table.numeric["age"])
    assert features[known, 0].mean() == pytest.approx(0, abs=1e-3)
    assert features[known, 0].std() == pytest.approx(1, abs=1e-3)
    assert features[:3, 2:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert fit(table).feature_names == ("age", "bp", "pain=no", "pain=yes", "pain=missing")


def test_an_older_population_stays_older():
    """What each hospital's own mean hides, everybody's shows."""
    young, middle, old = client(45, seed=1), client(50, seed=2), client(65, seed=3)
    federation = fit(young, middle, old)
    assert np.nanmean(federation.transform(old)[:, 0]) > 1
    own = fit(young, middle, old, scale="local")
    said = describe_table(old, np.arange(len(old)), ["0", "1"])
    assert np.nanmean(own.with_scale_of(said).transform(old)[:, 0]) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("impute", ["median", "mean", "zero"])
def test_gaps(impute):
    table = client(60)
    ages = table.numeric["age"]
    fill = {"median": np.nanmedian(ages), "mean": np.nanmean(ages), "zero": 0.0}[impute]
    features = fit(table, impute=impute, scale="none").transform(table)
    gaps = np.isnan(ages)
    assert features[gaps, 0] == pytest.approx(fill, abs=0.01)
    assert features[~gaps, 0] == pytest.approx(ages[~gaps], rel=1e-6)


def test_a_column_that_a_hospital_lacks_is_filled_like_any_gap():
    table = client(60)
    without = Table({"age": table.numeric["age"]}, {}, table.targets, table.units)
    preprocessing = fit(table)
    scaling = preprocessing.scaling["bp"]
    features = preprocessing.transform(without)
    assert features[:, 1] == pytest.approx((scaling.fill - scaling.centre) / scaling.scale)
    assert (features[:, 4] == 1).all()  # pain=missing


def test_raw_cells_and_typed_columns_give_the_same():
    table = client(60)
    raw = {
        "age": ["" if np.isnan(v) else repr(v) for v in table.numeric["age"].tolist()],
        "bp": ["?" if np.isnan(v) else repr(v) for v in table.numeric["bp"].tolist()],
        "pain": table.categorical["pain"].tolist(),
    }
    preprocessing = fit(table)
    assert np.array_equal(preprocessing.transform(raw), preprocessing.transform(table))
    with pytest.raises(SchemaMismatch, match=r"t.csv: column 'age' holds '900' \(row 1\)"):
        preprocessing.transform({**raw, "age": ["900", *raw["age"][1:]]}, "t.csv")


def test_saved_and_read_back():
    preprocessing = fit(client(60), client(40), impute="mean")
    again = Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict())))
    assert again.hash == preprocessing.hash
    table = client(50, seed=5)
    assert np.array_equal(again.transform(table), preprocessing.transform(table))
    assert fit(client(61)).hash != fit(client(60)).hash


@pytest.mark.parametrize(
    "change",
    [
        {"version": 7}, {"scaling": {}}, {"scaling": None}, {"scale": "robust"}, {"schema": {}},
        *(
            {"scaling": {"age": {"fill": 0, "centre": centre, "scale": scale}, "bp": IDENTITY}}
            for centre, scale in ((0, 0), (0, -1), (0, 1e-40), (float("nan"), 1), (1e300, 1), (0, float("inf")))
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(change):
    with pytest.raises(ConfigError):
        Preprocessing.from_dict({**fit(client(60)).to_dict(), **change})


def test_no_row_is_needed_to_fit():
    """Statistics alone decide: other rows with the same statistics give the same preprocessing."""
    table = client(60)
    order = np.random.default_rng(1).permutation(len(table))
    assert fit(table).scaling == fit(table.select(order)).scaling
    assert fit(table).scaling["age"] == Scaling(**fit(table).to_dict()["scaling"]["age"])
