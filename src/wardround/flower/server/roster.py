"""Which node may use which name: the first key to claim a name owns it, whatever connection it comes by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from wardround import __version__ as wardround_version
from wardround.flower.messages import TABLE_KEY, UNFIT_KEY, VERSIONS_KEY
from wardround.flower.server.broker import Failure, Reply

__all__ = ["SHAPE", "Node", "Roster", "identity_of", "identity_of_key"]

SHAPE = ("task", "class_names", "input_shape", "feature_names")
"""What all hospitals' data must have in common."""
LONGEST_REASON = 500


class Node(Protocol):
    """What the roster reads of Flower's `NodeInfo`."""

    @property
    def node_id(self) -> int: ...


def identity_of(node: Node) -> str:
    """Return a node's identity: a hash of its public key, or its number where it has no key.

    >>> from types import SimpleNamespace
    >>> identity_of(SimpleNamespace(node_id=7, public_key=b""))
    'node:7'
    >>> identity_of(SimpleNamespace(node_id=7, public_key=b"abc"))
    'key:ba7816bf8f01cfea414140de5dae2223'
    """
    key = bytes(getattr(node, "public_key", b"") or b"")
    return identity_of_key(key) if key else f"node:{node.node_id}"


def identity_of_key(key: bytes) -> str:
    """Return the identity of the node that has this public key (PEM, as Flower hands it on)."""
    return f"key:{hashlib.sha256(key).hexdigest()[:32]}"


