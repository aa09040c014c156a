"""What a hospital accepts: its own rules for orders, which no server can change.

They stand in `hospital.yaml` under `policy:`. An order outside of them is refused here; the reason goes into the
hospital's own log, and the server learns only that it was refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from wardround.errors import WardroundError
from wardround.flower.messages import Note
from wardround.flower.orders import CONTROL, dp_of
from wardround.privacy.cohorts import MAX_SHARE, MIN_COHORT
from wardround.privacy.params import DpParams, Mode
from wardround.registry import Parameters
from wardround.training.base import TrainingParams, learning_rate

__all__ = ["DpFloor", "HospitalPolicy", "OrderRefused"]


LARGEST_BATCH = 2**31 - 1
SMALLEST_CLIP, LARGEST_NOISE = 1e-30, 1e30
"""Beyond these the noise would overflow, or vanish in the rounding of what is sent."""


class OrderRefused(WardroundError):
    """An order that the hospital's policy does not allow. The message is for the hospital's own log."""


class DpFloor(Parameters):
    """The least differential privacy that a hospital accepts for what it sends."""

    unit: Literal["client", "patient"] = "client"
    """Who must be protected: the hospital's whole update, or each of its patients."""
    max_clip: float = Field(1.0, gt=0)
    """Largest norm that an update (of a patient: a gradient) may be clipped to."""
    min_noise: float = Field(1.0, gt=0)
    """Least noise, as a multiple of the clipping norm."""
    budget: float | None = Field(None, gt=0)
    """ε that this hospital spends in all, over all runs. What has been spent is in its ledger."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ of that ε."""

    def problem(self, dp: DpParams | None) -> str | None:
        """Why an order's differential privacy is not enough; None where it is."""
        if dp is None:
            return "it has no differential privacy"
        if dp.unit != self.unit:
            return f"it protects a {dp.unit}, not a {self.unit}"
        if not SMALLEST_CLIP <= dp.clip <= self.max_clip:
            return f"it clips to {dp.clip:g}, which is not from {SMALLEST_CLIP:g} to {self.max_clip:g}"
        if not self.min_noise <= dp.multiplier < LARGEST_NOISE:
            return f"its noise is {dp.multiplier:g} of the clipping norm, not at least {self.min_noise:g}"
        return None


