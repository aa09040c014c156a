"""The server's own samples: trusted root data for rules that need them, and validation samples."""

from __future__ import annotations

import torch

from wardround.aggregators.base import Aggregator
from wardround.datasets.base import Dataset
from wardround.errors import ConfigError
from wardround.federation.schedule import Schedule
from wardround.randomness import numpy_generator
from wardround.training.base import ClientData

__all__ = ["ServerData"]


class ServerData:
    """A dataset at the server. Root samples come from validation, never from test or a client.

    They are not validated on: `validation_rows` are the rest.
    """

    def __init__(self, dataset: Dataset, rule: Aggregator, schedule: Schedule) -> None:
        self.dataset = dataset
        split = dataset.validation
        order = torch.from_numpy(numpy_generator(schedule.seed, "root").permutation(len(split)))
        count = schedule.root_samples if rule.needs_root_update or rule.needs_practice_ground else 0
        if count and not len(split):
            raise ConfigError(
                f"aggregator '{rule.name}' wants trusted samples of the server, which come from the validation split, "
                f"and dataset '{dataset.name}' is split without one; choose another rule or split"
            )
        root = order[:count].sort().values
        self.validation_rows = order[count:].sort().values
        if rule.needs_practice_ground and not len(self.validation_rows):
            raise ConfigError(
                f"the root set takes all {len(root)} validation samples; the rule needs some to judge candidate models "
                "by: lower root.samples"
            )
        self.root = ClientData(split.inputs, root, split.targets[root]) if count else None
