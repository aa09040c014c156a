"""The server's side of a run's privacy: the budget, the connection to the steward, and opening what clients sealed.

The loop hands over what clients sent and gets the round's result. Of encrypted updates the rule, which is the
server's, is handed ids, sample counts, reported metrics and whatever scalars the steward opened, and never a row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from wardround.errors import ConfigError
from wardround.privacy.accounting import Ledger, Release
from wardround.privacy.dp import ProfileNoise
from wardround.privacy.encryption.channel import Channel
from wardround.privacy.encryption.refusals import KeysSpent, Refused
from wardround.privacy.encryption.sealing import Sealer
from wardround.privacy.encryption.steward import DEPOSITS
from wardround.privacy.masking import MASKED, MaskedSum
from wardround.privacy.params import STEWARDED, PrivacyParams
from wardround.updates import Aggregation, Updates

__all__ = ["Protection", "without_rows"]

Blur = Callable[[Tensor, Tensor, int, tuple[str, ...]], tuple[Tensor, Tensor]]


class Rule(Protocol):
    """What is asked of a rule whose weights depend on reports alone."""

    @property
    def name(self) -> str: ...

    @property
    def sees(self) -> str: ...

    def aggregate(self, updates: Updates, round: int = 1) -> Aggregation: ...

    def on_dropped(self, dropped: dict[str, str]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ScalarRule(Protocol):
    """What is asked of a rule whose weights depend on each update's norm and its cosine to the last aggregate."""

    blur: Blur | None

    def weigh(self, reports: Updates, norms: Tensor, cosines: Tensor) -> Aggregation: ...

    def coefficients(self, result: Aggregation) -> Tensor: ...

    def remember(self, delta: Tensor) -> None: ...


class _ForgedDeposit(Exception):
    """A deposit that its client did not sign."""

    def __init__(self, client: str, reason: str) -> None:
        self.client, self.reason = client, reason


