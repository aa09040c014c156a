"""A server's own side without data: rows around a known direction, and a value that can be computed by hand."""

import pytest
import torch

from wardround import Updates
from wardround.randomness import seed_for


class MadeUpServer:
    """Honest rows are the direction plus noise; the only attack turns them round; value is a squashed dot product."""

    seed, rounds, attacks = 0, 10, ("turn-round",)

    def __init__(self, size=30):
        self.size = size
        self.direction = torch.linspace(-1, 1, size)
        self.evaluated = 0

    def reference(self, round, group=None, draw=0):
        return self.direction

    def root_updates(self, round, count, group=0, draw=0, sizes=None):
        generator = torch.Generator().manual_seed(seed_for(round, count, group, draw))
        return self.direction + 0.5 * torch.randn(count, self.size, generator=generator)

    def plant(self, honest, attack, round, group=0, draw=0, sizes=None):
        byzantine = torch.arange(len(honest)) < 1 + group % 3
        return byzantine, -honest[byzantine]

    def value(self, weights):
        self.evaluated += len(weights)
        return torch.sigmoid(weights @ self.direction.to(weights.dtype) / self.size)


@pytest.fixture
def make_server():
    return MadeUpServer


@pytest.fixture
def make_round():
    """Twelve honest rows like the server's own, and four that are turned round."""

    def make(size=30, seed=1, honest=12, byzantine=4):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.linspace(-1, 1, size) + 0.5 * torch.randn(honest + byzantine, size, generator=generator)
        rows[honest:] *= -1
        return Updates(rows)

    return make


@pytest.fixture(scope="session")
def brief():
    """Parameters with hardly any practice: for what does not depend on how well anything is learnt."""
    return {
        "practice_groups": 1, "calm_groups": 1, "practice_draws": 2, "practice_clients": 8, "rl_steps": 5,
        "tries": 2, "learn_every": 3, "attention_epochs": 2, "vae_epochs": 2,
    }  # fmt: skip
