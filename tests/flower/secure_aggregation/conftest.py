"""A masked round in one process, stage by stage, with hospitals that drop out."""

import numpy as np
import pytest

from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits
from wardround.flower.secure_aggregation.server import MaskingServer

ORDER = "0" * 64


class MaskedRound:
    """`clients` and `server` of one round; each method plays one stage, without those named in `lost`."""

    def __init__(self, count=5, dimension=8, weights=None, order=ORDER, limits=None, seed=0):
        rng = np.random.default_rng(seed)
        self.names = [f"hospital-{i}" for i in range(count)]
        self.updates = {name: rng.normal(size=dimension) for name in self.names}
        self.weights = dict.fromkeys(self.names, 1 / count) if weights is None else weights
        self.limits = limits or Limits()
        self.clients = {name: MaskingClient(name, order, self.limits) for name in self.names}
        keys = {name: client.public_keys() for name, client in self.clients.items()}
        self.cohort = Cohort(order, keys, self.weights)
        self.dimension = dimension

    def begin(self):
        self.server = MaskingServer(self.cohort, self.dimension, self.limits)
        return self

    def share(self, lost=()):
        for name, client in self.clients.items():
            if name not in lost:
                self.server.take_shares(name, client.share_keys(self.cohort))
        self.tokens = self.server.deliveries()
        return self

    def mask(self, lost=()):
        for name, tokens in self.tokens.items():
            if name not in lost:
                self.server.take_masked(name, self.clients[name].mask(tokens, self.updates[name]))
        self.survivors = self.server.survivors()
        return self

    def confirm(self, lost=()):
        for name in self.survivors:
            if name not in lost:
                self.server.take_tags(name, self.clients[name].confirm(self.survivors))
        self.tags = self.server.confirmations()
        return self

    def reveal(self, lost=()):
        for name, tags in self.tags.items():
            if name not in lost:
                self.server.take_revealed(name, self.clients[name].reveal(tags))
        return self.server.unmask()

    def expected(self, names=None):
        names = self.survivors if names is None else names
        return sum(self.weights[name] * self.updates[name] for name in names)


@pytest.fixture(scope="session")
def masked_round():
    return MaskedRound
