"""A steward's folder: its secret key, the keys it shares with server and clients, its progress, its log. For one run.

    FOLDER/steward.json     mode, cipher and policy
    FOLDER/secret.key       the cipher's secret; stays here
    FOLDER/keys/server.key  shared with the server
    FOLDER/keys/client-….key  one a client, each shared with that client alone
    FOLDER/keys/public.key  the cipher's public keys, which every client gets from the steward, not from the server
    FOLDER/progress.json    how far its run is: round, order, what was opened in it
    FOLDER/last-sum-….npy   the sum that was opened last, in the round of its name
    FOLDER/openings.jsonl   a line for every opening and every refusal

All of it is readable by its owner only.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from pydantic import ValidationError

from wardround.errors import ConfigError
from wardround.files import append_text, make_private_folder, replace_file, replacing
from wardround.privacy.encryption.ciphers import new_secret, secret_side
from wardround.privacy.encryption.steward import DEPOSITS, PADDED_SUMS, Measured, Policy, Progress, Steward
from wardround.privacy.params import ProfileNoiseParams
from wardround.privacy.pseudonyms import Pseudonyms
from wardround.registry import explain

__all__ = ["PUBLIC", "Vault", "client_key", "client_keys", "key_path", "public_context", "server_key"]

PREFIX = "client-"
PUBLIC = "public.key"
LAST_SUM = "last-sum-{}.npy"
MODES = (PADDED_SUMS, DEPOSITS)
PRIVATE = 0o600  # for the owner only: keys, and what the steward has opened


_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a file of another content may raise."""


class _OtherMode(ConfigError):
    """A key for another mode than the one asked for."""


