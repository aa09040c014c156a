"""The autoencoder of FedBNP."""

import torch
from hypothesis import given
from hypothesis import strategies as st

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
