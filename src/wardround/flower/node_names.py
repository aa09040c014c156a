"""Which hospital is behind a node of a user's own Flower app.

A node says its name in a `ConfigRecord` of its reply. That is its own word: a node can call itself anything. So a
name belongs to the first node that says it, and stays with that node; the rule knows nodes by Flower's ids alone.
Names that the server's operator gives (`node_names`) count before all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from logging import WARNING, getLogger

from flwr.app import RecordDict

from wardround.errors import ConfigError

__all__ = ["NodeNames", "node_label"]

log = getLogger("flwr").log  # Flower's own log

LONGEST = 80
_DEFAULT = re.compile(r"node-\d+")


def node_label(node: int) -> str:
    """What a node is called that has no name."""
    return f"node-{node}"


class NodeNames:
    """Node → name, by the operator's list and by what nodes say of themselves."""

    def __init__(self, given: Mapping[int, str] | None, key: str) -> None:
        """`given`: the operator's own list. `key`: under which a reply has the node's name."""
        self.key = key
        self._names: dict[int, str] = {}
        self._refused: set[tuple[int, str]] = set()
        for node, name in (given or {}).items():
            if not isinstance(node, int) or clean_name(name) != name:
                raise ConfigError(
                    f"node_names: expected node id → name, for example {{14752382552286262461: 'st-marys'}}, got "
                    f"{{{node!r}: {name!r}}}"
                )
            if name in self._names.values():
                raise ConfigError(f"node_names: two nodes are called {name!r}")
            self._names[node] = name
        self._fixed = frozenset(self._names)

    def __getitem__(self, node: int) -> str:
        return self._names.get(node, node_label(node))

    def __contains__(self, node: object) -> bool:
        return node in self._names

    def learn(self, node: int, content: RecordDict) -> None:
        """Take the name that a node gives in its reply, unless it has one or another node has this one."""
        said = next(
            (record[self.key] for record in content.config_records.values() if self.key in record), None
        )
        name = clean_name(said)
        if name is None or node in self._fixed or name == self._names.get(node):
            return
        if node in self._names:
            self._refuse(node, name, f"but said {self._names[node]!r} before")
        elif name in self._names.values():
            other = next(one for one, own in self._names.items() if own == name)
            self._refuse(node, name, f"but so does {node_label(other)}; it stays {node_label(node)}")
        else:
            self._names[node] = name

    def _refuse(self, node: int, name: str, why: str) -> None:
        if (node, name) not in self._refused:  # once is enough
            self._refused.add((node, name))
            log(WARNING, "%s says that it is %r, %s", node_label(node), name, why)


def clean_name(said: object) -> str | None:
    """A name that can be shown; None for anything else, and for another node's default name.

    >>> clean_name(" St. Mary's "), clean_name("node-12"), clean_name("a" * 81), clean_name(7)
    ("St. Mary's", None, None, None)
    """
    if not isinstance(said, str):
        return None
    name = said.strip()
    is_fine = 0 < len(name) <= LONGEST and name.isprintable() and not _DEFAULT.fullmatch(name)
    return name if is_fine else None
