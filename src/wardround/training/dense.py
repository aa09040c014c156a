"""Networks of dense layers, read layer by layer: what the vectorised engine can train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from wardround.updates import Layout

__all__ = ["DenseStack", "NotDense", "Stage"]


class NotDense(ValueError):
    """The network is not a plain chain of dense layers; the message says what stands in the way."""


@dataclass(frozen=True)
class Stage:
    """A linear layer and what follows it up to the next one."""

    inputs: int
    outputs: int
    weight: slice
    """Where its weight (outputs × inputs) lies in the flat vector."""
    bias: slice | None
    relu: bool
    dropouts: tuple[float, ...]
    """Drop probabilities, in order. ReLU before or after dropout gives the same: masks are not negative."""


@dataclass(frozen=True)
class DenseStack:
    """A chain of linear layers with ReLU and dropout between them.

    >>> stack = DenseStack.of(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 1)))
    >>> [(stage.inputs, stage.outputs, stage.relu, stage.dropouts) for stage in stack.stages]
    [(5, 3, True, (0.5,)), (3, 1, False, ())]
    """

    stages: tuple[Stage, ...]
    input_dropouts: tuple[float, ...]
    size: int
    dtype: torch.dtype

    @property
    def has_dropout(self) -> bool:
        """Does training draw masks?"""
        return bool(self.input_dropouts) or any(stage.dropouts for stage in self.stages)

    @classmethod
    def of(cls, model: nn.Module) -> DenseStack:
        """Read a network; NotDense where it is something else."""
        layers = list(_chain(model, ""))
        linears = [i for i, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear)]
        if not linears:
            raise NotDense("it has no linear layer")
        if len({id(layers[i][1]) for i in linears}) < len(linears):
            raise NotDense("a layer is used twice")
        dtypes = {parameter.dtype for parameter in model.parameters()}
        if len(dtypes) > 1 or not all(parameter.requires_grad for parameter in model.parameters()):
            raise NotDense("parameters are frozen or of several types")
        relu, input_dropouts = _between(layers[: linears[0]])
        if relu:
            raise NotDense("a ReLU stands before the first linear layer")
        layout = Layout.of(model)
        ends = [*linears[1:], len(layers)]
        stages = tuple(
            _stage(layout, *layers[start], layers[start + 1 : end])
            for start, end in zip(linears, ends, strict=True)
        )
        if stages[-1].relu or stages[-1].dropouts:
            raise NotDense("something follows the last linear layer")
        return cls(stages, input_dropouts, layout.size, dtypes.pop())


def _chain(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential`s in the order in which they run, with their names."""
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _chain(child, f"{path}{name}.")
        if len(list(module.named_children())) != len(module):
            raise NotDense("a layer is used twice")  # named_children leaves repeated modules out
        return
    if type(module) not in (nn.Linear, nn.ReLU, nn.Dropout, nn.Flatten, nn.Identity):
        raise NotDense(f"it has a {type(module).__name__}")
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) != (1, -1):
        raise NotDense("a Flatten keeps dimensions")
    yield path, module


def _stage(layout: Layout, path: str, linear: nn.Module, after: list[tuple[str, nn.Module]]) -> Stage:
    assert isinstance(linear, nn.Linear)
    relu, dropouts = _between(after)
    return Stage(
        linear.in_features,
        linear.out_features,
        layout.slices[f"{path}weight"],
        layout.slices[f"{path}bias"] if linear.bias is not None else None,
        relu,
        dropouts,
    )


def _between(layers: list[tuple[str, nn.Module]]) -> tuple[bool, tuple[float, ...]]:
    """Whether there is a ReLU among these layers, and the drop probabilities of the dropouts."""
    relu = any(isinstance(layer, nn.ReLU) for _, layer in layers)
    dropouts = tuple(layer.p for _, layer in layers if isinstance(layer, nn.Dropout) and layer.p > 0)
    if any(p >= 1 for p in dropouts):
        raise NotDense("a dropout drops everything")
    return relu, dropouts
