"""What stands between the clients' rows and the rule: noise, encryption, accounting.

The loop hands over one round's updates and gets one round's result; how they were protected on the way is
decided here. Rows are encrypted client by client as the clients would; the rule, which is the server's, is
handed ids, sample counts, reported metrics and whatever scalars the steward opened, and never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators.base import Aggregator
from wardround.aggregators.caac import Caac
from wardround.errors import ConfigError
from wardround.privacy.accounting import Ledger, Release
from wardround.privacy.dp import ProfileNoise, clip_and_noise, poisson_steps
from wardround.privacy.encryption.channel import Channel
from wardround.privacy.encryption.ciphers import PublicSide
from wardround.privacy.encryption.refusals import Refused, Unsealable
from wardround.privacy.encryption.steward import DEPOSITS, Deposit
from wardround.privacy.params import PrivacyParams
from wardround.updates import Aggregation, Updates, drop_malformed

__all__ = ["Protection"]

InTheClear = Callable[[Updates], Aggregation]
Sealed = bytes | Deposit
"""What a client sends in an encrypted mode: a padded ciphertext, or a signed one."""


class _NotTheirs(Exception):
    """A deposit that its client did not sign."""

    def __init__(self, client: str, reason: str) -> None:
        self.client, self.reason = client, reason


class Protection:
    """One run's privacy: built once, asked every round."""

    def __init__(
        self,
        params: PrivacyParams,
        rule: Aggregator,
        clients: tuple[str, ...] | None,
        dimension: int,
        seed: int,
    ) -> None:
        """`clients` are those that are played here; None where each is at home and seals its own updates."""
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
                assert isinstance(rule, Caac)
                rule.blur = partial(_blur, params.profile_noise.noise(), seed)
        self.channel = None
        if params.mode != "plaintext":
            self.channel = Channel(params, clients)
            self.channel.public.check(dimension, len(clients or ()))

    def check_cohort(self, per_round: int) -> None:
        """Raise before any work is done if no round could ever be opened."""
        if self.channel is not None and per_round < self.params.min_cohort:
            raise ConfigError(
                f"privacy.mode {self.params.mode}: {per_round} clients a round, but the steward opens sums of "
                f"at least min_cohort = {self.params.min_cohort}"
            )

    @property
    def sealed(self) -> bool:
        """Do clients encrypt what they send?"""
        return self.channel is not None

    def begin_again(self) -> None:
        """A new session with the steward that goes on from this one: a round is tried once in a session."""
        if self.channel is not None:
            self.channel.session = self.channel.steward.begin(after=self.channel.session)

    def before(self, round: int, releases: dict[str, Release]) -> None:
        """Stop here if the round would overspend the budget."""
        if self.ledger is not None:
            self.ledger.check(releases, round)

    def after(self, clients: tuple[str, ...], releases: dict[str, Release]) -> dict[str, float] | None:
        """Book the round; what is told of it."""
        told: dict[str, float] = {}
        if self.ledger is not None:
            self.ledger.spend(releases)
            told |= {"epsilon": self.ledger.epsilon(), "delta": self.ledger.delta}
        if self.profile_ledger is not None:
            assert self.params.profile_noise is not None
            once = (self.params.profile_noise.noise().multiplier, 1.0, 1)
            self.profile_ledger.spend(dict.fromkeys(clients, once))
            told |= {
                "profile_epsilon": self.profile_ledger.epsilon(),
                "profile_delta": self.profile_ledger.delta,
            }
        return told or None

    def noise(self, matrix: Tensor, clients: tuple[str, ...], round: int) -> Tensor:
        """Each client clips its update and adds its noise before anyone else sees it."""
        dp = self.params.dp
        if dp is None or dp.unit != "client":
            return matrix
        multiplier = dp.multiplier
        return torch.stack(
            [
                clip_and_noise(row, dp.clip, multiplier, self.seed, round, client)
                for row, client in zip(matrix, clients, strict=True)
            ]
        )

    def releases(self, samples: Mapping[str, int], batch_size: int, epochs: int) -> dict[str, Release]:
        """What a round releases of each client, given how many samples it has and how it trains."""
        dp = self.params.dp
        if dp is None:
            return {}
        if dp.unit == "client":
            return dict.fromkeys(samples, (dp.multiplier, 1.0, 1))
        return {
            client: (dp.multiplier, *poisson_steps(count, batch_size, epochs))
            for client, count in samples.items()
        }

    def aggregate(self, updates: Updates, round: int, in_the_clear: InTheClear) -> Aggregation:
        """One round's result; `in_the_clear` is how the loop would ask the rule itself."""
        if self.channel is None:
            return in_the_clear(updates)
        guarded = drop_malformed(updates)
        kept, dropped = guarded.updates, dict(guarded.dropped)
        unfit = {client: reason for client, reason in _unfit(self.channel.public, kept).items() if reason}
        fit = [row for row, client in enumerate(kept.clients) if client not in unfit]
        if unfit:
            kept, dropped = kept.select(fit), dropped | unfit
        rows = dict(zip(kept.clients, kept.matrix, strict=True))
        channel, deposits = self.channel, self.params.mode == DEPOSITS

        def seal(client: str) -> Sealed:
            deposit = channel.deposit if deposits else channel.encrypt_padded
            return deposit(client, rows[client], round)

        result = self._opened(kept, round, seal, dropped, updates.dimension, updates.matrix.dtype)
        result = result.spread(guarded.rows[fit], len(updates))
        result.dropped = dropped
        return result

    def aggregate_sealed(
        self, reports: Updates, sealed: Mapping[str, Sealed], round: int, dimension: int, dtype: torch.dtype
    ) -> Aggregation:
        """One round's result from what clients sealed themselves; the reports' matrix is not looked at.

        A client that sealed nothing, or nothing that can be read, is dropped; so is one whose deposit the steward
        says is not its own.
        """
        dropped = {client: "nothing sealed" for client in reports.clients if client not in sealed}
        while True:
            rows = [row for row, client in enumerate(reports.clients) if client not in dropped]
            try:
                result = self._opened(
                    reports.select(rows), round, sealed.__getitem__, dropped, dimension, dtype
                )
                break
            except _NotTheirs as culprit:
                dropped[culprit.client] = culprit.reason
            except Exception as error:
                broken = self._unreadable(sealed, [reports.clients[row] for row in rows])
                if not broken:
                    raise
                reason = f"a ciphertext that cannot be read ({type(error).__name__})"
                dropped |= dict.fromkeys(broken, reason)
        result = result.spread(torch.tensor(rows, dtype=torch.long), len(reports))
        result.dropped = dropped
        return result

    def _unreadable(self, sealed: Mapping[str, Sealed], clients: Sequence[str]) -> list[str]:
        assert self.channel is not None
        found = []
        for client in clients:
            part = sealed[client]
            try:
                self.channel.public.combine(
                    [(part.ciphertext if isinstance(part, Deposit) else part, self.channel.public.exact(0.5))]
                )
            except Exception:
                found.append(client)
        return found

    def _opened(
        self,
        kept: Updates,
        round: int,
        seal: Callable[[str], Sealed],
        dropped: dict[str, str],
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        if dropped:
            self.rule.on_dropped(dropped)
        reports = _without_rows(kept)
        if len(reports) < self.params.min_cohort:
            return _skipped(
                reports,
                dimension,
                f"{len(reports)} updates could be encrypted; the steward opens sums of {self.params.min_cohort}",
            )
        weigh = self._weighed_by_scalars if self.params.mode == DEPOSITS else self._weighed_by_reports
        return weigh(reports, round, seal, dimension, dtype)

    def _weighed_by_reports(
        self,
        reports: Updates,
        round: int,
        seal: Callable[[str], Sealed],
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
            (_padded(seal(client)), coefficients[client])
            for client in reports.clients
            if coefficients[client]
        )
        try:
            opened = channel.steward.open_padded_sum(channel.session, round, coefficients, total)
        except Refused as reason:
            return _skipped(reports, dimension, str(reason), result)
        result.delta = torch.from_numpy(opened).to(dtype)
        return result

    def _weighed_by_scalars(
        self,
        reports: Updates,
        round: int,
        seal: Callable[[str], Sealed],
        dimension: int,
        dtype: torch.dtype,
    ) -> Aggregation:
        """The steward opens each deposit's norm and cosine, the rule judges, the steward opens the sum."""
        assert self.channel is not None
        assert isinstance(self.rule, Caac)
        channel, rule = self.channel, self.rule
        deposits = {client: _deposited(seal(client)) for client in reports.clients}
        try:
            measured = channel.steward.measure(channel.session, round, deposits)
        except Refused as refusal:
            if refusal.client in deposits:
                raise _NotTheirs(refusal.client, str(refusal)) from None
            return _skipped(reports, dimension, str(refusal))
        scalars = [measured[client] for client in reports.clients]
        norms = torch.tensor([pair.norm for pair in scalars], dtype=torch.float64)
        cosines = [1.0 if pair.cosine is None else pair.cosine for pair in scalars]
        result = rule.judge(reports, norms, torch.tensor(cosines, dtype=torch.float64))
        coefficients = {
            client: channel.public.exact(value)
            for client, value in zip(reports.clients, rule.coefficients(result).tolist(), strict=True)
        }
        try:
            opened = channel.steward.open_measured_sum(channel.session, round, coefficients)
        except Refused as reason:
            return _skipped(reports, dimension, str(reason), result)
        result.delta = torch.from_numpy(opened).to(dtype)
        rule.remember(result.delta)
        return result

    def record(self) -> dict[str, Any]:
        """What is worth knowing beside the configuration."""
        told: dict[str, Any] = {}
        if self.params.dp is not None:
            told["noise_multiplier"] = self.params.dp.multiplier
        if self.channel is not None:
            told["steward"] = self.params.steward or "in this process"
        return told

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on."""
        return {
            "ledger": None if self.ledger is None else self.ledger.state_dict(),
            "profile_ledger": None if self.profile_ledger is None else self.profile_ledger.state_dict(),
            "channel": None if self.channel is None else self.channel.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the round whose state this is."""
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


def _unfit(public: PublicSide, updates: Updates) -> dict[str, str]:
    """Client → why its row cannot be encrypted."""
    found = {}
    for client, row in zip(updates.clients, updates.matrix, strict=True):
        try:
            public.fits(row.double().numpy())
        except Unsealable as reason:
            found[client] = str(reason)
    return found


def _padded(sealed: Sealed) -> bytes:
    if isinstance(sealed, Deposit):
        raise TypeError("a deposit where a padded ciphertext belongs")
    return sealed


def _deposited(sealed: Sealed) -> Deposit:
    if not isinstance(sealed, Deposit):
        raise TypeError("a ciphertext without its client's signature")
    return sealed


def _without_rows(updates: Updates) -> Updates:
    """What the server sees of encrypted updates: who, how many samples, which reports."""
    return Updates(torch.zeros(len(updates), 1), updates.clients, updates.num_samples, dict(updates.metrics))


def _skipped(updates: Updates, dimension: int, reason: str, judged: Aggregation | None = None) -> Aggregation:
    """A round without a step and so without shares; scores, flags and columns of the rule stay in the record."""
    result = judged or Aggregation(torch.empty(0))
    result.weights = torch.zeros(len(updates), dtype=torch.float64)
    result.delta, result.skipped = torch.zeros(dimension), reason
    return result
