import numpy as np
import pytest
import torch
from torch import nn

from wardround import Layout, aggregators
from wardround.aggregators._math import sparsified


def lasa_by_definition(matrix, layout, s, lambda_n, lambda_s, dense=False):
    """The five steps one after the other on plain arrays."""
    rows = matrix.double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    rows = rows * np.minimum(1, np.median(norms) / norms)[:, None]
    weight_columns = np.concatenate(
        [
            np.arange(layout.size)[layout.slices[n]]
            for n, shape in zip(layout.names, layout.shapes, strict=True)
            if len(shape) > 1
        ]
    )
    sparse = rows.copy()
    keep = int(len(weight_columns) * (1 - s))
    for row in sparse:
        order = np.argsort(-np.abs(row[weight_columns]))
        row[weight_columns[order[keep:]]] = 0
    delta = np.zeros(layout.size)
    kept = np.zeros(len(rows))
    for name in layout.names:
        part = sparse[:, layout.slices[name]]
        a = np.linalg.norm(part, axis=1)
        p = 0.5 * (1 + (1 - s) * np.sign(part).sum(1) / np.abs(np.sign(part)).sum(1))
        inside = np.ones(len(rows), dtype=bool)
        for values, limit in ((a, lambda_n), (p, lambda_s)):
            if values.std() > 0:
                inside &= np.abs(values - np.median(values)) / values.std() <= limit
        if not inside.any():
            inside[:] = True
        kept += inside
        delta[layout.slices[name]] = (rows if dense else sparse)[inside][:, layout.slices[name]].mean(0)
    return delta, kept / len(layout.names)


@pytest.fixture
def layout():
    return Layout.of(nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


@pytest.mark.parametrize(
    "params", [{}, {"sparsity": 0.6, "lambda_n": 2.0}, {"values": "dense"}, {"sparsity": 0.0}]
)
def test_against_the_definition(params, layout, make_updates, monkeypatch, both_paths):
    monkeypatch.setattr(sparsified, "RANGE", 37)  # tensors larger than a piece take several
    updates = make_updates(11, layout.size, seed=3, layout=layout)
    updates.matrix[0] *= 50
    updates.matrix[1] *= -1
    out = aggregators.create("lasa", **params).aggregate(updates)
    delta, kept = lasa_by_definition(
        updates.matrix,
        layout,
        params.get("sparsity", 0.3),
        params.get("lambda_n", 1.0),
        1.0,
        params.get("values") == "dense",
    )
    np.testing.assert_allclose(out.delta, delta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out.columns["kept"], kept)


def test_without_a_layout_the_row_is_one_weight_tensor(make_updates):
    updates = make_updates(9, 40)
    whole = make_updates(9, 40, layout=Layout(("w",), ((5, 8),)))
    a, b = (aggregators.create("lasa").aggregate(u) for u in (updates, whole))
    assert torch.equal(a.delta, b.delta)
    vector = make_updates(9, 40, layout=Layout(("b",), ((40,),)))
    assert not torch.equal(a.delta, aggregators.create("lasa").aggregate(vector).delta)


def test_an_attacker_with_flipped_signs_is_heard_in_no_layer(layout, make_updates):
    updates = make_updates(11, layout.size, layout=layout)
    updates.matrix[:] = updates.matrix.abs()
    updates.matrix[4] *= -1
    out = aggregators.create("lasa").aggregate(updates)
    assert out.columns["kept"][4] == 0
    assert out.scores.argmax() == 4
    assert (out.delta >= 0).all()
