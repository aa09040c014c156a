"""An actor-critic agent that learns how far to trust, from rewards instead of labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wardround.aggregators.fedbnp.reproducible_networks import seeded
from wardround.aggregators.fedbnp.trust import FLAG_BELOW
from wardround.randomness import seed_for, torch_generator
from wardround.threads import one_thread

__all__ = ["STATE", "Agent", "Transitions", "credited", "explored", "reward"]

STATE = 9
"""Six fingerprints, the global metric, t/T and the consensus of the round."""


PARTS = (0.5, 0.4, 0.1)
"""Shares of ΔAcc, F1 and FPR in the reward."""


def reward(actions: Tensor, byzantine: Tensor, gain: Tensor) -> Tensor:
    """0.5·ΔAcc + 0.4·F1 − 0.1·FPR of K action vectors (K × P) in one round whose attackers were planted.

    Trusting a client below one half flags it. `gain` is ΔAcc of each vector. In a round without attackers F1
    is 1 if nobody is flagged, else 0.

    >>> byzantine = torch.tensor([True, False, False, False])
    >>> reward(torch.tensor([[0.1, 0.9, 0.9, 0.9], [0.9, 0.9, 0.9, 0.1]]), byzantine, torch.zeros(2))
    tensor([ 0.4000, -0.0333])
    """
    return PARTS[0] * gain + _verdicts(actions < FLAG_BELOW, byzantine)


def credited(actions: Tensor, byzantine: Tensor, gain: Tensor) -> Tensor:
    """K × P: what each client's own trust earned in the round: the reward less that, had it been trusted.

    All clients of a round share one reward; for one of them it is mostly noise that the others make. What
    would have been missing or spared without its own flag is its doing (difference rewards: Wolpert & Tumer,
    "Optimal payoff functions for members of collectives", 2001). ΔAcc is left whole.

    >>> byzantine = torch.tensor([True, False, False, False])
    >>> credited(torch.tensor([[0.1, 0.9, 0.9, 0.1]]), byzantine, torch.zeros(1))
    tensor([[ 0.2667,  0.0000,  0.0000, -0.1667]])
    """
    flags = actions < FLAG_BELOW
    tries, clients = flags.shape
    spared = flags[:, None] & ~torch.eye(clients, dtype=torch.bool)  # K × P × P: client p is not flagged
    without = _verdicts(spared.flatten(0, 1), byzantine).view(tries, clients)
    return PARTS[0] * gain[:, None] + _verdicts(flags, byzantine)[:, None] - without


def _verdicts(flags: Tensor, byzantine: Tensor) -> Tensor:
    """0.4·F1 − 0.1·FPR of each row of flags."""
    hits = (flags & byzantine).sum(1)
    alarms = (flags & ~byzantine).sum(1)
    missed = byzantine.sum() - hits
    right = 2 * hits + alarms + missed
    f1 = torch.where(right > 0, 2 * hits / right.clamp(min=1), 1.0)
    rate = alarms / (~byzantine).sum().clamp(min=1)
    return PARTS[1] * f1 - PARTS[2] * rate


@dataclass(frozen=True, eq=False)
class Transitions:
    """What was seen, done, earned and seen next; one line per client and try."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    following: Tensor
    last: Tensor
    """Booleans: nothing follows."""

    def __len__(self) -> int:
        return len(self.states)

    @classmethod
    def joined(cls, parts: list[Transitions]) -> Transitions:
        """Several as one."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


class Agent(nn.Module):
    r"""Actor :math:`\pi(s) = \sigma(\mathrm{MLP}(s))`, critic :math:`Q(s, a) = \mathrm{MLP}([s; a])`.

    The critic learns :math:`Q(s,a) \to R + \gamma\,Q'(s', \pi'(s'))`, the actor to maximise Q(s, π(s)), both from
    stored transitions, with slowly following copies Q', π' (deterministic policy gradient). A fresh actor
    trusts everyone one half.

    Lillicrap et al., "Continuous control with deep reinforcement learning", ICLR 2016; FedBNP document,
    section III-E.

    >>> Agent(seed=0).policy(torch.zeros(3, 9)).tolist()
    [0.5, 0.5, 0.5]
    """

    def __init__(self, state: int = STATE, hidden: int = 64, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed_for(seed, "agent")):
            self.actor, self.critic = _network(state, hidden), _network(state + 1, hidden)
        for parameter in self.actor[-1].parameters():
            nn.init.zeros_(parameter)

    def act(self, states: Tensor) -> Tensor:
        """π(s), with gradients."""
        return torch.sigmoid(self.actor(states))[:, 0]

    def worth(self, states: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a), with gradients."""
        values: Tensor = self.critic(torch.cat([states, actions[:, None]], 1))[:, 0]
        return values

    def policy(self, states: Tensor) -> Tensor:
        """π(s) ∈ (0, 1): how far to trust each client."""
        with one_thread(), torch.no_grad():
            return self.act(states)

    def fit(
        self,
        seen: Transitions,
        steps: int,
        lr: float = 1e-3,
        gamma: float = 0.99,
        batch_size: int = 256,
        follow: float = 0.02,
        seed: int = 0,
    ) -> None:
        """Learn from stored transitions; continues from what has been learnt before."""
        generator = torch_generator(seed, "agent", "fit")
        actor = torch.optim.Adam(self.actor.parameters(), lr=lr, fused=True)
        critic = torch.optim.Adam(self.critic.parameters(), lr=lr, fused=True)
        slow = copy.deepcopy(self).requires_grad_(False)
        followers: list[Tensor] = list(slow.parameters())
        leaders = [mine.detach() for mine in self.parameters()]
        with one_thread(), torch.enable_grad():
            for _ in range(steps):
                batch = torch.randint(len(seen), (min(batch_size, len(seen)),), generator=generator)
                states, following = seen.states[batch], seen.following[batch]
                ahead = slow.worth(following, slow.act(following)) * ~seen.last[batch]
                critic.zero_grad()
                worth = self.worth(states, seen.actions[batch])
                functional.mse_loss(worth, seen.rewards[batch] + gamma * ahead).backward()
                critic.step()
                actor.zero_grad()
                (-self.worth(states, self.act(states)).mean()).backward()
                actor.step()
                torch._foreach_lerp_(followers, leaders, follow)


def explored(policy: Tensor, tries: int, generator: torch.Generator) -> Tensor:
    """Actions to try in a round: half of them drawn at random, half the policy with a fifth of it redrawn.

    >>> explored(torch.full((6,), 0.7), 4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 6])
    """
    free = torch.rand(tries, len(policy), generator=generator)
    redrawn = torch.rand(tries, len(policy), generator=generator) < 0.2
    redrawn[: tries // 2] = True
    return torch.where(redrawn, free, policy)


def _network(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
