"""What an order says of the work: the model and how it is trained, the same on the server and in every hospital."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from wardround.privacy.params import DpParams
from wardround.runs.config import RunConfig

__all__ = ["dp_of", "work_key", "work_section"]

WORK = ("model", "training", "seed", "rounds", "dp")
"""The keys of an order that decide the network and how it is trained."""


def work_section(run: RunConfig) -> dict[str, Any]:
    """What every order of a run says of the work."""
    plain = run.plain()
    return {**{key: plain[key] for key in WORK if key != "dp"}, "dp": plain["privacy"].get("dp")}


def work_key(head: Mapping[str, Any]) -> str:
    """The work of an order as one string: the same string for the same work."""
    return json.dumps({key: head.get(key) for key in WORK}, sort_keys=True)


def dp_of(head: Mapping[str, Any]) -> DpParams | None:
    """The differential privacy that an order asks for."""
    return None if head.get("dp") is None else DpParams(**head["dp"])
