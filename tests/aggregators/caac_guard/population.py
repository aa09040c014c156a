"""Hospitals with patients of two outcomes, whose updates are steps of a logistic regression."""

import torch

from wardround import Updates
from wardround.updates import Layout, Parts

N, FEATURES = 20, 60
LAYOUT = Layout(("weight", "bias"), ((1, FEATURES), (1,)))


class Population:
    """Honest hospitals: the same two outcomes everywhere, in shares and numbers of each hospital's own."""

    def __init__(self, seed=0, clients=N, least=0.05, positive=False):
        """`positive`: features are never negative, as behind a ReLU; else they have no common sign."""
        self.generator = torch.Generator().manual_seed(seed)
        self.mean = torch.randn(FEATURES, generator=self.generator) + (8.0 if positive else 0.0)
        self.difference = torch.randn(FEATURES, generator=self.generator)
        sizes = torch.randint(100, 1000, (clients,), generator=self.generator)
        share = least + (1 - 2 * least) * torch.rand(clients, generator=self.generator)
        ones = (sizes * share).round()
        self.counts = torch.stack([sizes - ones, ones], 1).double()

    def round(self):
        """N × 2 × (features + 1) parts: what the mean patient of each outcome says, times how many they are."""
        n = len(self.counts)
        parts = []
        for outcome, sign in ((0, -1.0), (1, 1.0)):
            noise = torch.randn(n, FEATURES, generator=self.generator)
            patients = self.mean + sign * self.difference + 0.5 * noise
            with_bias = torch.cat([patients, torch.ones(n, 1)], 1)
            share = (self.counts[:, outcome] / self.counts.sum(1)).float()
            parts.append(0.1 * sign * share[:, None] * with_bias)
        return torch.stack(parts, 1)

    def updates(self, parts, counts=None):
        """What the server receives."""
        counts = self.counts if counts is None else counts
        samples = self.counts.sum(1)
        return Updates(parts.sum(1), num_samples=samples, layout=LAYOUT, parts=Parts(parts, counts))


def run(rule, rounds, population, craft=None, start=1, byzantine=6, end=10_000):
    """Results of rounds in which the first clients send what `craft` makes of their parts."""
    results = []
    for t in range(1, rounds + 1):
        parts = population.round()
        if craft is not None and start <= t < end:
            parts[:byzantine] = craft(parts[:byzantine])
        results.append(rule.aggregate(population.updates(parts), t))
    return results
