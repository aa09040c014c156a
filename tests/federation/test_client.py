"""What leaves a client: nothing about a few patients of an outcome."""

import torch

from wardround.federation.client import Client
from wardround.updates import Parts, Updates, drop_malformed


def merged(counts, least):
    rows = torch.randn(1, len(counts), 5, generator=torch.Generator().manual_seed(0))
    parts = Parts(rows.clone(), torch.tensor([counts]).double())
    client = Client.__new__(Client)
    client.least_part = least
    client.merge_small_parts(parts, 0)
    return rows, parts


def test_a_few_patients_join_the_largest_part_and_are_not_counted():
    rows, parts = merged([50.0, 3.0, 20.0], least=5)
    assert parts.counts[0, 1].isnan()
    assert not parts.rows[0, 1].any()
    torch.testing.assert_close(parts.rows[0, 0], rows[0, 0] + rows[0, 1])
    assert torch.equal(parts.rows[0, 2], rows[0, 2])
    torch.testing.assert_close(parts.rows.sum(1), rows.sum(1))


def test_what_it_sends_then_is_well_formed():
    _, parts = merged([50.0, 3.0], least=5)
    updates = Updates(parts.rows.sum(1), num_samples=[53], parts=parts)
    assert not drop_malformed(updates).dropped


def test_outcomes_without_a_patient_are_told():
    _, parts = merged([50.0, 0.0], least=5)
    assert parts.counts.tolist() == [[50.0, 0.0]]
    assert not parts.rows[0, 1].any()


def test_a_simulation_has_nothing_to_hide():
    rows, parts = merged([50.0, 3.0], least=1)
    assert torch.equal(parts.rows, rows)
    assert parts.counts.tolist() == [[50.0, 3.0]]
