"""The contract of a rule: state + updates → state + result. One rule per file, registered by name.

A rule sees only well-formed rows; dropping malformed ones, skipping a round that has too few left, and
spreading the result over all clients again happens here, once, for all rules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from wardround.aggregators._math.estimated_f import estimate_byzantine
from wardround.aggregators._math.kernels import norm
from wardround.aggregators._math.measurements import MeasurementPlan, Measurements
from wardround.aggregators.preaggregation.rule_registry import RuleRegistry
from wardround.errors import ContractError, ParameterError, TooFewClients
from wardround.randomness import torch_generator
from wardround.registry import Configurable, Parameters, source_of
from wardround.updates import Aggregation, Updates, drop_malformed

__all__ = [
    "Aggregator",
    "Blur",
    "ByzantineBound",
    "ClientPolicy",
    "Context",
    "MeasurementPlan",
    "Measurements",
    "Parameters",
    "PracticeGround",
    "ScalarRule",
    "Sees",
    "register",
    "registry",
    "sample_weights",
]


WARM_UP_COLUMNS = 100_000
"""Columns of a made-up round: enough to take every path that a large model takes."""
_WARM: set[tuple[object, ...]] = set()
"""What this process has been warmed up for."""
Sees = Literal["rows", "scalars", "reports"]
"""How much of the updates a rule needs (see `Aggregator.sees`)."""
Blur = Callable[[Tensor, Tensor, int, tuple[str, ...]], tuple[Tensor, Tensor]]
"""(norms, cosines, round, clients) → the same norms and cosines with noise, N values each."""


@dataclass(frozen=True)
class ClientPolicy:
    """What a rule asks of the clients' local training."""

    prox_mu: float | None = None
    """Strength of the proximal term (μ/2)‖w − w^t‖² added to the local loss; None: as configured."""
    local_batch_norm: bool = False
    """BatchNorm parameters and statistics stay with each client."""
    by_outcome: bool = False
    """Updates are split into what the patients of each outcome contributed, where the task has outcomes to split by."""


