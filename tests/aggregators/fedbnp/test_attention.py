"""The dual attention of FedBNP."""

import pytest
import torch

from wardround.aggregators.fedbnp.attention import DualAttention, LabelledRounds

generator = torch.Generator


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


@pytest.mark.slow
def test_learning_is_the_same_twice_and_leaves_global_randomness_alone():
    state = torch.random.get_rng_state()
    nets = [network(layers=1), network(layers=1)]
    for net in nets:
        net.fit(made_rounds(8), epochs=2)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.slow
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
