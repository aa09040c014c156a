"""The values that a search for the worst attack may give to an attack's parameters.

A parameter declares them in its type: `scale: Annotated[float, Range(0.1, 100, log=True)] = …`. Choices, switches and
numbers with two bounds need no declaration; `FIXED` keeps a parameter at its default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, get_origin

from annotated_types import Ge, Le

from wardround.errors import ParameterError
from wardround.registry import Parameters

__all__ = ["FIXED", "Choice", "Draw", "Range", "Space", "draw_parameters", "within"]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log`: each order of magnitude counts alike."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whole numbers only; taken from the parameter's type."""


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]


Space = Range | Choice
FIXED = Choice(())
"""Nothing to choose: the parameter keeps its default."""


class Draw(Protocol):
    """Picks a value for a key out of a space; it may use the parameter's default."""

    def __call__(self, key: str, space: Space, default: Any) -> Any: ...


def within(draw: Draw, prefix: str) -> Draw:
    """The same draw for keys that begin with `prefix.`."""
    return lambda key, space, default: draw(f"{prefix}.{key}", space, default)


def draw_parameters(params: type[Parameters], draw: Draw) -> dict[str, Any]:
    """A value for every parameter that is not fixed.

    >>> from wardround import attacks
    >>> draw_parameters(attacks.registry.get("sign-flip").Params, lambda key, space, default: space)
    {'scale': Range(low=0.1, high=100, log=True, whole=False)}
    """
    spaces = {key: _space_of(params, key) for key in params.model_fields}
    return {
        key: draw(key, space, params.model_fields[key].default)
        for key, space in spaces.items()
        if space != FIXED
    }


def _space_of(params: type[Parameters], key: str) -> Space:
    field = params.model_fields[key]
    declared = next((mark for mark in field.metadata if isinstance(mark, Range | Choice)), None)
    kind: Any = field.annotation
    if isinstance(declared, Choice):
        return declared
    if isinstance(declared, Range):
        return replace(declared, whole=kind is int)
    if kind is bool:
        return Choice((False, True))
    if get_origin(kind) is Literal:
        return Choice(get_args(kind))
    low = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    high = next((mark.le for mark in field.metadata if isinstance(mark, Le)), None)
    if kind in (int, float) and low is not None and high is not None:
        return Range(low, high, whole=kind is int)  # type: ignore[arg-type]
    raise ParameterError(
        f"{params.__qualname__}: '{key}' does not say how far it may be searched; "
        "annotate it with Range, Choice or FIXED of wardround.attacks.search_space"
    )