class Roster:
    """The hospitals that have introduced themselves.

    Args:
        log_event: Called as `log_event(event, **fields)` when a node joins, is refused or fails to introduce itself.
        bound: A name belongs to the first node that claims it.
        rebind: Names that may move to another node all the same.
        known: The only names allowed; None allows any.
        registered: Identity → name of every registered key; a node with one of them has that name and no other. None
            where keys are not registered.
    """

    def __init__(
        self,
        log_event: Callable[..., None],
        bound: bool = True,
        rebind: Collection[str] = (),
        known: Collection[str] | None = None,
        registered: Mapping[str, str] | None = None,
    ) -> None:
        self.log_event, self.bound, self.rebind, self.known = log_event, bound, set(rebind), known
        self.registered = registered
        self.names: dict[str, str] = {}
        """Identity → name."""
        self.descriptions: dict[str, dict[str, Any]] = {}
        """Name → what the hospital said of its data."""
        self.replaced: dict[str, str] = {}
        """Identity → the name that has moved away from it, and does not move back: its key may have been stolen."""
        self.refused: dict[str, str] = {}
        """Identity → why it may not take part; not for good: it may fix that."""
        self.versions: dict[str, str | None] = {}
        """Name → the version of wardround that it says it runs; None: it did not say."""
        self.unfit: dict[str, str] = {}
        """Identity → why its data did not fit; not for good: they may be fixed."""
        self.tables: dict[str, dict[str, Any]] = {}
        """Name → label and statistics that the hospital sent of its table."""
        self.shape: dict[str, Any] | None = None
        """What the data must look like; None: not known yet. Of tables also their `schema` and `preprocessing`."""

    def split_known(self, nodes: Iterable[Node]) -> tuple[dict[str, int], dict[str, int]]:
        """Split the connected nodes into known hospitals and those that are not, or were refused.

        Returns:
            Name → node id of the known ones, identity → node id of the unknown ones.
        """
        present: dict[str, int] = {}
        unknown: dict[str, int] = {}
        for node in nodes:
            identity = identity_of(node)
            if identity in self.names:
                present[self.names[identity]] = node.node_id
            elif (
                self.registered is None or identity not in self.replaced
            ):  # else its key was revoked or replaced
                unknown[identity] = node.node_id
        return present, unknown

    def obey(self, registered: Mapping[str, str]) -> None:
        """Take over which keys are registered now: the operator may have added, replaced or revoked some.

        A name leaves a key that is no longer registered for it, so that the hospital can come back with another one.
        What was refused is looked at again.
        """
        if self.registered == registered and all(own in registered for own in self.names):
            return
        self.registered = dict(registered)
        for identity, name in list(self.names.items()):
            if registered.get(identity) != name:
                self.replaced[identity] = self.names.pop(identity)
        self.replaced = {own: name for own, name in self.replaced.items() if registered.get(own) != name}
        self.refused.clear()

    def admit(self, identity: str, reply: Reply) -> None:
        """Admit a node under the name in its reply, unless that is another node's or its data do not fit."""
        if isinstance(reply, Failure):
            # Not refused for good: its next introduction may succeed.
            self.log_event("not-introduced", node=identity, reason=reply.reason)
            return
        problem = self._problem(identity, reply.head)
        if problem is None and UNFIT_KEY in reply.head:
            self._set_unfit(identity, reply.head["name"], str(reply.head[UNFIT_KEY])[:LONGEST_REASON])
            return
        self.unfit.pop(identity, None)
        if problem is not None:
            self._forget(identity)
            if self.refused.get(identity) != problem:
                client = str(reply.head.get("name"))[:80]
                self.log_event("refused", node=identity, client=client, reason=problem)
            self.refused[identity] = problem
            return
        self.refused.pop(identity, None)
        name = reply.head["name"]
        for other in [other for other, taken in self.names.items() if taken == name and other != identity]:
            self.replaced[other] = self.names.pop(other)
        is_new = self.names.get(identity) != name
        self.names[identity] = name
        samples = int(reply.head["samples"])
        self.descriptions[name] = {
            "samples": samples,
            **{key: reply.head[key] for key in SHAPE if key in reply.head},
        }
        if isinstance(table := reply.head.get(TABLE_KEY), dict):
            self.tables[name] = table
        if is_new:  # or it was only asked again, with a schema
            self.log_event("joined", client=name, node=identity, samples=samples)
        self._compare_versions(name, reply.head.get(VERSIONS_KEY))

    def _compare_versions(self, name: str, told: Any) -> None:
        """Log a hospital that runs another version than the server, and when it no longer does; each once."""
        theirs = str(told.get("wardround"))[:20] if isinstance(told, dict) else None
        before, self.versions[name] = self.versions.get(name, wardround_version), theirs
        if theirs == before:
            return
        if theirs == wardround_version:
            self.log_event("version-agrees", client=name)
        else:
            reason = (
                f"it runs wardround {theirs or 'an older version'}, the server {wardround_version}; install the "
                "same everywhere"
            )
            self.log_event("version-differs", client=name, reason=reason)

    def _forget(self, identity: str) -> None:
        """Take a hospital out that was admitted before: asked again, it no longer fits."""
        name = self.names.pop(identity, None)
        if name is not None:
            self.descriptions.pop(name, None)
            self.tables.pop(name, None)

    def _set_unfit(self, identity: str, name: str, reason: str) -> None:
        """Leave a hospital out until its data fit; logged once for each reason."""
        self._forget(identity)
        self.refused.pop(identity, None)
        if self.unfit.get(identity) != reason:
            self.log_event("refused", node=identity, client=name, reason=reason)
        self.unfit[identity] = reason

    def _problem(self, identity: str, head: Mapping[str, Any]) -> str | None:
        name, samples = head.get("name"), head.get("samples")
        if UNFIT_KEY in head:
            samples = 1  # it has not said, and need not
        if not isinstance(name, str) or not 0 < len(name) <= 80 or not name.isprintable():
            return "it said no name"
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            return f"it says it has {samples!r} samples"
        if any(key not in head for key in SHAPE) and not {TABLE_KEY, UNFIT_KEY} & set(head):
            return "it did not say what its data look like"
        if self.registered is not None and self.registered.get(identity) != name:
            own = self.registered.get(identity)
            return f"it says it is '{name}', but its key is " + (
                "not registered" if own is None else f"registered as '{own}' (the file {own}.pub)"
            )
        if self.known is not None and name not in self.known:
            return f"'{name}' is none of the {len(self.known)} clients of the partition"
        if self.bound and self.replaced.get(identity) == name:
            return f"the name '{name}' has moved to another node, and does not move back"
        owner = next((other for other, taken in self.names.items() if taken == name), None)
        if self.bound and owner not in (None, identity) and name not in self.rebind:
            return f"the name '{name}' is another node's; federation.rebind lets it move to this one"
        if self.shape is not None:
            for key in SHAPE:
                if self.shape.get(key) and key in head and head[key] != self.shape[key]:
                    return f"its data have other {key.replace('_', ' ')} than the federation's"
        return None

    def agree_on_shape(self) -> None:
        """Fix what data must look like by what most hospitals have, and refuse those that differ."""
        if self.shape is not None or not self.descriptions:
            return
        keys = {
            name: repr([description.get(key) for key in SHAPE])
            for name, description in self.descriptions.items()
        }
        most = Counter(keys[name] for name in sorted(keys)).most_common(1)[0][0]
        example = next(self.descriptions[name] for name in keys if keys[name] == most)
        self.shape = {key: example[key] for key in SHAPE}
        for identity, name in list(self.names.items()):
            if keys[name] != most:
                reason = "its data look different from those of most hospitals"
                self.refused[identity] = reason
                del self.names[identity], self.descriptions[name]
                self.log_event("refused", node=identity, client=name, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a restart of the server. Unbound names are not kept."""
        return {
            "names": dict(self.names) if self.bound else {},
            "replaced": dict(self.replaced) if self.bound else {},
            "descriptions": self.descriptions,
            "shape": self.shape,
            "versions": self.versions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state; older checkpoints call the descriptions `told`."""
        descriptions = state["descriptions"] if "descriptions" in state else state["told"]
        self.names, self.descriptions, self.shape = dict(state["names"]), dict(descriptions), state["shape"]
        self.replaced = dict(state.get("replaced", {}))
        self.versions = dict(state.get("versions", {}))
