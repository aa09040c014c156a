"""What a model that was never attacked says to a backdoor's samples: that much is not the attack's."""

from __future__ import annotations

from wardround import attacks
from wardround.runs.config import RunConfig
from wardround.runs.folder import RunFolder
from wardround.runs.runner import build

__all__ = ["untaught_success"]


def untaught_success(config: RunConfig, clean: RunFolder) -> float | None:
    """The attack success of an attack's backdoor on the last model of the run without attack; None without a backdoor.

    Args:
        config: The run with the attack.
        clean: The finished run without it.
    """
    name, params = config.attack_parameters()
    if not attacks.create(name, **params).backdoors:
        return None
    checkpoint = clean.read_checkpoint()
    if checkpoint is None:
        return None
    federation = build(config, workers=1)
    assert federation.evaluator is not None  # a simulation has one
    metrics = federation.evaluator.measure(checkpoint["federation"]["weights"])[0].metrics
    return metrics.get("attack_success")
