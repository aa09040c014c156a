"""The `privacy:` section of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from wardround.privacy.dp import ProfileNoise, analytic_sigma, classical_sigma
from wardround.privacy.encryption.steward import Policy
from wardround.registry import Parameters

__all__ = ["MODES", "RULES", "DpParams", "Mode", "PrivacyParams", "ProfileNoiseParams"]

Mode = Literal["plaintext", "encrypted-fedmed", "encrypted-caac"]
MODES: tuple[Mode, ...] = ("plaintext", "encrypted-fedmed", "encrypted-caac")

RULES: dict[str, tuple[str, ...]] = {
    # Their weights depend on what clients report, not on the updates.
    "encrypted-fedmed": ("fedavg", "fedmed", "fedprox", "mean"),
    # They need of an update its norm and its cosine to the last aggregate.
    "encrypted-caac": ("caac", "caac-dir", "caac-mag", "caac-mag+dir", "caac-temp"),
}
"""The rules that work in each encrypted mode; all rules work in plaintext."""


class DpParams(Parameters):
    """Differential privacy of what clients send."""

    unit: Literal["client", "patient"] = "client"
    """Who is protected: a client's whole update (noise on the update), or each of its samples (DP-SGD)."""
    clip: float = Field(1.0, gt=0)
    """S: the norm that an update (of a patient: a gradient) is clipped to."""
    epsilon: float = Field(2.0, gt=0)
    """Of one round (`unit: client`), where `noise_multiplier` is not given."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """Of one round in the calibration, and of the whole run in the accountant's ε."""
    calibration: Literal["document", "analytic"] = "document"
    """σ = S√(2 ln(1.25/δ))/ε, or the least σ that is enough."""
    noise_multiplier: float | None = Field(None, gt=0)
    """σ/S by hand; needed for `unit: patient`."""
    accountant: Literal["rdp", "prv"] = "rdp"
    budget: float | None = Field(None, gt=0)
    """ε of the whole run that must not be overspent: the run stops before it would be."""
    group_norm: bool = False
    """`unit: patient`: turn a model's BatchNorm layers, which mix patients, into GroupNorm."""

    @model_validator(mode="after")
    def _fits_its_unit(self) -> DpParams:
        if self.unit == "patient" and self.noise_multiplier is None:
            raise ValueError("unit patient needs noise_multiplier (1.0 is usual); ε follows from it")
        if self.unit == "client" and self.group_norm:
            raise ValueError("group_norm is for unit patient")
        return self

    @property
    def multiplier(self) -> float:
        """σ/S."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        calibrate = classical_sigma if self.calibration == "document" else analytic_sigma
        return calibrate(self.epsilon, self.delta)


class ProfileNoiseParams(Parameters):
    """Differential privacy of the norm and cosine that profiles are made of, a client and round."""

    epsilon: float = Field(2.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(gt=0)
    """Largest norm that is told."""

    def noise(self) -> ProfileNoise:
        """The mechanism."""
        return ProfileNoise(self.epsilon, self.delta, self.clip)


class PrivacyParams(Parameters):
    """How updates are protected on their way."""

    mode: Mode = "plaintext"
    cipher: Literal["ckks", "paillier"] = "ckks"
    min_cohort: int = Policy.model_fields["min_cohort"].default
    max_share: float = Policy.model_fields["max_share"].default
    steward: str | None = None
    """Address of a steward process (`wardround steward`); None: one inside this process, with fresh keys."""
    steward_keys: str | None = None
    """The folder `keys` of that steward: a run plays the server and all clients, and so needs all their keys."""
    dp: DpParams | None = None
    profile_noise: ProfileNoiseParams | None = None
    pseudonyms: str | None = None
    """A key file (made where there is none): clients are called by a keyed hash of their id wherever a run has
    their names: its lines, profiles, checkpoint. Only who has the file can tell who is who."""

    @model_validator(mode="after")
    def _parts_fit(self) -> PrivacyParams:
        if self.mode == "encrypted-caac" and self.cipher != "ckks":
            raise ValueError("encrypted-caac needs inner products under encryption: cipher ckks has them")
        if (self.steward is None) != (self.steward_keys is None):
            raise ValueError("steward and steward_keys go together: an address and the folder with its keys")
        if self.steward is not None and self.mode == "plaintext":
            raise ValueError("mode plaintext has no steward")
        if self.steward is not None and self.pseudonyms is not None:
            raise ValueError(
                "a steward process knows clients by their ids; its log has pseudonyms of its own"
            )
        if self.steward is not None and self.profile_noise is not None:
            raise ValueError(
                "a steward process adds its own profile noise: give it --profile-epsilon instead"
            )
        self.policy()
        return self

    @model_serializer(mode="wrap")
    def _without_what_has_no_effect(self, dump: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """In plaintext, settings of ciphers and parts that are off are left out: they are no part of the run."""
        values = dump(self)
        if self.mode != "plaintext":
            return values
        told = {"dp": values["dp"], "profile_noise": values["profile_noise"]}
        kept = {key: value for key, value in told.items() if value is not None}
        return {"mode": self.mode, **kept, **({"pseudonyms": self.pseudonyms} if self.pseudonyms else {})}

    def policy(self) -> Policy:
        """What the steward opens."""
        return Policy(min_cohort=self.min_cohort, max_share=self.max_share)

    def why_not(self, rule: str) -> str | None:
        """Why this rule cannot work in this mode, with the rules and modes that can; None where it can."""
        if self.profile_noise is not None and rule not in RULES["encrypted-caac"]:
            return (
                f"privacy.profile_noise is for rules with profiles, {rule!r} has none; "
                f"rules that have: {', '.join(RULES['encrypted-caac'])}"
            )
        if self.mode == "plaintext" or rule in RULES[self.mode]:
            return None
        fits = [mode for mode, rules in RULES.items() if rule in rules]
        mend = f"aggregator {rule!r} works in mode {' or '.join([*fits, 'plaintext'])}"
        return (
            f"privacy.mode {self.mode}: aggregator {rule!r} needs to see updates in the clear; "
            f"rules that work here: {', '.join(RULES[self.mode])}; {mend}"
        )
