"""Fang's trimmed-mean attack against the paper's intervals, coordinate by coordinate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wardround import attacks


def interval(low, high, rising, b):
    """The paper's interval for one coordinate, from the benign minimum and maximum."""
    if rising:
        return (low / b, low) if low > 0 else (b * low, low)
    return (high, b * high) if high > 0 else (high, high / b)


@pytest.mark.parametrize("b", [2.0, 5.0])
@pytest.mark.parametrize("offset", [0.0, 6.0, -6.0])  # signs mixed, all positive, all negative
@pytest.mark.parametrize("of", ["update", "parameters"])
def test_full_knowledge(b, offset, of, honest, knowledge):
    honest = honest + offset
    seen = knowledge(3, honest=honest)
    rows = attacks.create("fang-trimmed-mean", b=b, of=of).craft(honest[:3], seen)
    shift = seen.global_weights if of == "parameters" else torch.zeros_like(seen.global_weights)
    benign, mean = honest[3:] + shift, honest.mean(0)
    for j in range(honest.shape[1]):
        low, high = interval(benign[:, j].min(), benign[:, j].max(), mean[j] > 0, b)
        sent = rows[:, j] + shift[j]
        assert (low - 1e-9 <= sent).all()
        assert (sent <= high + 1e-9).all()


def test_values_fill_the_interval_uniformly(honest, knowledge):
    honest = torch.cat([honest, honest]).repeat(1, 30)
    rows = attacks.create("fang-trimmed-mean").craft(honest[:2], knowledge(2, honest=honest))
    low, high = honest[2:].min(0).values, honest[2:].max(0).values
    ends = [interval(a, z, r, 2.0) for a, z, r in zip(low, high, honest.mean(0) > 0, strict=True)]
    place = np.array([((rows[0, j] - a) / (z - a)).item() for j, (a, z) in enumerate(ends)])
    assert abs(place.mean() - 0.5) < 5 * (1 / 12 / len(place)) ** 0.5
    assert not torch.equal(rows[0], rows[1])


def test_partial_knowledge_is_three_to_four_deviations_out(honest):
    own = honest[:4]
    attack = attacks.create("fang-trimmed-mean", knowledge="colluders")
    rows = attack.craft(own, attacks.Knowledge(1, honest=own, own_rows=(0, 1, 2, 3)))
    mean, std = own.numpy().mean(0), own.numpy().std(0, ddof=1)
    out = (rows.numpy() - mean) / std * -np.sign(mean)
    assert out.min() >= 3 - 1e-9
    assert out.max() <= 4 + 1e-9
