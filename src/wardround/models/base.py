"""The contract of a model: parameters in, a fresh `nn.Module` out; n × … → n × outputs logits."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import nn

from wardround.randomness import seed_for
from wardround.registry import Configurable, Parameters, Registry

__all__ = ["ModelSpec", "Parameters", "build_seeded", "register", "registry"]


class ModelSpec(Configurable):
    """A network by name."""

    summary: ClassVar[str] = ""
    example_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ()
    """Shapes of samples that it takes, the smallest among them: (features,), (time, features) or (channels,
    height, width). The contract test tries each of them."""
    extra: ClassVar[str | None] = None
    """The optional dependency that it needs, as `pip install 'wardround[…]'` calls it."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A freshly initialised network for samples of that shape."""


registry: Registry[ModelSpec] = Registry("model", "wardround.models", base=ModelSpec)
register = registry.register


def build_seeded(spec: ModelSpec, input_shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """Build with initial weights that depend on the seed alone; global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "model"))
        return spec.build(input_shape, outputs)