class Vault:
    """Opens a folder, or makes one."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.settings_path = self.folder / "steward.json"
        self.secret_path = self.folder / "secret.key"
        self.keys = self.folder / "keys"
        self.progress_path = self.folder / "progress.json"
        self.log_path = self.folder / "openings.jsonl"
        self._lock = threading.Lock()

    @property
    def exists(self) -> bool:
        """Has it been made already?"""
        return self.settings_path.exists()

    def make(
        self,
        clients: Sequence[str],
        mode: str,
        cipher: str = "ckks",
        policy: Policy | None = None,
        profile_noise: ProfileNoiseParams | None = None,
    ) -> None:
        """Fresh keys for a cipher, a server and these clients. An existing vault is never written over."""
        if self.exists:
            raise ConfigError(f"{self.folder}: a steward's folder already; its keys are not replaced")
        if len(set(clients)) < 2:
            raise ConfigError("a steward needs the ids of its clients, at least two different ones")
        if mode == DEPOSITS and cipher != "ckks":
            raise ConfigError(f"mode {DEPOSITS} needs inner products under encryption: cipher ckks has them")
        secret, policy = new_secret(cipher), policy or Policy()
        for path in (self.folder, self.keys):
            make_private_folder(path)
        replace_file(self.secret_path, secret.secret_bytes(), PRIVATE)
        replace_file(self.keys / "server.key", secrets.token_hex(32).encode(), PRIVATE)
        replace_file(self.keys / PUBLIC, cipher.encode() + b"\n" + secret.public_bytes(), PRIVATE)
        replace_file(self.keys / "pseudonyms.key", secrets.token_hex(32).encode(), PRIVATE)
        for client in dict.fromkeys(clients):
            path = key_path(self.keys, client)
            # A client must not take mode and cohort on the server's word: what it would send unpadded in one mode, the
            # other's steward would help to open.
            replace_file(path, f"{mode} {policy.min_cohort} {secrets.token_hex(32)}".encode(), PRIVATE)
        settings = {
            "mode": mode,
            "cipher": cipher,
            "policy": policy.model_dump(),
            "profile_noise": None if profile_noise is None else profile_noise.model_dump(),
        }
        self.keep(Progress())
        replace_file(
            self.settings_path, json.dumps(settings, indent=2).encode(), PRIVATE
        )  # last: now it exists

    def steward(self) -> Steward:
        """The steward that lives here, at the round where it stopped."""
        try:
            settings = json.loads(self.settings_path.read_text())
            policy = Policy(**settings["policy"])
            noise = settings["profile_noise"]
            profile_noise = None if noise is None else ProfileNoiseParams(**noise).noise()
        except FileNotFoundError:
            raise ConfigError(f"{self.folder}: no steward's folder; make one with --clients") from None
        except ValidationError as error:
            raise ConfigError(f"{self.settings_path}: {explain(error, Policy)}") from None
        except _UNREADABLE as error:
            raise ConfigError(f"{self.settings_path}: cannot be read ({_reason(error)})") from None
        return Steward(
            secret_side(settings["cipher"], self.secret_path.read_bytes()),
            client_keys(self.keys, settings["mode"]),
            settings["mode"],
            policy,
            self.log,
            Pseudonyms(_read_key(self.keys / "pseudonyms.key")),
            profile_noise,
            self.keep,
            self._progress(),
        )

    def log(self, line: dict[str, Any]) -> None:
        """Add a line; on disk before the answer leaves."""
        with self._lock:
            append_text(self.log_path, json.dumps(line) + "\n", PRIVATE)

    def keep(self, progress: Progress) -> None:
        """Remember how far the run is. Deposits are not kept: a resumed server hands them in again."""
        last = None
        if progress.last_sum is not None:
            last = self.folder / LAST_SUM.format(progress.last_round)
            if not last.exists():
                with replacing(last, PRIVATE) as path, open(path, "wb") as file:
                    np.save(file, progress.last_sum)
        state = {
            "last_sum": None if last is None else progress.last_round,
            "round": progress.round,
            "order": progress.order,
            "measured": {client: [m.norm, m.cosine] for client, m in progress.measured.items()},
            "norms": progress.norms,
            "coefficients": progress.coefficients,
            "starts": progress.starts,
            "mixtures": progress.mixtures,
        }
        replace_file(self.progress_path, json.dumps(state).encode(), PRIVATE)
        for path in self.folder.glob(LAST_SUM.format("*")):
            if path != last:
                path.unlink()

    def _progress(self) -> Progress:
        """What was kept. Beginning anew instead would open rounds a second time."""
        path = self.progress_path
        try:
            state = json.loads(path.read_text())
            progress = Progress(
                int(state["round"]),
                str(state["order"]),
                {client: Measured(*pair) for client, pair in state["measured"].items()},
                dict(state["norms"]),
                state["coefficients"],
                last_round=int(state["last_sum"] or 0),
                starts={str(start): int(round) for start, round in state["starts"].items()},
                mixtures=[dict(mixture) for mixture in state["mixtures"]],
            )
            if progress.last_round:
                path = self.folder / LAST_SUM.format(progress.last_round)
                progress.last_sum = np.load(path)
        except _UNREADABLE as error:
            raise ConfigError(
                f"{path}: cannot be read ({_reason(error)}); its keys cannot be used any more"
            ) from None
        logged = self._last_logged_round()
        if logged > progress.round:
            raise ConfigError(
                f"{self.progress_path}: is at round {progress.round}, but {self.log_path.name} has an opening of round "
                f"{logged}: an old copy was put back; its keys cannot be used any more"
            )
        return progress

    def _last_logged_round(self) -> int:
        """The last round in which something was opened, by the log."""
        if not self.log_path.exists():
            return 0
        rounds = [0]
        for line in self.log_path.read_text().splitlines():
            try:
                entry = json.loads(line)
                if "refused" not in entry:
                    rounds.append(int(entry["round"]))
            except _UNREADABLE:  # the last line of a process that was killed
                continue
        return max(rounds)


def client_keys(folder: Path, mode: str) -> dict[str, bytes]:
    """The clients' keys in a folder of keys, which must be keys for this mode."""
    paths = sorted(Path(folder).glob(f"{PREFIX}*.key"))
    if not paths:
        raise ConfigError(f"{folder}: no client's key in it")
    return {unquote(path.stem.removeprefix(PREFIX)): _read_key(path, mode) for path in paths}


def key_path(folder: Path, client: str) -> Path:
    """Where a folder of keys has a client's."""
    return Path(folder) / f"{PREFIX}{quote(client, safe='')}.key"


def client_key(path: Path) -> tuple[str, bytes, int]:
    """Out of the file that the steward handed over: the mode it is for, the key, and the least cohort of a sum."""
    for mode in MODES:
        try:
            return mode, _read_key(path, mode), int(path.read_text().split()[1])
        except (_OtherMode, IndexError, ValueError):
            continue
    raise ConfigError(f"{path}: not a client's key")


def public_context(path: Path) -> tuple[str, bytes]:
    """The cipher's name and its public keys, out of the steward's file `public.key`."""
    try:
        cipher, _, content = Path(path).read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    return cipher.decode(errors="replace"), content


def server_key(folder: Path) -> bytes:
    """The key that server and steward share."""
    return _read_key(Path(folder) / "server.key")


def _read_key(path: Path, mode: str | None = None) -> bytes:
    try:
        *words, digits = path.read_text().split()
        key = bytes.fromhex(digits)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError(f"{path}: not a key of this program") from None
    if mode is not None and words[:1] != [mode]:
        raise _OtherMode(f"{path}: a key for mode {words[0] if words else '(none)'}, not for {mode}")
    return key


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    return (
        f"{type(error).__name__}: {str(error).splitlines()[0][:100]}" if str(error) else type(error).__name__
    )
