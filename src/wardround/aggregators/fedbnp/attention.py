"""Dual attention: look at a client among the others of its round, then at its own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wardround.aggregators.fedbnp.reproducible_networks import seeded
from wardround.randomness import seed_for, torch_generator
from wardround.threads import one_thread

__all__ = ["DualAttention", "LabelledRounds"]

JITTER = 0.4
"""Noise on standardised fingerprints in training."""
FEWEST_STEPS, LARGEST_BATCH = 100, 16
"""Few rounds are learnt in small batches, so that there are steps enough."""
FORGOTTEN = 0.3
"""Share of the past that is hidden in training."""


@dataclass(frozen=True, eq=False)
class LabelledRounds:
    """R rounds of P clients each, of which the server knows who is honest because it made them itself."""

    tokens: Tensor
    """R × P × F: the standardised fingerprints."""
    memory: Tensor
    """R × P × L × F: what is remembered of the same clients, as `Memory.recall` gives it."""
    known: Tensor
    """R × P × L: which of these there are."""
    honest: Tensor
    """R × P booleans."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def joined(cls, parts: Sequence[LabelledRounds], most: int | None = None) -> LabelledRounds:
        """Several as one, of which the last `most` are kept."""
        names = cls.__dataclass_fields__
        whole = (torch.cat([getattr(part, name) for part in parts]) for name in names)
        return cls(*(values if most is None else values[-most:] for values in whole))


class DualAttention(nn.Module):
    r"""Tokens are clients: self-attention over the round, then cross-attention to the memory, `layers` times.

    .. math::
        H_1 &= \mathrm{LN}(X + \mathrm{MultiHead}(X, X, X)) \\
        H_2 &= \mathrm{LN}(H_1 + \mathrm{MultiHead}(H_1, H_{mem}, H_{mem})) \\
        a_k &= \sigma(W_{out} h_k + b_{out})

    A client's memory is its own fingerprints of the last rounds and their mean, each with an embedding of its
    place, and one learnt entry that stands for "no past". The order of clients does not matter. Each layer ends, as
    transformer layers do, with two dense layers for each token; without these the layer would be nearly
    linear. The output is read from each client's own token: a pool over the clients would give all of them
    the same trust.

    Vaswani et al., "Attention is all you need", NeurIPS 2017; FedBNP document, section III-E.

    >>> network = DualAttention(memory=2, seed=0)
    >>> tokens, memory = torch.zeros(1, 5, 6), torch.zeros(1, 5, 2, 6)
    >>> network.trust(tokens, memory, known=torch.zeros(1, 5, 2, dtype=torch.bool)).shape
    torch.Size([1, 5])
    """

    def __init__(
        self,
        features: int = 6,
        hidden: int = 128,
        heads: int = 8,
        layers: int = 3,
        memory: int = 6,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with seeded(seed_for(seed, "attention")):
            self.embed = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, hidden))
            self.age = nn.Parameter(0.02 * torch.randn(memory, hidden))
            self.no_past = nn.Parameter(0.02 * torch.randn(1, hidden))
            self.layers = nn.ModuleList(_Layer(hidden, heads) for _ in range(layers))
            self.out = nn.Linear(hidden, 1)
        self.leniency = nn.Buffer(torch.zeros(()))
        """Added to all logits, so that few of the honest are below one half (see `calibrate`); may be negative."""

    def forward(self, tokens: Tensor, memory: Tensor, known: Tensor) -> Tensor:
        """Logits of trust, R × P, of the clients of R rounds (shapes as in `LabelledRounds`)."""
        rounds, clients, _ = tokens.shape
        hidden = self.embed(tokens)
        there = known.flatten(0, 1).any(0)  # what nobody remembers need not be looked up
        memory, known = memory[:, :, there], known[:, :, there]
        past = (self.embed(memory) + self.age[there]).flatten(0, 1)
        past = torch.cat([self.no_past.expand(len(past), 1, -1), past], 1)
        hidden_from = torch.cat([torch.zeros(len(past), 1, dtype=torch.bool), ~known.flatten(0, 1)], 1)
        for layer in self.layers:
            hidden = layer(hidden, past, hidden_from)
        logits: Tensor = self.out(hidden).view(rounds, clients) + self.leniency
        return logits

    def trust(self, tokens: Tensor, memory: Tensor, known: Tensor) -> Tensor:
        """a_k ∈ (0, 1) of each client, 1 = trustworthy."""
        with one_thread(), torch.no_grad():
            return torch.sigmoid(self(tokens, memory, known))

    def fit(self, rounds: LabelledRounds, epochs: int = 15, lr: float = 7e-4, seed: int = 0) -> None:
        """Learn to tell the planted attackers from the honest; continues from what has been learnt before.

        Made-up rounds are few and more alike than real ones. So that they are not learnt by heart, fingerprints
        are jittered and parts of the past forgotten. Attackers count as much as the honest altogether; how
        many of the honest are distrusted is set by `calibrate` afterwards.
        """
        generator = torch_generator(seed, "attention", "fit")
        optimizer = torch.optim.Adam(self.parameters(), lr=lr, fused=True)
        batch_size = min(max(epochs * len(rounds) // FEWEST_STEPS, 1), LARGEST_BATCH)
        steps = epochs * -(-len(rounds) // batch_size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        self.leniency.zero_()
        attackers = int((~rounds.honest).sum())
        balance = int(rounds.honest.sum()) / attackers if attackers else 1.0
        with one_thread(), torch.enable_grad():
            for _ in range(epochs):
                for batch in torch.randperm(len(rounds), generator=generator).split(batch_size):
                    optimizer.zero_grad()
                    tokens, memory = (
                        _jittered(values[batch], generator) for values in (rounds.tokens, rounds.memory)
                    )
                    kept = torch.rand(rounds.known[batch].shape, generator=generator) >= FORGOTTEN
                    logits = self(tokens, memory, rounds.known[batch] & kept)
                    honest = rounds.honest[batch]
                    functional.binary_cross_entropy_with_logits(
                        logits, honest.to(logits.dtype), torch.where(honest, 1.0, balance)
                    ).backward()
                    nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()

    def calibrate(self, rounds: LabelledRounds, false_alarms: float = 0.05) -> None:
        """Become so lenient or strict that this share of the honest in these rounds has a_k < ½.

        The rounds must not be among those that were learnt from.
        """
        self.leniency.zero_()
        with one_thread(), torch.no_grad():
            logits = self(rounds.tokens, rounds.memory, rounds.known)[rounds.honest]
        if len(logits):
            self.leniency.copy_(-logits.quantile(false_alarms))


def _jittered(values: Tensor, generator: torch.Generator) -> Tensor:
    return values + JITTER * torch.randn(values.shape, generator=generator)


class _Layer(nn.Module):
    """Among the clients of the round, to the client's own past, and a step for each token alone."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.among = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.past = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.alone = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))

    def forward(self, tokens: Tensor, past: Tensor, unseen: Tensor) -> Tensor:
        seen, _ = self.among(tokens, tokens, tokens, need_weights=False)
        tokens = self.norms[0](tokens + seen)
        single = tokens.flatten(0, 1)[:, None]  # every client has a memory of its own
        seen, _ = self.past(single, past, past, key_padding_mask=unseen, need_weights=False)
        tokens = self.norms[1](tokens + seen.view_as(tokens))
        result: Tensor = self.norms[2](tokens + self.alone(tokens))
        return result
