"""The agent of FedBNP: its reward and its learning."""

import numpy as np
import pytest
import torch

from wardround.aggregators.fedbnp.agent import Agent, Transitions, explored, reward

generator = torch.Generator


@pytest.mark.parametrize("seed", range(5))
def test_the_reward_against_scikit_learn(seed):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    byzantine = rng.random(9) < 0.4
    byzantine[0], byzantine[1] = True, False
    actions, gain = rng.random((4, 9)), rng.normal(size=4)
    found = reward(torch.tensor(actions), torch.tensor(byzantine), torch.tensor(gain))
    for row, delta, value in zip(actions, gain, found.tolist(), strict=True):
        flags = row < 0.5
        f1 = metrics.f1_score(byzantine, flags, zero_division=0.0)
        rate = flags[~byzantine].mean()
        assert value == pytest.approx(0.5 * delta + 0.4 * f1 - 0.1 * rate)


def test_in_a_round_without_attackers_it_is_right_to_flag_nobody():
    nobody = torch.zeros(3, dtype=torch.bool)
    calm, alarmed = reward(torch.tensor([[0.9, 0.9, 0.9], [0.9, 0.9, 0.1]]), nobody, torch.zeros(2)).tolist()
    assert calm == pytest.approx(0.4)
    assert alarmed == pytest.approx(-0.1 / 3)


@pytest.mark.slow
def test_the_agent_learns_whom_to_trust_from_rewards_alone():
    rng, agent, parts = generator().manual_seed(0), Agent(seed=0), []
    for _ in range(6):
        for _ in range(20):
            byzantine = torch.rand(8, generator=rng) < 0.3
            states = torch.randn(8, 9, generator=rng) * 0.2
            states[:, 0] += byzantine * 2.0
            actions = explored(agent.policy(states), 6, rng)
            earned = reward(actions, byzantine, torch.zeros(6)).repeat_interleave(8)
            parts.append(
                Transitions(
                    states.repeat(6, 1), actions.flatten(), earned, states.repeat(6, 1),
                    torch.ones(48, dtype=torch.bool),
                )
            )  # fmt: skip
        agent.fit(Transitions.joined(parts), 200)
    byzantine = torch.arange(100) < 30
    states = torch.randn(100, 9, generator=rng) * 0.2
    states[:, 0] += byzantine * 2.0
    assert ((agent.policy(states) < 0.5) == byzantine).float().mean() > 0.9


@pytest.mark.slow
def test_the_critic_learns_the_discounted_sum():
    """One state, action without effect, reward 1, episodes of two steps: Q = 1 + 0.99 and 1."""
    first, second = torch.zeros(64, 9), torch.ones(64, 9)
    actions = torch.rand(128, generator=generator().manual_seed(0))
    seen = Transitions(
        torch.cat([first, second]),
        actions,
        torch.ones(128),
        torch.cat([second, second]),
        torch.arange(128) >= 64,
    )
    agent = Agent(seed=0)
    agent.fit(seen, 1500)
    assert agent.worth(first, actions[:64]).mean().item() == pytest.approx(1.99, abs=0.05)
    assert agent.worth(second, actions[:64]).mean().item() == pytest.approx(1, abs=0.05)
