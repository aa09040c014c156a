"""Autoencoder, attention, agent, trust and memory, each alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wardround.aggregators.fedbnp.agent import Agent, Transitions, explored, reward
from wardround.aggregators.fedbnp.attention import DualAttention, LabelledRounds
from wardround.aggregators.fedbnp.memory import Memory
from wardround.aggregators.fedbnp.trust import combined_trust, shares
from wardround.aggregators.fedbnp.vae import Vae, comparable

generator = torch.Generator


def test_the_autoencoder_has_the_documented_shape():
    shapes = {name: tuple(value.shape) for name, value in Vae(300).state_dict().items()}
    assert shapes["body.0.weight"] == (128, 300)
    assert shapes["body.2.weight"] == (128, 128)
    assert shapes["mean.weight"] == shapes["log_variance.weight"] == (64, 128)
    assert shapes["decoder.0.weight"] == (128, 64)
    assert shapes["decoder.2.weight"] == (128, 128)
    assert shapes["decoder.4.weight"] == (300, 128)


def test_the_loss_is_error_and_divergence_by_hand():
    vae, rows = Vae(5, seed=1), torch.randn(3, 5, generator=generator().manual_seed(0))
    noise = torch.randn(3, 64, generator=generator().manual_seed(1))
    hidden = vae.body(rows)
    mean, log_variance = vae.mean(hidden), vae.log_variance(hidden)
    prior = torch.distributions.Normal(torch.zeros(3, 64), torch.ones(3, 64))
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(1)
    error = (vae.decoder(mean + posterior.scale * noise) - rows).square().sum(1)
    expected = (error + 0.1 * divergence).mean()
    torch.testing.assert_close(vae.loss(rows, noise, beta=0.1), expected)


def test_what_was_learnt_is_rebuilt_better_than_what_was_not():
    basis = torch.randn(3, 200, generator=generator().manual_seed(0))
    rows = torch.randn(80, 3, generator=generator().manual_seed(1)) @ basis
    vae = Vae(200)
    before = vae.error(rows).mean()
    vae.fit(rows[:60])
    other = torch.randn(20, 200, generator=generator().manual_seed(2)) * rows.std()
    assert vae.error(rows[60:]).mean() < 0.5 * before
    assert vae.error(rows[60:]).mean() < 0.7 * vae.error(other).mean()


@given(st.floats(1e-12, 1e30))
def test_the_unit_of_a_round_is_its_median_norm(scale):
    rows = torch.tensor([[3.0, 4.0], [0.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(comparable(rows * scale, 5 * scale), comparable(rows, 5.0))
    assert torch.isfinite(Vae(2).error(comparable(rows * scale * 1e200, 5 * scale))).all()


def network(**changes):
    return DualAttention(**{"memory": 2, "seed": 0, **changes})


def made_rounds(count, seed=0, clients=8):
    """Attackers have the first fingerprint high, the rest is noise."""
    rng = generator().manual_seed(seed)
    honest = torch.rand(count, clients, generator=rng) > 0.25
    tokens = torch.randn(count, clients, 6, generator=rng) * 0.3
    tokens[..., 0] += torch.where(honest, 0.0, 2.0)
    memory, known = torch.zeros(count, clients, 2, 6), torch.zeros(count, clients, 2, dtype=torch.bool)
    return LabelledRounds(tokens, memory, known, honest)


def test_the_attention_has_the_documented_shape():
    net = DualAttention()
    assert len(net.layers) == 3
    assert net.layers[0].among.embed_dim == net.layers[0].past.embed_dim == 128
    assert net.layers[0].among.num_heads == net.layers[0].past.num_heads == 8


def test_the_order_of_clients_does_not_matter_to_the_attention():
    rounds, order = made_rounds(1), [3, 1, 0, 2, 7, 6, 5, 4]
    net = network()
    one = net.trust(rounds.tokens, rounds.memory, rounds.known)
    other = net.trust(rounds.tokens[:, order], rounds.memory[:, order], rounds.known[:, order])
    torch.testing.assert_close(one[:, order], other)


def test_what_is_not_known_is_not_looked_at():
    rounds, net = made_rounds(1), network()
    noise = torch.randn(rounds.memory.shape, generator=generator().manual_seed(1))
    same = net.trust(rounds.tokens, noise, rounds.known)
    torch.testing.assert_close(same, net.trust(rounds.tokens, rounds.memory, rounds.known))
    known = rounds.known.clone()
    known[0, 3, 0] = True
    changed = net.trust(rounds.tokens, noise, known)
    assert not torch.allclose(changed, same)


@pytest.mark.slow
def test_the_attention_learns_to_tell_attackers():
    net = network()
    net.fit(made_rounds(60), epochs=15)
    new = made_rounds(20, seed=1)
    said = net.trust(new.tokens, new.memory, new.known) > 0.5
    assert (said == new.honest).float().mean() > 0.95


def test_learning_is_the_same_twice_and_leaves_global_randomness_alone():
    state = torch.random.get_rng_state()
    nets = [network(layers=1), network(layers=1)]
    for net in nets:
        net.fit(made_rounds(8), epochs=2)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(state, torch.random.get_rng_state())


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


@given(st.floats(0, 1), st.floats(0, 1))
def test_trust_by_hand(a, policy):
    mixed = 0.6 * a + 0.4 * policy
    opinions = torch.tensor([a], dtype=torch.float64), torch.tensor([policy], dtype=torch.float64)
    assert combined_trust(*opinions, form="sharp").item() == pytest.approx(mixed)
    document = combined_trust(*opinions).item()
    assert document == pytest.approx(1 / (1 + math.exp(-mixed)))
    assert 0.5 <= document <= 0.7311


def test_shares_sum_to_one_even_when_nobody_is_trusted():
    assert shares(torch.tensor([0.2, 0.6])).tolist() == pytest.approx([0.25, 0.75])
    assert shares(torch.zeros(4)).tolist() == [0.25] * 4


def test_the_memory_forgets_the_oldest_but_not_the_mean_and_goes_round_the_world():
    memory = Memory(rounds=2, features=1)
    for value in (1.0, 2.0, 6.0):
        memory.store(["x"], torch.tensor([[value]]))
    again = Memory(rounds=2, features=1)
    again.load_state_dict(memory.state_dict())
    values, known = again.recall(["y", "x"])
    assert values[1, :, 0].tolist() == [6.0, 2.0, 3.0]
    assert known.tolist() == [[False, False, False], [True, True, True]]
    assert again.mean_with(["x", "y"], torch.tensor([[7.0], [5.0]])).flatten().tolist() == [4.0, 5.0]


def test_the_mean_forgets_slowly_after_twenty_rounds():
    memory = Memory(rounds=1, features=1)
    for _ in range(20):
        memory.store(["x"], torch.zeros(1, 1))
    for expected in (1.0, 1.95):  # each new round counts a twentieth
        memory.store(["x"], torch.full((1, 1), 20.0))
        assert memory.recall(["x"])[0][0, 1].item() == pytest.approx(expected)


@pytest.mark.parametrize("bias", [-5.0, 0.0, 5.0])
def test_calibrating_leaves_the_wanted_share_of_the_honest_below_one_half(bias):
    net, rounds = network(), made_rounds(40)
    net.fit(rounds, epochs=1)
    with torch.no_grad():
        net.out.bias += bias  # much too strict, as learnt, much too lenient
    net.calibrate(rounds, false_alarms=0.1)
    below = net.trust(rounds.tokens, rounds.memory, rounds.known)[rounds.honest] < 0.5
    assert below.float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_unknown_places_of_the_memory_change_nothing():
    rounds, net = made_rounds(2), network(memory=4)
    memory = torch.randn(2, 8, 4, 6, generator=generator().manual_seed(3))
    known = torch.tensor([True, False, True, False]).expand(2, 8, 4)
    whole = net.trust(rounds.tokens, memory, known)
    one = known.clone()
    one[1, 3] = True  # now every place is looked up
    other = net.trust(rounds.tokens, memory, one)
    torch.testing.assert_close(whole[0], other[0])
    assert not torch.allclose(whole[1], other[1])
