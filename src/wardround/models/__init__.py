"""Networks by name: `available()`, `create(name, **params).build(input_shape, outputs)`.

>>> from wardround import models
>>> model = models.create("mlp", hidden=[8]).build((5,), outputs=1)
>>> sum(p.numel() for p in model.parameters())
57
"""

from wardround.models.base import ModelSpec, Parameters, build_seeded, register, registry

__all__ = ["ModelSpec", "Parameters", "available", "build_seeded", "create", "register", "registry"]

available = registry.available
create = registry.create
