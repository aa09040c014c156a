"""Inner products of parts in one read, beside the plain way in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators._math import outcome_products
from wardround.aggregators._math.outcome_products import measure_parts
from wardround.updates import Parts


def split(clients, outcomes, columns, dtype=torch.float32):
    rows = torch.randn(clients, outcomes, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    return Parts(rows, torch.full((clients, outcomes), 10.0, dtype=torch.float64))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 2, 17), (5, 3, 1024), (7, 2, 40_000), (2, 10, 1025)])
def test_products_gaps_and_norms_are_those_of_the_definition(shape, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(outcome_products, "outcome_loops_for", lambda rows: None)
    parts = split(*shape)
    matrix = parts.sums()
    matrix[0, -1] += 2.0
    measured = measure_parts(matrix, parts)
    rows = parts.rows.double().flatten(0, 1)
    roots = rows.abs().sqrt() * rows.sign()
    gram, compressed = rows @ rows.T, roots @ roots.T
    if shape[1] != 2:  # many outcomes are not compared with each other
        outcome = torch.arange(len(rows)) % shape[1]
        gram = gram.diagonal().diag()
        compressed = compressed * (outcome[:, None] == outcome[None, :])
    torch.testing.assert_close(measured.gram, gram, rtol=1e-5, atol=1e-5 * shape[2])
    torch.testing.assert_close(measured.compressed, compressed, rtol=1e-5, atol=1e-5 * shape[2])
    torch.testing.assert_close(measured.gaps[0], torch.tensor(2.0).double(), rtol=1e-3, atol=1e-3)
    assert (measured.gaps[1:] < 1e-3).all()
    torch.testing.assert_close(measured.squared_norms, matrix.double().square().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_belongs_to_no_patient_closes_the_gap(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(outcome_products, "outcome_loops_for", lambda rows: None)
    parts = split(4, 2, 3000)
    correction = torch.ones(4, 3000)
    matrix = parts.sums() + correction
    assert (measure_parts(matrix, parts).gaps > 1).all()
    assert (measure_parts(matrix, replace(parts, correction=correction)).gaps < 1e-3).all()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_row_that_is_not_finite_spoils_no_other(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(outcome_products, "outcome_loops_for", lambda rows: None)
    parts = split(5, 2, 2000)
    parts.rows[2, 1, 7] = torch.nan
    parts.rows[3, 0, 9] = torch.inf
    measured = measure_parts(parts.sums(), parts)
    assert measured.part_norms.isfinite().all(1).tolist() == [True, True, False, False, True]
    fine = measured.select(torch.tensor([0, 1, 4]))
    assert fine.gram.isfinite().all()
    assert fine.compressed.isfinite().all()
    expected = measure_parts(parts.sums()[[0, 1, 4]], parts.select(torch.tensor([0, 1, 4])))
    torch.testing.assert_close(fine.gram, expected.gram)


def test_rows_that_are_dropped_leave_the_result_of_the_others():
    parts = split(9, 2, 500)
    parts.rows[:, 1] += 1.0
    parts.rows[:, 0] -= 1.0
    fewer = parts.select(torch.arange(1, 9))
    parts.rows[0, 0, 0] = torch.nan
    rule = aggregators.create("caac-guard")
    out = rule.aggregate(Updates(parts.sums(), parts=parts))
    names = [f"client-{i:02d}" for i in range(1, 9)]
    alone = aggregators.create("caac-guard").aggregate(Updates(fewer.sums(), names, parts=fewer))
    assert out.dropped == {"client-00": "not finite"}
    torch.testing.assert_close(out.columns["direction"][1:], alone.columns["direction"])
    assert torch.equal(out.delta, alone.delta)
