"""What an order says of the work: the model and how it is trained, the same on the server and in every hospital."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from wardround.flower.messages import Note
from wardround.privacy.order_names import order_name
from wardround.privacy.params import DpParams
from wardround.runs.config import RunConfig

__all__ = ["AUDIT", "CONTROL", "PREPROCESSING", "dp_of", "order_hash", "work_key", "work_section"]

AUDIT = "audit"
"""The key under which an order has the number and hash of the audit log's last line. It is not part of the order's
hash: a round that is asked again is the same order, though the log has grown."""
WEIGHTS = "weights"
"""The array of an order that has the model it starts from."""
CONTROL = "control"
"""The array of an order that has the server's control variate, where hospitals train with SCAFFOLD."""
PREPROCESSING = "preprocessing"
"""The key under which an order has the schema and scales of tables. So both are part of its hash."""
WORK = ("model", "training", "seed", "rounds", "dp", PREPROCESSING)
"""The keys of an order that decide the network and how it is trained."""


def work_section(run: RunConfig) -> dict[str, Any]:
    """What every order of a run says of the work, before the hospitals have agreed on a preprocessing."""
    plain = run.plain()
    keys = [key for key in WORK if key not in ("dp", PREPROCESSING)]
    return {**{key: plain[key] for key in keys}, "dp": plain["privacy"].get("dp")}


def work_key(head: Mapping[str, Any]) -> str:
    """The work of an order as one string: the same string for the same work."""
    return json.dumps({key: head.get(key) for key in WORK}, sort_keys=True)


def order_hash(order: Note) -> str:
    """The name of a whole order (see `order_names`): what is asked and the weights it starts from. Replies are bound to
    it."""
    asked = {key: value for key, value in order.head.items() if key != AUDIT}
    head = json.dumps(asked, sort_keys=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in sorted(order.arrays.items())}
    others = hashlib.sha256()
    for name, array in arrays.items():
        others.update(f"\n{name} {array.dtype} {list(array.shape)}\n".encode())
        others.update(b"" if name == WEIGHTS else array.tobytes())
    weights = arrays[WEIGHTS].tobytes() if WEIGHTS in arrays else b""
    return order_name(f"{head}\n{others.hexdigest()}".encode(), weights)


def dp_of(head: Mapping[str, Any]) -> DpParams | None:
    """The differential privacy that an order asks for."""
    return None if head.get("dp") is None else DpParams(**head["dp"])
