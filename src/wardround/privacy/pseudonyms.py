"""Names that say nothing to those who lack the key, and always the same thing to those who have it."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from wardround.errors import ConfigError
from wardround.files import make_private_folder

__all__ = ["Pseudonyms", "from_key_file"]


class Pseudonyms:
    """Client id → the first 48 bits of a keyed hash of it.

    A plain hash would not do: ids are few and can be tried. (Two of a thousand clients share a name with a
    chance of 2 in a thousand million.)

    >>> name = Pseudonyms(b"key")
    >>> name("hospital-03") == name("hospital-03"), name("hospital-03") == name("hospital-04")
    (True, False)
    >>> len(name("hospital-03"))
    14
    """

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __call__(self, client: str) -> str:
        return "p-" + hmac.new(self.key, b"pseudonym\n" + client.encode(), "sha256").hexdigest()[:12]


def from_key_file(path: Path) -> Pseudonyms:
    """The names under the key in a file; where there is no file, a fresh key is written, for its owner only."""
    path = Path(path)
    try:
        make_private_folder(path.parent)
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(32) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a key file of this program ({error})") from None
    if len(key) < 16:
        raise ConfigError(f"{path}: a key of {len(key)} bytes is too short; 16 are the least")
    return Pseudonyms(key)