class PracticeGround(Protocol):
    """What a server has of its own in a round: trusted samples, validation samples, and attacks to practise on.

    Nothing in here knows who is Byzantine in the run. All draws are named by (seed, round, group, draw): the
    same question has the same answer.
    """

    @property
    def seed(self) -> int:
        """Entropy of the run, for whatever a rule draws itself."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        ...

    @property
    def attacks(self) -> Sequence[str]:
        """Names of the attacks that `plant` knows."""
        ...

    def reference(self, round: int, group: int | None = None, draw: int = 0) -> Tensor:
        """D: the server's own update from the current global weights, the reference g_ref of the round.

        For a `group` it is learnt from samples that the made-up hospitals of that group never see.
        """
        ...

    def root_updates(
        self, round: int, count: int, group: int = 0, draw: int = 0, sizes: Sequence[int] | None = None
    ) -> Tensor:
        """count × D: honest training from the current global weights on bootstrap resamples of the root data.

        Each row is a made-up hospital with a size (its entry of `sizes`, or drawn) and a case mix of its own. A `group`
        is a made-up federation: its hospitals stay the same from round to round and from `draw` to `draw`, their
        resamples do not.
        """
        ...

    def plant(
        self,
        honest: Tensor,
        attack: str,
        round: int,
        group: int = 0,
        draw: int = 0,
        sizes: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """An attack on `honest = root_updates(…)` of the same (round, group, draw) and sizes.

        Returns:
            Which rows are Byzantine (N booleans, the same for all rounds and draws of a group), and what those
            send instead, one row each.
        """
        ...

    def value(self, weights: Tensor) -> Tensor:
        """K × D global weights → K validation metrics in [0, 1]: AUROC; accuracy of a multi-class task."""
        ...


@dataclass(frozen=True)
class Context:
    """What the server knows beside the updates of a round."""

    round: int
    clients: int
    """How many clients sent something, malformed rows included: what a default `f` is a share of."""
    global_weights: Tensor | None = None
    root_update: Tensor | None = None
    practice_ground: PracticeGround | None = None
    predict: Callable[[Tensor], Tensor] | None = None
    """D weights of a network → its S × C outputs on random inputs, where the server can show them."""
    attackers: frozenset[str] | None = None
    """The clients that attack or are broken in this round, as only a simulation knows them; None: nobody knows.
    Handed to rules that declare `needs_attackers`, and to no other."""
    measurements: Measurements = field(default_factory=Measurements)
    """What was measured of the rows for the rule, as `plan_measurements` asked."""


class Aggregator(Configurable, ABC):
    """Base of all rules. A rule implements `combine`; where it keeps state, also the state methods."""

    needs_global_weights: ClassVar[bool] = False
    needs_root_update: ClassVar[bool] = False
    needs_practice_ground: ClassVar[bool] = False
    needs_attackers: ClassVar[bool] = False
    """Is the rule told who attacks? Then it is a yardstick for others, not a defence: only simulations can tell."""
    rows_per_client: int = 0
    """Rows of D values that the rule keeps of each client from round to round: with thousands of clients, too many."""
    needs_parts: ClassVar[bool] = False
    """Is the rule of no use without updates that are split by outcome (`Updates.parts`)?"""
    uses_predictions: ClassVar[bool] = False
    """Does the rule look at the outputs of clients' models (`Context.predict`), where it can?"""
    sees: ClassVar[Sees] = "rows"
    """What of the updates the rule needs: the rows themselves, only each row's norm and cosine to the last
    aggregate (a `ScalarRule`), or only what clients report. With "reports" and "scalars" the result is a weighted
    sum of the rows, so that someone else can form it: decides in which encrypted modes the rule can work."""
    is_robust: ClassVar[bool] = True
    """Does the rule defend against Byzantine clients at all? False for plain averages."""
    remembers_clients: ClassVar[bool] = False
    """Does the rule keep something of each client from round to round? Then rows have to belong to clients."""
    reasons: ClassVar[Mapping[int, str]] = {}
    """What the codes in the rule's column `why` mean, in words; 0 means that nothing was found."""
    practice_attacks: ClassVar[Mapping[str, tuple[str, Mapping[str, float]]]] = {}
    """Attacks that a rule with `needs_practice_ground` practises on: own name → (registered name, parameters)."""

    federation_defaults: ClassVar[Mapping[str, Any]] = {}
    """Parameters that have another default in a federation of real hospitals, where no protocol is repeated."""

    def profile_table(self) -> dict[str, dict[str, float]] | None:
        """What the rule remembers of each client, client → column → value; None for a rule without profiles."""
        return None

    @property
    def client_policy(self) -> ClientPolicy:
        """What the rule asks of local training."""
        return ClientPolicy()

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        """What `combine` will ask of `context.measurements`: planned, it costs no second read of the matrix."""
        return MeasurementPlan()

    @property
    def estimates_byzantine(self) -> bool:
        """Is the number of Byzantine clients estimated from every round, with f set to `auto`?"""
        return False

    def for_round(self, context: Context) -> Aggregator:
        """The rule with everything settled that is estimated from the round; itself where nothing is."""
        return self

    @abstractmethod
    def combine(self, updates: Updates, context: Context) -> Aggregation:
        """The rule itself, on N rows that are finite and of one length D.

        Returns:
            `delta` of D values; `weights`, `scores`, `flags` and each column of N values, or None.
        """

    def minimum_clients(self, clients: int) -> int:
        """How many well-formed updates the rule needs when `clients` take part."""
        return 1

    def requirement(self, clients: int) -> str:
        """The rule behind `minimum_clients` with the values at hand, for error messages."""
        return f"at least {self.minimum_clients(clients)} clients"

    def check(self, clients: int) -> None:
        """Raise before any work is done if the rule cannot work with that many clients."""
        if clients < max(1, self.minimum_clients(clients)):
            raise TooFewClients(f"{self.name}: {self.requirement(clients)}, got N={clients}")

    def resolved(self, clients: int) -> dict[str, Any]:
        """The parameters as they take effect with that many clients, for the record."""
        return self.params.model_dump()

    def aggregate(
        self,
        updates: Updates,
        round: int = 1,
        global_weights: Tensor | None = None,
        root_update: Tensor | None = None,
        practice_ground: PracticeGround | None = None,
        predict: Callable[[Tensor], Tensor] | None = None,
        attackers: Collection[str] | None = None,
    ) -> Aggregation:
        """Drop malformed rows, combine the others, and give every client its line again. Does not change `updates`."""
        self.check(len(updates))
        for needed, name, value in (
            (self.needs_global_weights, "global_weights", global_weights),
            (self.needs_root_update, "root_update", root_update),
            (self.needs_practice_ground, "practice_ground", practice_ground),
            (self.needs_attackers, "attackers", attackers),
        ):
            if needed and value is None:
                raise ParameterError(f"{self.name} needs {name}: pass aggregate(updates, {name}=…)")
        global_weights, root_update = _vector(global_weights), _vector(root_update)
        dimension = None if global_weights is None else len(global_weights)
        told = frozenset(attackers or ()) if self.needs_attackers else None
        context = Context(round, len(updates), global_weights, root_update, practice_ground, predict, told)
        plan = self.plan_measurements(context)
        if self.estimates_byzantine:  # from distances
            plan = replace(plan, gram=True, on_centre=plan.anchor is None, trim=None)
        measurements = Measurements(plan)
        read_parts = measurements.read_parts if plan.parts else None
        well_formed = drop_malformed(updates, dimension, measurements.read, read_parts)
        kept = well_formed.updates
        context = replace(context, measurements=measurements.of(kept, well_formed.rows))
        if well_formed.dropped:
            self.on_dropped(well_formed.dropped)
        if len(kept) < max(1, self.minimum_clients(len(updates))):
            result = Aggregation(
                torch.zeros(kept.dimension, dtype=kept.matrix.dtype),
                weights=torch.zeros(len(kept), dtype=torch.float64),
                skipped=f"{len(kept)} of {len(updates)} updates are well-formed; "
                f"{self.name} needs {self.requirement(len(updates))}",
            )
        else:
            settled = self.for_round(context)
            result = self._checked(settled.combine(kept, context), kept)
            if self.estimates_byzantine:
                result.estimated_f = settled.assumed_byzantine(len(updates))
            if result.skipped is None and not math.isfinite(norm(result.delta)):  # no copy of D values
                result.skipped = f"the aggregate of {self.name} is not finite"
                result.delta = torch.zeros_like(result.delta)
                result.weights = torch.zeros(len(kept), dtype=torch.float64)
        result = result.spread(well_formed.rows, len(updates))
        result.dropped = well_formed.dropped
        return result

    def _checked(self, result: Aggregation, updates: Updates) -> Aggregation:
        """The result, or an error that says what the rule should have returned."""
        if not isinstance(result, Aggregation):
            problem: str | None = f"{type(result).__name__}, expected an Aggregation(delta, …)"
        else:
            problem = result.problem(len(updates), updates.dimension)
        if problem is not None:
            raise ContractError(
                f"aggregator '{self.name}'{source_of(type(self))}: combine returned {problem}"
            )
        return result

    def warm_up(self, clients: int, dimension: int, dtype: torch.dtype = torch.float32) -> None:
        """Compile everything that a first round of that shape would otherwise wait for.

        A copy of the rule aggregates made-up rounds; the rule itself, its state included, is not touched.
        A rule that asks its server has no made-up rounds to try. Once per process is enough.
        """
        columns = min(dimension, WARM_UP_COLUMNS)
        shape = (type(self), str(self.params), clients, columns, dtype)
        if self.needs_practice_ground or shape in _WARM:
            return
        _WARM.add(shape)
        twin = self.fresh_copy()
        rows = torch.randn(clients, columns, generator=torch_generator("warm-up")).to(dtype)
        weights, loss = rows[0].clone(), {"loss": torch.ones(clients)}
        for round in (1, 2, 3, 4):
            if round == 3:  # colluders take a path of their own,
                rows[1::2] = rows[: 2 * (clients // 2) : 2]
            if round == 4:  # and so do rows whose squares do not fit float32
                rows *= 1e18
            made_up = Updates(rows, metrics=loss)
            twin.aggregate(made_up, round, global_weights=weights, root_update=weights, attackers=())

    def fresh_copy(self) -> Aggregator:
        """The same rule before its first round."""
        return type(self)(self.params)

    def assumed_byzantine(self, clients: int) -> int:
        """How many Byzantine clients the rule counts on among so many: its f, or a fifth where it has none."""
        return clients // 5

    def proven_kappa(self, clients: int) -> float | None:
        """The robustness coefficient κ(N, f) that is proven for the rule with so many clients; None where none is.

        Allouah et al., "Fixing by Mixing", AISTATS 2023, table 1.
        """
        return None

    def on_dropped(self, dropped: dict[str, str]) -> None:
        """Called before `combine`, for rules that remember clients: these sent something malformed."""

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors, numbers and strings: all the rule remembers between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        if state:
            raise ParameterError(f"{self.name} keeps no state, but was given {', '.join(state)}")


class ByzantineBound(Aggregator):
    """A rule built for at most `f` Byzantine clients, and sound only while N ≥ a·f + b.

    Without a given `f` it is ⌊0.2·N⌋ of the clients that sent something, malformed rows included. With `auto` it is
    estimated from the distances between the rows of each round (see `estimate_byzantine`).
    """

    clients_per_byzantine: ClassVar[int]
    """a of N ≥ a·f + b."""
    clients_besides: ClassVar[int]
    """b of N ≥ a·f + b."""

    class Params(Parameters):
        f: Annotated[int, Field(ge=0)] | Literal["auto"] | None = None
        """Byzantine clients to withstand; None: ⌊0.2·N⌋; `auto`: estimated from each round."""

    params: Params

    @property
    def estimates_byzantine(self) -> bool:
        return self.params.f == "auto"

    def for_round(self, context: Context) -> Aggregator:
        if not self.estimates_byzantine:
            return self
        distances = context.measurements.squared_distances
        most = self._most_byzantine(len(distances))
        return self.with_byzantine(estimate_byzantine(distances, most, context.round))

    def with_byzantine(self, f: int) -> ByzantineBound:
        """The same rule for so many Byzantine clients."""
        return type(self)(self.params.model_copy(update={"f": f}))

    def _most_byzantine(self, clients: int) -> int:
        """The greatest f that the rule withstands among so many clients."""
        return max(0, (clients - self.clients_besides) // self.clients_per_byzantine)

    def byzantine(self, clients: int) -> int:
        """f, as it takes effect with that many clients; with `auto` the greatest that may be estimated."""
        if self.params.f == "auto":
            return self._most_byzantine(clients)
        return clients // 5 if self.params.f is None else int(self.params.f)

    def assumed_byzantine(self, clients: int) -> int:
        return self.byzantine(clients)

    def minimum_clients(self, clients: int) -> int:
        f = 0 if self.estimates_byzantine else self.byzantine(clients)
        return self.clients_per_byzantine * f + self.clients_besides

    def requirement(self, clients: int) -> str:
        if self.estimates_byzantine:
            return f"N ≥ {self.clients_besides}"
        return (
            f"N ≥ {self.clients_per_byzantine}f+{self.clients_besides}"
            f" = {self.minimum_clients(clients)} with f={self.byzantine(clients)}"
        )

    def resolved(self, clients: int) -> dict[str, Any]:
        return {
            **super().resolved(clients),
            "f": "auto" if self.estimates_byzantine else self.byzantine(clients),
        }


class ScalarRule(Aggregator):
    """A rule that needs of each update only its norm and its cosine to the last aggregate.

    A rule implements `weigh` and `coefficients`. In the clear `combine` measures norms and cosines itself. Where
    updates are encrypted, whoever can open the scalars calls `weigh`, has the rows summed by `coefficients`, and
    hands the sum to `remember`.
    """

    sees = "scalars"

    def __init__(self, params: Parameters | None = None) -> None:
        super().__init__(params)
        self.last: Tensor | None = None
        """The last aggregate (D values); None before the first."""
        self.blur: Blur | None = None
        """Adds noise to norms and cosines before `weigh` sees them, so that profiles hold no exact values."""

    @abstractmethod
    def weigh(self, reports: Updates, norms: Tensor, cosines: Tensor) -> Aggregation:
        """Judge the clients of a round by their scalars, and update what the rule remembers of them.

        Args:
            reports: ids, sample counts and metrics of N clients; the rows are not looked at.
            norms: N norms of the updates, float64.
            cosines: N cosines of the updates to the last aggregate, float64; 1 before the first.

        Returns:
            Weights, scores, flags and columns of the N clients; `delta` is left empty.
        """

    @abstractmethod
    def coefficients(self, result: Aggregation) -> Tensor:
        """N factors, from a result of `weigh`: the aggregate is the sum of factor times row."""

    def plan_measurements(self, context: Context) -> MeasurementPlan:
        return MeasurementPlan(dots_with=self.last)

    def combine(self, updates: Updates, context: Context) -> Aggregation:
        norms = updates.norms
        cosines = torch.ones_like(norms) if self.last is None else context.measurements.cosines(otherwise=1.0)
        if self.blur is not None:
            norms, cosines = self.blur(norms, cosines, context.round, tuple(updates.clients))
        result = self.weigh(updates, norms, cosines)
        result.delta = context.measurements.weighted_sum(self.coefficients(result))
        self.remember(result.delta)
        return result

    def remember(self, delta: Tensor) -> None:
        """Keep a copy of the aggregate (D values) that the next round's cosines are measured against."""
        if self.last is None or self.last.dtype != delta.dtype or self.last.device != delta.device:
            self.last = delta.clone()
        elif delta.device.type == "cpu":  # numpy copies on one thread; torch's would spin into the next pass
            np.copyto(self.last.numpy(), delta.numpy())
        else:
            self.last.copy_(delta)


registry = RuleRegistry("aggregator", "wardround.aggregators", base=Aggregator)
register = registry.register


def sample_weights(updates: Updates, cap: float | None) -> Tensor:
    """m_i / Σm: shares by reported sample counts, in float64.

    A client may report any count it likes. With `cap`, a count above that multiple of the round's median
    counts as that multiple, which bounds what a lie can buy. Nobody has a sample: equal shares.
    """
    counts = updates.num_samples
    if cap is not None:
        counts = counts.clamp(max=cap * float(counts.quantile(0.5)))
    total = counts.sum()
    return counts / total if total > 0 else torch.full_like(counts, 1 / len(counts))


def _vector(values: Any) -> Tensor | None:
    return None if values is None else torch.as_tensor(values).detach().reshape(-1)
