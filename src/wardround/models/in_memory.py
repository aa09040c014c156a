"""A network that a Python program has handed over, in a configuration that names it by its hash."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from wardround.errors import ConfigError
from wardround.models.base import ModelSpec, Parameters, register

__all__ = ["IN_MEMORY", "InMemoryModel", "hold_network"]

IN_MEMORY = "in-memory"
HASHED_SEED = 0
"""Under which a function's network is built to be hashed: one hash, whatever the seed of the run."""

NetworkSource = nn.Module | Callable[[], nn.Module]
_held: dict[str, list[NetworkSource]] = {}


@register(IN_MEMORY)
class InMemoryModel(ModelSpec):
    """The network that `wardround.simulate(model=…)` was given. Nobody else can build it."""

    summary = "a network of your own Python program"
    listed = False

    class Params(Parameters):
        network: str
        """Its class, or the function that makes it."""
        structure: str
        """Hash of its layers."""
        weights: str
        """Hash of the weights it starts from."""

    params: Params

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        sources = _held.get(self.params.weights)
        if not sources:
            raise ConfigError(
                f"model '{IN_MEMORY}': the network {self.params.network} lives in the Python program that ran this; "
                "call wardround.simulate there"
            )
        return _built(sources[-1])


def _built(source: NetworkSource) -> nn.Module:
    return copy.deepcopy(source) if isinstance(source, nn.Module) else source()


@contextmanager
def hold_network(source: NetworkSource) -> Iterator[dict[str, str]]:
    """Make a network known as long as the block runs; gives the `model` section that stands for it.

    Args:
        source: A network, which starts from the weights it has; or a function (or class) without arguments that makes
            one, which starts from weights drawn with the run's seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(HASHED_SEED)
        network = _built(source)
    tensors = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    shapes = {name: (tuple(value.shape), str(value.dtype)) for name, value in tensors.items()}
    structure = hashlib.sha256(f"{network!r} {shapes}".encode()).hexdigest()
    weights = hashlib.sha256(structure.encode())
    for value in tensors.values():
        weights.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if not isinstance(source, nn.Module):
        weights.update(b"drawn with the run's seed")
    key = weights.hexdigest()[:16]
    name = type(source).__name__ if isinstance(source, nn.Module) else getattr(source, "__name__", "function")
    _held.setdefault(key, []).append(source)  # several threads may hold the same network
    try:
        yield {"name": IN_MEMORY, "network": name, "structure": structure[:16], "weights": key}
    finally:
        _held[key].pop()
