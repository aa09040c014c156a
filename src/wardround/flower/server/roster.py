"""Who is who: a node says a name once; from then on the name is its key's, whatever connection it comes by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from wardround.flower.server.broker import Failure, Reply

__all__ = ["SHAPE", "Roster", "identity_of"]

SHAPE = ("task", "class_names", "input_shape", "feature_names")
"""What all hospitals' data must have in common."""


def identity_of(node: Any) -> str:
    """A node by its public key; by its number where it has none.

    >>> from types import SimpleNamespace
    >>> identity_of(SimpleNamespace(node_id=7, public_key=b""))
    'node:7'
    >>> identity_of(SimpleNamespace(node_id=7, public_key=b"abc"))
    'key:ba7816bf8f01cfea414140de5dae2223'
    """
    key = bytes(getattr(node, "public_key", b"") or b"")
    return f"key:{hashlib.sha256(key).hexdigest()[:32]}" if key else f"node:{node.node_id}"


class Roster:
    """The hospitals that introduced themselves. `tell(event, **fields)` is told who joins and who is refused."""

    def __init__(
        self,
        tell: Callable[..., None],
        bound: bool = True,
        rebind: Collection[str] = (),
        known: Collection[str] | None = None,
    ) -> None:
        self.tell, self.bound, self.rebind, self.known = tell, bound, set(rebind), known
        self.names: dict[str, str] = {}
        """Identity → name."""
        self.told: dict[str, dict[str, Any]] = {}
        """Name → what the hospital said of its data."""
        self.refused: dict[str, str] = {}
        """Identity → why it may not take part."""
        self.shape: dict[str, Any] | None = None
        """What the data must look like; None: not known yet."""

    def sort(self, nodes: Iterable[Any]) -> tuple[dict[str, int], dict[str, int]]:
        """The nodes that are there: by name, and by identity those that have not said theirs."""
        present: dict[str, int] = {}
        strangers: dict[str, int] = {}
        for node in nodes:
            identity = identity_of(node)
            if identity in self.names:
                present[self.names[identity]] = node.node_id
            elif identity not in self.refused:
                strangers[identity] = node.node_id
        return present, strangers

    def introduce(self, identity: str, reply: Reply) -> None:
        """Take a node in under the name it says, unless that is another's or its data do not fit."""
        problem = reply.reason if isinstance(reply, Failure) else self._problem(identity, reply.head)
        if isinstance(reply, Failure):
            self.tell("not-introduced", node=identity, reason=problem)  # it may do better next time
            return
        if problem is not None:
            self.refused[identity] = problem
            self.tell("refused", node=identity, client=str(reply.head.get("name"))[:80], reason=problem)
            return
        name = reply.head["name"]
        for other in [other for other, taken in self.names.items() if taken == name]:
            del self.names[other]
        self.names[identity] = name
        self.told[name] = {"samples": int(reply.head["samples"]), **{key: reply.head[key] for key in SHAPE}}
        self.tell("joined", client=name, node=identity, samples=self.told[name]["samples"])

    def _problem(self, identity: str, head: Mapping[str, Any]) -> str | None:
        name, samples = head.get("name"), head.get("samples")
        if not isinstance(name, str) or not 0 < len(name) <= 80 or not name.isprintable():
            return "it said no name"
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            return f"it says it has {samples!r} samples"
        if any(key not in head for key in SHAPE):
            return "it did not say what its data look like"
        if self.known is not None and name not in self.known:
            return f"'{name}' is none of the {len(self.known)} clients of the partition"
        owner = next((other for other, taken in self.names.items() if taken == name), None)
        if self.bound and owner not in (None, identity) and name not in self.rebind:
            return f"the name '{name}' is another node's; federation.rebind lets it move to this one"
        if self.shape is not None:
            for key in SHAPE:
                if self.shape.get(key) and head[key] != self.shape[key]:
                    return f"its data have other {key.replace('_', ' ')} than the federation's"
        return None

    def agree(self) -> None:
        """Fix what data must look like by what most hospitals have, and refuse those that differ."""
        if self.shape is not None or not self.told:
            return
        said = {name: repr([told[key] for key in SHAPE]) for name, told in self.told.items()}
        most = Counter(said[name] for name in sorted(said)).most_common(1)[0][0]
        self.shape = {key: next(self.told[n] for n in said if said[n] == most)[key] for key in SHAPE}
        for identity, name in list(self.names.items()):
            if said[name] != most:
                reason = "its data look different from those of most hospitals"
                self.refused[identity] = reason
                del self.names[identity], self.told[name]
                self.tell("refused", node=identity, client=name, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        """Names survive the server."""
        return {"names": dict(self.names) if self.bound else {}, "told": self.told, "shape": self.shape}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.names, self.told, self.shape = dict(state["names"]), dict(state["told"]), state["shape"]