class HospitalPolicy(Parameters):
    """What a hospital accepts from a server. The defaults are safe and fit ordinary training."""

    models: tuple[str, ...] | None = None
    """Models it trains, by name; None: any that is installed."""
    max_parameters: int = Field(100_000_000, ge=1)
    lr: tuple[float, float] = (1e-9, 10.0)
    """Least and largest learning rate, of the round: with a tiny one updates are (almost) zero, and what is opened of
    them is noise."""
    max_epochs: int = Field(50, ge=1)
    max_steps: int = Field(10_000, ge=1)
    """Of training in steps instead of epochs."""
    max_weight_decay: float = Field(0.1, ge=0)
    max_prox_mu: float = Field(100.0, ge=0)
    max_weight: float = Field(1e4, gt=0)
    """Largest magnitude of a parameter of the model that it is sent."""
    max_rounds: int = Field(5_000, ge=1)
    max_orders_per_day: int = Field(20_000, ge=1)
    min_samples: int = Field(10, ge=1)
    """Training samples below which it does not train."""
    min_reported: int = Field(5, ge=1)
    """Samples below which no metric is reported."""
    min_group: int = Field(10, ge=1)
    """Samples below which nothing is reported of a patient group or of a bin of the calibration curve."""
    report_loss: bool | None = None
    """Send the training loss along with updates? None: only where no differential privacy is demanded, which does not
    cover it."""
    report_metrics: bool | None = None
    """Evaluate the models that the server sends? None: only where no differential privacy is demanded, which does not
    cover metrics either. A model is evaluated for one round, as it is trained for one."""
    report_statistics: bool | None = None
    """Send counts, means, spreads, quantiles and levels of its columns, before the first round? None: only where no
    differential privacy is demanded, which does not cover them. Nothing is said of fewer patients than min_reported."""
    max_schemas: int = Field(10, ge=1)
    """Different schemas that its table is checked against, over all runs: each answer says a little of the table."""
    split_by_outcome: bool | None = None
    """Split updates into what patients of each outcome contributed, for a rule that compares hospitals within outcomes
    (`caac-guard`)? That tells how many patients of each outcome there are; nothing is told of fewer than min_reported.
    None: only where no differential privacy is demanded."""
    report_values: bool = True
    """Tell the server the value that does not fit its schema? If not, only the column and what was expected."""
    report_digits: int = Field(4, ge=1, le=17)
    """Significant digits of a loss or metric that is reported: a crafted model could write more into the others."""
    mode: Mode | None = None
    """The privacy mode that is required; None: the one that the hospital has keys for."""
    dp: DpFloor | None = None
    """The least differential privacy that is accepted; None: none is demanded."""
    min_cohort: int = Field(MIN_COHORT, ge=2)
    """Fewest hospitals in a sum: that a steward opens, or that this hospital masks its update for."""
    max_share: float = Field(MAX_SHARE, gt=0, lt=1)
    """Largest share of one hospital in a sum that this hospital masks its update for."""
    keep_models: bool = True
    """Store the finished model that the server brings? It is checked first; no code comes with it."""
    runs: tuple[str, ...] | None = None
    """Runs that it masks updates for, by name; None: only the first that asks. Two runs can ask for sums of the same
    updates, which a server could solve for single ones."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> HospitalPolicy:
        if not 0 < self.lr[0] <= self.lr[1]:
            raise ValueError(f"lr: the least must be above 0 and not above the largest, got {list(self.lr)}")
        return self

    @property
    def reports_loss(self) -> bool:
        """Does the training loss leave the hospital?"""
        return self.dp is None if self.report_loss is None else self.report_loss

    @property
    def reports_metrics(self) -> bool:
        """Do metrics of the server's models leave the hospital?"""
        return self.dp is None if self.report_metrics is None else self.report_metrics

    @property
    def reports_statistics(self) -> bool:
        """Do statistics of its columns leave the hospital?"""
        return self.dp is None if self.report_statistics is None else self.report_statistics

    @property
    def splits_by_outcome(self) -> bool:
        """Do the parts of updates leave the hospital?"""
        return self.dp is None if self.split_by_outcome is None else self.split_by_outcome

    def rounded(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Metrics as they may be reported.

        >>> HospitalPolicy(report_digits=3).rounded({"loss": 0.6931471805599453})
        {'loss': 0.693}
        """
        return {name: float(f"{value:.{self.report_digits}g}") for name, value in metrics.items()}

    def describe(self) -> list[str]:
        """The policy in words, for the hospital's own operators."""
        floor = "none demanded"
        if self.dp is not None:
            budget = "no limit" if self.dp.budget is None else f"ε {self.dp.budget:g} in all"
            bounds = f"clip at most {self.dp.max_clip:g}, noise at least {self.dp.min_noise:g}"
            floor = f"of a {self.dp.unit}, {bounds}, {budget}"
        models = "any" if self.models is None else ", ".join(self.models)
        return [
            f"models: {models}, at most {self.max_parameters:,} parameters",
            f"learning rate {self.lr[0]:g} to {self.lr[1]:g}, at most {self.max_epochs} epochs",
            f"at most {self.max_rounds} rounds, {self.max_orders_per_day} orders per day",
            f"at least {self.min_samples} samples to train, {self.min_reported} to report a metric and "
            f"{self.min_group} to report one of a patient group",
            f"training loss: {self._reported(self.reports_loss)}; metrics: {self._reported(self.reports_metrics)}",
            f"statistics of columns: {'sent' if self.reports_statistics else 'stay here'}; "
            f"at most {self.max_schemas} schemas",
            f"privacy mode: {self.mode or 'the one it has keys for'}, cohorts of at least {self.min_cohort}, "
            f"shares of at most {self.max_share:g}",
            f"differential privacy: {floor}",
            f"finished models: {'checked and stored' if self.keep_models else 'not taken'}",
        ]

    def _reported(self, leaves: bool) -> str:
        return f"reported with {self.report_digits} digits" if leaves else "stay here"

    def check_training(self, order: Note, samples: int, mode: str, min_cohort: int | None) -> None:
        """Raise `OrderRefused` unless the hospital may train by this order.

        Args:
            order: what the server asks.
            samples: training samples of this hospital.
            mode: the privacy mode in which its update would leave.
            min_cohort: of the steward, as the key's file says; None in plaintext.
        """
        head = order.head
        self._check_round(head)
        self.check_model(order)
        self._check_work(head)
        self._check_control(order)
        if samples < self.min_samples:
            raise OrderRefused(
                f"this hospital has {samples} samples, fewer than policy.min_samples {self.min_samples}"
            )
        if self.mode is not None and mode != self.mode:
            raise OrderRefused(f"policy.mode is {self.mode}, but its update would leave in mode {mode}")
        if min_cohort is not None and min_cohort < self.min_cohort:
            raise OrderRefused(
                f"the steward opens sums of {min_cohort} hospitals, fewer than policy.min_cohort {self.min_cohort}"
            )
        dp = _dp(head)
        if self.dp is not None and (problem := self.dp.problem(dp)) is not None:
            raise OrderRefused(f"policy.dp: {problem}")

    def check_evaluation(self, order: Note) -> None:
        """Raise `OrderRefused` unless the hospital may evaluate this order's model."""
        if not self.reports_metrics:
            raise OrderRefused("policy.report_metrics: metrics stay here")
        self._check_round(order.head)
        self.check_model(order)
        _training(order.head)

    def check_delivery(self, size: int, largest: int) -> None:
        """Raise `OrderRefused` unless the hospital takes a finished model of that many bytes."""
        if not self.keep_models:
            raise OrderRefused("policy.keep_models: finished models are not taken")
        if size > largest:
            raise OrderRefused(f"a model of {size} bytes; policy.max_parameters leaves room for {largest}")

    def check_parameters(self, count: int) -> None:
        """Raise `OrderRefused` for a model of more parameters than the hospital trains."""
        if count > self.max_parameters:
            raise OrderRefused(f"{count} parameters, more than policy.max_parameters {self.max_parameters}")

    def _check_round(self, head: Mapping[str, Any]) -> None:
        for name in ("round", "rounds"):
            if not _is_whole(head.get(name), 1, self.max_rounds):
                raise OrderRefused(
                    f"{name} is {_short(head.get(name))}; policy.max_rounds is {self.max_rounds}"
                )
        if head["round"] > head["rounds"]:
            raise OrderRefused(f"round {head['round']} of {head['rounds']}")
        for name in ("seed", "clients"):
            if not _is_whole(head.get(name, 0), 0, 2**63 - 1):
                raise OrderRefused(f"{name} is {_short(head.get(name))}")

    def check_model_name(self, name: object) -> None:
        """Raise `OrderRefused` for a model that the hospital does not train."""
        if not isinstance(name, str):
            raise OrderRefused("the order names no model")
        if self.models is not None and name not in self.models:
            raise OrderRefused(f"model {_short(name)} is not in policy.models ({', '.join(self.models)})")

    def check_model(self, order: Note) -> None:
        """Raise `OrderRefused` unless the order has a model with weights that the policy allows."""
        model, weights = order.head.get("model"), order.arrays.get("weights")
        self.check_model_name(model.get("name") if isinstance(model, dict) else None)
        if weights is None or weights.ndim != 1 or weights.dtype.kind != "f":
            raise OrderRefused("the order has no weights")
        self.check_parameters(len(weights))
        largest = float(np.abs(weights).max()) if len(weights) else 0.0
        if not largest <= self.max_weight:  # NaN compares false
            raise OrderRefused(f"a parameter of {largest:g}; policy.max_weight is {self.max_weight:g}")

    def _check_control(self, order: Note) -> None:
        """Raise `OrderRefused` for control variates (SCAFFOLD) that are missing, out of bounds or not asked for."""
        control, asked = order.arrays.get(CONTROL), _training(order.head).method == "scaffold"
        if (control is not None) != asked:
            raise OrderRefused("training.method scaffold and a control variate go together")
        if control is None:
            return
        if _dp(order.head) is not None:
            raise OrderRefused("training.method scaffold is not defined with differential privacy")
        if control.ndim != 1 or control.dtype.kind != "f":
            raise OrderRefused("the order's control variate cannot be read")
        largest = float(np.abs(control).max()) if len(control) else 0.0
        if not largest <= self.max_weight:  # NaN compares false
            raise OrderRefused(f"a control variate of {largest:g}; policy.max_weight is {self.max_weight:g}")

    def _check_work(self, head: Mapping[str, Any]) -> None:
        training = _training(head)
        least, largest = self.lr
        rate = learning_rate(training, head["round"], head["rounds"])  # of this round, by the schedule
        if not least <= rate or not training.lr <= largest:
            raise OrderRefused(f"a learning rate of {rate:g}; policy.lr is from {least:g} to {largest:g}")
        if training.batch_size > LARGEST_BATCH:
            raise OrderRefused(f"batches of {_short(training.batch_size)} samples")
        if training.epochs > self.max_epochs:
            raise OrderRefused(f"{training.epochs} epochs; policy.max_epochs is {self.max_epochs}")
        if training.steps is not None and training.steps > self.max_steps:
            raise OrderRefused(f"{training.steps} steps; policy.max_steps is {self.max_steps}")
        if training.weight_decay > self.max_weight_decay:
            raise OrderRefused(
                f"weight decay {training.weight_decay:g}; policy.max_weight_decay is {self.max_weight_decay:g}"
            )
        asked = head.get("policy")
        if not isinstance(asked, dict) or not isinstance(asked.get("local_batch_norm"), bool):
            raise OrderRefused("the order does not say how to train")
        if asked.get("by_outcome") and not self.splits_by_outcome:
            raise OrderRefused("policy.split_by_outcome: updates leave this hospital whole")
        prox_mu = training.prox_mu if asked.get("prox_mu") is None else asked["prox_mu"]
        if not isinstance(prox_mu, int | float) or not 0 <= prox_mu <= self.max_prox_mu:
            raise OrderRefused(f"prox_mu {_short(prox_mu)}; policy.max_prox_mu is {self.max_prox_mu:g}")


def _training(head: Mapping[str, Any]) -> TrainingParams:
    try:
        return TrainingParams(**head["training"])
    except (KeyError, TypeError, ValidationError):
        raise OrderRefused("the order does not say how to train") from None


def _dp(head: Mapping[str, Any]) -> DpParams | None:
    try:
        dp = dp_of(head)
        if dp is not None:
            _ = dp.multiplier  # for some ε and δ there is none
    except (TypeError, ValueError, ArithmeticError):  # a ValidationError is a ValueError
        raise OrderRefused("the order's differential privacy cannot be read") from None
    return dp


def _is_whole(value: object, least: int, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= largest


def _short(value: object) -> str:
    """A value of an order for a message, however long a stranger made it."""
    if isinstance(value, int) and abs(value) > 2**63:
        return "a number of many digits"
    return repr(value)[:40] if value is None or isinstance(value, bool | int | float | str) else "no number"
