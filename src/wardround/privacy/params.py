"""The `privacy:` section of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, get_args

from pydantic import Field, model_serializer, model_validator

from wardround.privacy.dp import ProfileNoise, analytic_sigma, classical_sigma
from wardround.privacy.encryption.steward import Policy
from wardround.registry import Parameters

__all__ = [
    "MODES",
    "STEWARDED",
    "VISIBLE",
    "DpParams",
    "Mode",
    "PrivacyParams",
    "ProfileNoiseParams",
    "rules_for",
]

Mode = Literal["plaintext", "encrypted-fedmed", "encrypted-caac", "secure-aggregation"]
MODES: tuple[Mode, ...] = get_args(Mode)

VISIBLE: dict[Mode, str] = {
    "encrypted-fedmed": "reports",
    "encrypted-caac": "scalars",
    "secure-aggregation": "reports",
}
"""What a rule learns of updates in each mode that hides them; in plaintext it sees everything."""
STEWARDED: tuple[Mode, ...] = ("encrypted-fedmed", "encrypted-caac")
"""The modes in which a steward opens what clients encrypt."""
PROFILED = "scalars"  # what a rule sees whose profiles are made of norms and cosines


class RuleDeclaration(Protocol):
    """What a rule (`wardround.aggregators.Aggregator`, the class or an instance) says of itself."""

    @property
    def name(self) -> str: ...
    @property
    def sees(self) -> str: ...


def rules_for(mode: Mode, rules: Iterable[RuleDeclaration]) -> list[str]:
    """The names of those rules that work in a mode: in one that hides updates, those that see no more than it shows."""
    return [rule.name for rule in rules if mode == "plaintext" or rule.sees == VISIBLE[mode]]


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
    """Differential privacy of the norm and cosine that profiles are made of, per client and round."""

    epsilon: float = Field(2.0, gt=0)
    delta: float = Field(1e-5, gt=0, lt=1)
    clip: float = Field(gt=0)
    """Largest norm that is revealed."""

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
    their names: its lines, profiles, checkpoint. Only the holder of the file knows which name is whose."""

    @model_validator(mode="after")
    def _parts_fit(self) -> PrivacyParams:
        if self.mode == "encrypted-caac" and self.cipher != "ckks":
            raise ValueError("encrypted-caac needs inner products under encryption: cipher ckks has them")
        if (self.steward is None) != (self.steward_keys is None):
            raise ValueError("steward and steward_keys go together: an address and the folder with its keys")
        if self.steward is not None and self.mode not in STEWARDED:
            raise ValueError(f"mode {self.mode} has no steward")
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
        """Without a steward, settings of ciphers and parts that are off are left out: they are no part of the run."""
        values = dump(self)
        if self.mode in STEWARDED:
            return values
        parts = {key: values[key] for key in ("dp", "profile_noise") if values[key] is not None}
        if self.mode != "plaintext":
            parts = {"min_cohort": self.min_cohort, "max_share": self.max_share, **parts}
        return {"mode": self.mode, **parts, **({"pseudonyms": self.pseudonyms} if self.pseudonyms else {})}

    def policy(self) -> Policy:
        """What the steward opens."""
        return Policy(min_cohort=self.min_cohort, max_share=self.max_share)

    def why_not(self, rule: RuleDeclaration, rules: Iterable[RuleDeclaration] = ()) -> str | None:
        """Why this rule cannot work in this mode; None where it can.

        Args:
            rule: The rule of the run.
            rules: All rules there are: the message names those that would work.
        """
        rules = list(rules)
        if self.profile_noise is not None and rule.sees != PROFILED:
            others = [other.name for other in rules if other.sees == PROFILED]
            return f"privacy.profile_noise is for rules with profiles, {rule.name!r} has none" + (
                f"; rules that have: {', '.join(others)}" if others else ""
            )
        if rules_for(self.mode, [rule]):
            return None
        fits = [mode for mode in VISIBLE if rules_for(mode, [rule])]
        others = rules_for(self.mode, rules)
        return (
            f"privacy.mode {self.mode}: aggregator {rule.name!r} needs to see updates in the clear; "
            + (f"rules that work here: {', '.join(others)}; " if others else "")
            + f"aggregator {rule.name!r} works in mode {' or '.join([*fits, 'plaintext'])}"
        )

    def why_no_control_variates(self, steps: int | None) -> str | None:
        """Why clients cannot train with SCAFFOLD in this mode; None where they can.

        `steps` are the local steps that all clients make; None where that depends on their samples.
        """
        if self.dp is not None:
            return (
                "training.method scaffold with privacy.dp: control variates are read out of the updates, and clipped "
                "and noisy ones are no mean gradients; use training.method plain"
            )
        if self.mode != "plaintext" and steps is None:
            return (
                f"training.method scaffold with privacy.mode {self.mode} needs training.steps: the server sees no "
                "single update, so all clients have to make the same number of steps"
            )
        return None
