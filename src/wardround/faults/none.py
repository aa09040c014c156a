"""No fault."""

from __future__ import annotations

from wardround.faults.base import Fault, register


@register("none")
class NoFault(Fault):
    """Every hospital works."""

    is_harmless = True
