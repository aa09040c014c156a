"""The folder with the hospitals' public keys, which an operator may change while the federation runs.

Three processes look at it: the gateway, which lets nobody else in; `serve`, which tells the SuperLink; and the server
app, which knows hospitals by their keys. A folder that cannot be read, or in which a file is no key, changes nothing:
the keys before stay in force until it is mended.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wardround.errors import ConfigError, WardroundError, did_you_mean
from wardround.files import replace_file
from wardround.flower.certificates import NODE_NAME, public_keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["KeyFolder", "add_key", "fingerprint", "revoke_key"]

INTERVAL = 1.0
"""Seconds between two looks at the folder."""
Keys = dict[str, "EllipticCurvePublicKey"]
Signature = tuple[tuple[str, int, int, int], ...]


class KeyFolder:
    """The keys that are in force.

    Args:
        folder: The folder; it must hold at least one key at the beginning.
        clock: For tests.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self._seen = self._signature()
        self.keys: Keys = public_keys(folder)
        """Name → key."""
        self.problem: str | None = None
        """Why the folder as it is now is not in force; None: it is."""
        self._looked = clock()

    def changed(self) -> bool:
        """Look at the folder, if it is time to; True where other keys are in force than before."""
        if self.clock() - self._looked < INTERVAL:
            return False
        self._looked = self.clock()
        signature = self._signature()
        if signature == self._seen:
            return False
        self._seen = signature
        try:
            keys = public_keys(self.folder)
        except (WardroundError, OSError) as error:
            self.problem = str(error)
            return False
        before, self.keys, self.problem = self.keys, keys, None
        return before != keys

    def describe_change(self, before: Keys) -> str:
        """What is different from the keys before, in words."""
        new = sorted(set(self.keys) - set(before))
        gone = sorted(set(before) - set(self.keys))
        other = sorted(name for name in set(before) & set(self.keys) if before[name] != self.keys[name])
        parts = [
            f"{word} {', '.join(names)}"
            for word, names in (("new", new), ("revoked", gone), ("replaced", other))
            if names
        ]
        return "; ".join(parts) or "the same"

    def _signature(self) -> Signature:
        """Name, number, time and size of every key file."""
        try:
            stats = [(path.name, path.stat()) for path in sorted(self.folder.glob("*.pub"))]
        except OSError:
            return ()
        return tuple((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def fingerprint(path: Path) -> str:
    """The hash of a key file, to compare by telephone: what `sha256sum` prints."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add_key(folder: Path, file: Path, replace: bool = False) -> str:
    """Put a hospital's public key into the folder under the name of its file; return the name.

    Raises:
        ConfigError: It is no key, another hospital's, or there already and not to be replaced.
    """
    name = file.stem
    if file.suffix != ".pub" or not NODE_NAME.fullmatch(name):
        raise ConfigError(f"{file}: a hospital's key is a file NAME.pub; its name is the hospital's")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    target = folder / file.name
    if target.exists() and target.read_bytes() != content and not replace:
        raise ConfigError(f"{target}: {name} has another key already; --replace puts this one in its place")
    key = _single_key(content, file)
    known = public_keys(folder) if any(folder.glob("*.pub")) else {}
    twin = next((other for other, own in known.items() if own == key and other != name), None)
    if twin is not None:
        raise ConfigError(f"{file}: the same key as {twin}.pub; every hospital has a key of its own")
    replace_file(target, content, 0o644)
    return name


def revoke_key(folder: Path, name: str) -> None:
    """Take a hospital's key out of the folder: from then on it is not let in. The last key cannot be revoked."""
    path = folder / f"{name}.pub"
    names = sorted(file.stem for file in folder.glob("*.pub"))
    if not path.exists():
        raise ConfigError(f"{folder}: no key of '{name}'; {did_you_mean(name, names)}")
    if names == [name]:
        raise ConfigError(f"{folder}: {name} is the only hospital; stop the server instead")
    path.rename(path.with_suffix(".revoked"))


def _single_key(content: bytes, file: Path) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file}: not a public key ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{file}: an elliptic curve key is needed; make it by `wardround certs`")
    return key
