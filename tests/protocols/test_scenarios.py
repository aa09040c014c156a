"""Every scenario preset is a valid attack that can be crafted with."""

from __future__ import annotations

from importlib import resources

import pytest
import torch
import yaml

from wardround import attacks
from wardround.attacks import Campaign, LocalData, draw_byzantine

FOLDER = resources.files("wardround").joinpath("protocols", "scenarios")
FILES = {file.name.removesuffix(".yaml"): file for file in FOLDER.iterdir() if file.name.endswith(".yaml")}
WINDOW = {"name", "fraction", "start", "end", "clients"}
BYZANTINE = {  # how many of how many clients, from the papers
    "dos-none": (0, 10), "dos-label-flip-10": (1, 10), "dos-mix-40": (4, 10), "dos-noise-40": (4, 10),
    "dos-noise-scaled-40": (4, 10), "dos-crafted-40": (4, 10), "ham-noise-30": (3, 10), "ham-mix-40": (4, 10),
    "fedbnp-scaling-30": (6, 20), "fedbnp-partial-scaling-30": (6, 20), "fedbnp-sign-flip-30": (6, 20),
    "fedbnp-noise-30": (6, 20), "fedbnp-label-flip-30": (6, 20), "fedmed-liar-single": (1, 20),
    **{f"fedmed-liars-{kind}-{share}": (share // 5, 20)
       for kind in ("colluding", "inflating") for share in (10, 20, 30, 40)},
}  # fmt: skip


def load(name):
    preset = yaml.safe_load(FILES[name].read_text(encoding="utf-8"))
    assert set(preset) == {"title", "source", "config"}
    assert preset["title"]
    assert preset["source"]
    assert set(preset["config"]) == {"attack", "partition"}
    section, clients = preset["config"]["attack"], preset["config"]["partition"]["clients"]
    own = {key: value for key, value in section.items() if key not in WINDOW}
    return attacks.create(section["name"], **own), section.get("fraction", 0.0), clients


def test_all_scenarios_are_there():
    assert set(FILES) == set(BYZANTINE)


@pytest.mark.parametrize("name", sorted(BYZANTINE))
def test_preset_strikes_with_the_right_number_of_clients(name):
    attack, fraction, count = load(name)
    clients = [f"c{i}" for i in range(count)]
    byzantine = draw_byzantine(clients, fraction, seed=0)
    assert (len(byzantine), count) == BYZANTINE[name]
    campaign = Campaign(attack, byzantine)
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(count, 30, generator=generator)
    loss = torch.rand(count, generator=generator) + 0.5
    weights = torch.randn(30, generator=generator)
    sent, reported = campaign.strike(
        honest, clients, {"loss": loss}, 2, weights, weights - honest.mean(0), count
    )
    data = LocalData(torch.zeros(60, 5), torch.arange(60) % 3, 3)
    for row, client in enumerate(clients):
        lied = (
            not torch.equal(sent[row], honest[row])
            or reported["loss"][row] != loss[row]
            or campaign.poison(client, data, 2) is not data
        )
        assert lied == (client in byzantine)


def test_ham_mix_sends_scaled_parameters():
    attack, _, _ = load("ham-mix-40")
    campaign = Campaign(attack, ["c0", "c1", "c2", "c3"])
    generator = torch.Generator().manual_seed(0)
    honest, weights = torch.randn(10, 5000, generator=generator), torch.full((5000,), 2.0)
    sent, _ = campaign.strike(honest, [f"c{i}" for i in range(10)], {}, 1, weights, None, 10)
    models, theirs = weights + sent, weights + honest
    for noise in models[:2]:
        assert abs(noise.mean()) < 0.1
        assert abs(noise.std() - 1) < 0.1
    torch.testing.assert_close(models[2], 100 * theirs[2], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(models[3], -0.5 * theirs[3], rtol=1e-4, atol=1e-4)