class Protection:
    """One run's privacy: built once, asked every round."""

    def __init__(
        self,
        params: PrivacyParams,
        rule: Rule,
        clients: tuple[str, ...] | None,
        dimension: int,
        seed: int,
    ) -> None:
        """`clients` are those that are played in this process; None where each seals its own updates elsewhere."""
        self.params, self.rule, self.seed = params, rule, seed
        problem = params.why_not(rule)
        if problem is not None:
            raise ConfigError(problem)
        dp = params.dp
        self.ledger = None if dp is None else Ledger(dp.delta, dp.accountant, dp.budget)
        self.profile_ledger = None
        if params.profile_noise is not None:
            self.profile_ledger = Ledger(params.profile_noise.delta)
            if params.mode == "plaintext":
                self._scalar_rule.blur = partial(_blur, params.profile_noise.noise(), seed)
        self.channel = None
        if params.mode in STEWARDED:
            self.channel = Channel(params, clients)
            self.channel.public.check(dimension, len(clients or ()))

    @property
    def _scalar_rule(self) -> ScalarRule:
        return cast(ScalarRule, self.rule)  # the mode was checked: the rule works on scalars

    def check_cohort(self, per_round: int) -> None:
        """Raise before any work is done if no round could ever be opened."""
        if self.hides_updates and per_round < self.params.min_cohort:
            who = (
                "the steward opens sums of" if self.encrypted else "clients mask their updates in cohorts of"
            )
            raise ConfigError(
                f"privacy.mode {self.params.mode}: {per_round} clients a round, but {who} at least min_cohort = "
                f"{self.params.min_cohort}"
            )

    @property
    def encrypted(self) -> bool:
        """Do clients encrypt what they send, for a steward to open sums of it?"""
        return self.channel is not None

    @property
    def masked(self) -> bool:
        """Do clients mask what they send, so that only their sum can be read?"""
        return self.params.mode == MASKED

    @property
    def hides_updates(self) -> bool:
        """Is a single update unknown to the server?"""
        return self.encrypted or self.masked

    @property
    def minimum_updates(self) -> int:
        """Usable updates that a round needs whatever the rule needs."""
        return self.params.min_cohort if self.hides_updates else 1

    def sealers(self) -> dict[str, Sealer]:
        """Client → what encrypts its updates, for clients that are played in this process."""
        return {} if self.channel is None else self.channel.sealers()

    def check_budget(self, round: int, releases: dict[str, Release]) -> None:
        """Raise BudgetSpent if the round would overspend the budget."""
        if self.ledger is not None:
            self.ledger.check(releases, round)

    def book(self, clients: Iterable[str], releases: dict[str, Release]) -> dict[str, float] | None:
        """Add the round to what has been spent; returns the totals, None without differential privacy."""
        spent: dict[str, float] = {}
        if self.ledger is not None:
            self.ledger.spend(releases)
            spent |= {"epsilon": self.ledger.epsilon(), "delta": self.ledger.delta}
        if self.profile_ledger is not None:
            assert self.params.profile_noise is not None
            once = (self.params.profile_noise.noise().multiplier, 1.0, 1)
            self.profile_ledger.spend(dict.fromkeys(clients, once))
            spent |= {
                "profile_epsilon": self.profile_ledger.epsilon(),
                "profile_delta": self.profile_ledger.delta,
            }
        return spent or None

    def releases(
        self, samples: Mapping[str, int], steps: Callable[[int], tuple[float, int]]
    ) -> dict[str, Release]:
        """What a round releases of each client.

        Args:
            samples: client → number of samples.
            steps: number of samples → sampling rate and number of steps of DP-SGD.
        """
        dp = self.params.dp
        if dp is None:
            return {}
        if dp.unit == "client":
            return dict.fromkeys(samples, (dp.multiplier, 1.0, 1))
        return {client: (dp.multiplier, *steps(count)) for client, count in samples.items()}

    def open(
        self,
        reports: Updates,
        sealed: Mapping[str, bytes],
        round: int,
        order: str,
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        """One round's result from encrypted updates; the reports' matrix is not looked at.

        Args:
            reports: ids, sample counts and metrics of the clients that replied.
            sealed: client → its encrypted update.
            round: the round.
            order: the hash of the order that the clients answered.
            dimension: D, the length of an update.
            dtype: of the result.

        A client that sealed nothing, or nothing that can be read, is dropped; so is one whose deposit the steward
        says is not its own. Raises `KeysSpent` where the steward's keys have had their run.
        """
        dropped = {client: "nothing sealed" for client in reports.clients if client not in sealed}
        while True:
            rows = [row for row, client in enumerate(reports.clients) if client not in dropped]
            try:
                with self._teaching_once():
                    result = self._opened(
                        reports.select(rows), round, order, sealed, dropped, dimension, dtype
                    )
                break
            except _ForgedDeposit as forged:
                dropped[forged.client] = forged.reason
            except KeysSpent:
                raise
            except Exception as error:
                broken = self._unreadable(sealed, [reports.clients[row] for row in rows])
                if not broken:
                    raise
                reason = f"a ciphertext that cannot be read ({type(error).__name__})"
                dropped |= dict.fromkeys(broken, reason)
        result = result.spread(torch.tensor(rows, dtype=torch.long), len(reports))
        result.dropped = dropped
        return result

    @contextmanager
    def _teaching_once(self) -> Iterator[None]:
        """What fails inside has taught the rule nothing: it will be tried again, as the steward may be away."""
        before = copy.deepcopy(self.rule.state_dict())
        try:
            yield
        except Exception:
            self.rule.load_state_dict(before)
            raise

    def _unreadable(self, sealed: Mapping[str, bytes], clients: Sequence[str]) -> list[str]:
        """Clients whose ciphertexts cannot be summed. What only the steward can read, the steward complains about."""
        assert self.channel is not None
        broken: list[str] = []
        if self.params.mode == DEPOSITS:
            return broken
        for client in clients:
            try:
                self.channel.public.combine([(sealed[client], self.channel.public.exact(0.5))])
            except Exception:
                broken.append(client)
        return broken

    def _opened(
        self,
        reports: Updates,
        round: int,
        order: str,
        sealed: Mapping[str, bytes],
        dropped: dict[str, str],
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        if dropped:
            self.rule.on_dropped(dropped)
        reports = without_rows(reports)
        if len(reports) < self.params.min_cohort:
            return _skipped(
                reports,
                dimension,
                f"{len(reports)} updates could be encrypted; the steward opens sums of {self.params.min_cohort}",
            )
        weigh = self._weighed_by_scalars if self.params.mode == DEPOSITS else self._weighed_by_reports
        return weigh(reports, round, order, sealed, dimension, dtype)

    def _weighed_by_reports(
        self,
        reports: Updates,
        round: int,
        order: str,
        sealed: Mapping[str, bytes],
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        """The rule sees what clients report; clients pad and encrypt; the server sums; the steward opens."""
        assert self.channel is not None
        result = self.rule.aggregate(reports, round)
        if result.skipped is not None:
            result.delta = torch.zeros(dimension)
            return result
        assert result.weights is not None
        channel, public = self.channel, self.channel.public
        coefficients = {
            client: public.exact(weight)
            for client, weight in zip(reports.clients, result.weights.tolist(), strict=True)
        }
        total = public.combine(
            (sealed[client], coefficients[client]) for client in reports.clients if coefficients[client]
        )
        try:
            opened = channel.steward.open_padded_sum(round, order, coefficients, total)
        except KeysSpent:
            raise
        except Refused as reason:
            return _skipped(reports, dimension, str(reason), result)
        result.delta = torch.from_numpy(opened).to(dtype)
        return result

    def _weighed_by_scalars(
        self,
        reports: Updates,
        round: int,
        order: str,
        sealed: Mapping[str, bytes],
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        """The steward opens each deposit's norm and cosine, the rule weighs, the steward opens the sum."""
        assert self.channel is not None
        channel, rule = self.channel, self._scalar_rule
        deposits = {client: sealed[client] for client in reports.clients}
        try:
            measured = channel.steward.measure(round, order, deposits)
        except KeysSpent:
            raise
        except Refused as refusal:
            if refusal.client in deposits:
                raise _ForgedDeposit(refusal.client, str(refusal)) from None
            return _skipped(reports, dimension, str(refusal))
        scalars = [measured[client] for client in reports.clients]
        norms = torch.tensor([pair.norm for pair in scalars], dtype=torch.float64)
        cosines = [1.0 if pair.cosine is None else pair.cosine for pair in scalars]
        result = rule.weigh(reports, norms, torch.tensor(cosines, dtype=torch.float64))
        coefficients = {
            client: channel.public.exact(value)
            for client, value in zip(reports.clients, rule.coefficients(result).tolist(), strict=True)
        }
        try:
            opened = channel.steward.open_measured_sum(round, order, coefficients)
        except KeysSpent:
            raise
        except Refused as reason:
            return _skipped(reports, dimension, str(reason), result)
        result.delta = torch.from_numpy(opened).to(dtype)
        rule.remember(result.delta)
        return result

    def weigh_reports(self, round: int, reports: Updates) -> Aggregation:
        """What a copy of the rule makes of reports alone: a round that is tried again must not teach it twice."""
        return copy.deepcopy(self.rule).aggregate(without_rows(reports), round)

    def settle(
        self, reports: Updates, summed: MaskedSum, round: int, dimension: int, dtype: torch.dtype
    ) -> Aggregation:
        """One round's result from a masked sum.

        The weights were fixed before anybody dropped out; those who are left share them in proportion. The rule is
        asked once more, for what it records and remembers: it is deterministic, so nothing else changes.

        Args:
            reports: ids, sample counts and metrics of the clients that replied.
            summed: what is known of their updates.
            round: the round.
            dimension: D, the length of an update.
            dtype: of the result.
        """
        rows = [row for row, client in enumerate(reports.clients) if client in summed.weights]
        outside = {client: "nothing masked" for client in reports.clients if client not in summed.weights}
        if outside:
            self.rule.on_dropped(outside)
        cohort = without_rows(reports.select(rows)) if rows else None
        result = Aggregation(torch.empty(0)) if cohort is None else self.rule.aggregate(cohort, round)
        result.delta = torch.zeros(dimension, dtype=dtype)
        if cohort is None or summed.total is None:
            reason = result.skipped or summed.reason or "nothing masked"
            result = _skipped(reports if cohort is None else cohort, dimension, reason, result)
        elif result.skipped is None:
            shares = [summed.weights[client] * (client in summed.clients) for client in cohort.clients]
            result.weights = torch.tensor(shares, dtype=torch.float64) / sum(shares)
            result.delta = (summed.total / sum(shares)).to(dtype)
        if cohort is not None:
            result = result.spread(torch.tensor(rows, dtype=torch.long), len(reports))
        result.dropped = {**outside, **summed.dropped}
        return result

    def record(self) -> dict[str, Any]:
        """What a run records of its privacy beside the configuration."""
        record: dict[str, Any] = {}
        if self.params.dp is not None:
            record["noise_multiplier"] = self.params.dp.multiplier
        if self.channel is not None:
            record["steward"] = self.params.steward or "in this process"
        return record

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on."""
        return {
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
            "profile_ledger": None if self.profile_ledger is None else self.profile_ledger.state_dict(),
            "channel": None if self.channel is None else self.channel.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the round whose state this is."""
        if self.ledger is not None:
            self.ledger.load_state_dict(state["ledger"])
        if self.profile_ledger is not None:
            self.profile_ledger.load_state_dict(state["profile_ledger"])
        if self.channel is not None:
            self.channel.load_state_dict(state["channel"])


def _blur(
    noise: ProfileNoise, seed: int, norms: Tensor, cosines: Tensor, round: int, clients: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    return noise.blur_all(norms, cosines, seed, round, clients)


def without_rows(updates: Updates) -> Updates:
    """What the server sees of encrypted updates: who, how many samples, which reports."""
    return Updates(torch.zeros(len(updates), 1), updates.clients, updates.num_samples, dict(updates.metrics))


def _skipped(updates: Updates, dimension: int, reason: str, judged: Aggregation | None = None) -> Aggregation:
    """A round without a step and so without shares; scores, flags and columns of the rule stay in the record."""
    result = judged or Aggregation(torch.empty(0))
    result.weights = torch.zeros(len(updates), dtype=torch.float64)
    result.delta, result.skipped = torch.zeros(dimension), reason
    return result
