"""A run's connection to its steward, and the keys of clients that are played here."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import torch

from wardround.errors import ConfigError
from wardround.privacy.encryption.ciphers import PublicSide, new_secret, public_side
from wardround.privacy.encryption.remote_steward import RemoteSteward
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.encryption.steward import Steward, StewardHandle
from wardround.privacy.encryption.vault import client_keys, server_key
from wardround.privacy.params import PrivacyParams

__all__ = ["Channel"]


class Channel:
    """The server's public context, the connection to the steward, and the keys of clients that are played here."""

    def __init__(self, params: PrivacyParams, clients: tuple[str, ...] | None) -> None:
        """`clients`: those played in this process; None where each has its own key."""
        self.mode, self.clients = params.mode, frozenset(clients or ())
        self.min_cohort = params.min_cohort
        self.own: Steward | None = None
        self.steward: StewardHandle
        if clients is None:  # each has its own key
            if params.steward is None:
                raise ConfigError(
                    "clients that seal their own updates need a steward process: privacy.steward"
                )
            self.keys: dict[str, bytes] = {}
            self.steward = RemoteSteward(params.steward, server_key(Path(params.steward_keys or "")))
        elif params.steward is None:
            self.keys = {client: secrets.token_bytes(32) for client in clients}
            noise = None if params.profile_noise is None else params.profile_noise.noise()
            self.own = Steward(
                new_secret(params.cipher), self.keys, params.mode, params.policy(), profile_noise=noise
            )
            self.steward = self.own
        else:
            folder = Path(params.steward_keys or "")
            self.keys = client_keys(folder, params.mode)
            unknown = [client for client in clients if client not in self.keys]
            if unknown:
                raise ConfigError(
                    f"{folder}: no key of {unknown[0]}; make the steward's folder with all clients"
                )
            self.steward = RemoteSteward(params.steward, server_key(folder))
        cipher, content = self.steward.public_context()
        if cipher != params.cipher:
            raise ConfigError(f"privacy.cipher is {params.cipher}, but the steward has keys for {cipher}")
        self.public: PublicSide = public_side(cipher, content)

    def sealers(self) -> dict[str, Sealer]:
        """One sealer per client that is played here; none where each client has its own key."""
        return {
            client: Sealer(client, self.mode, key, self.public, self.min_cohort)
            for client, key in self.keys.items()
            if client in self.clients
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of a steward that ends with this process: the sum that cosines are measured against.

        One in another process remembers by itself how far the run is.
        """
        last = None if self.own is None else self.own.progress.last_sum
        return {"last_sum": None if last is None else torch.from_numpy(last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the round whose state this is."""
        if self.own is not None:
            last = state["last_sum"]
            self.own.progress.last_sum = None if last is None else last.numpy()
