"""Line searches: never weaker than their starting point, and on the line."""

import pytest
import torch

from wardround import Updates, aggregators, attacks


def setting(rule, seed=0, byzantine=3):
    honest = torch.randn(12, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
    tried = []

    def defence(rows):
        tried.append(rows[0].clone())
        return aggregators.create(rule, f=byzantine).aggregate(Updates(torch.cat([rows, honest[byzantine:]])))

    knowledge = attacks.Knowledge(
        round=1, honest=honest, own_rows=tuple(range(byzantine)), defence=defence, total_clients=12
    )
    return honest, knowledge, tried


@pytest.mark.parametrize("name", ["optimal-alie", "optimal-ipm"])
@pytest.mark.parametrize("rule", ["trimmed-mean", "krum", "meamed"])
def test_no_row_that_was_tried_does_more_harm(name, rule):
    honest, knowledge, tried = setting(rule)
    row = attacks.create(name).craft(honest[:3], knowledge)[0]
    assert len(tried) == 20
    mean = honest[3:].mean(0)

    def harm(candidate):
        return float((knowledge.defence(candidate.repeat(3, 1)).delta - mean).norm())

    assert harm(row) == pytest.approx(max(harm(candidate) for candidate in list(tried)))


@pytest.mark.parametrize("name", ["optimal-alie", "optimal-ipm"])
def test_rows_lie_on_the_line_of_the_others(name):
    honest, knowledge, _ = setting("trimmed-mean")
    row = attacks.create(name).craft(honest[:3], knowledge)[0]
    others = honest[3:]
    mean, std = others.mean(0), others.std(0)
    shift = (row - mean) / std if name == "optimal-alie" else row / mean
    assert shift.max() - shift.min() < 1e-9


def test_without_a_rule_it_is_the_usual_strength():
    honest = torch.eye(4)
    row = attacks.create("optimal-ipm").craft(
        honest[:1], attacks.Knowledge(round=1, honest=honest, own_rows=(0,))
    )
    torch.testing.assert_close(row[0], -1.5 * honest[1:].mean(0))
