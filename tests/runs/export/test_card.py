"""MODEL_CARD.md says what the records have, and that something is unknown where they have nothing."""

import pytest

from wardround.experiments import load_config, run
from wardround.runs.export.card import model_card
from wardround.runs.export.source import read_trained_model
from wardround.runs.identity import find_folder
from wardround.runs.quarantine import quarantine


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A run with an attack, flags, a quarantine and differential privacy, and its card."""
    out = tmp_path_factory.mktemp("attacked")
    config = load_config(
        {
            "dataset": {"name": "icu"},
            "partition": {"name": "iid", "clients": 5},
            "model": {"name": "logistic"},
            "training": {"batch_size": 512},
            "aggregator": {"name": "signguard"},
            "attack": {"name": "sign-flip", "clients": ["hospital-01"], "scale": 20, "start": 1},
            "privacy": {"dp": {"epsilon": 8.0}},
            "rounds": 3,
        }
    )

    def aside(record):
        if record.round == 1:
            quarantine(find_folder(config, out).path, "hospital-03", "labels | in doubt")

    folder = run(config, out, aside)
    return folder, model_card(read_trained_model(folder, "last"))


def row_of(card, start):
    """The cells of the first line of a table that begins so."""
    line = next(line for line in card.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")]


@pytest.mark.slow
def test_it_says_who_took_part_who_was_flagged_and_who_is_in_quarantine(attacked):
    folder, card = attacked
    flagged = sum(record.flag is True for record in folder.clients() if record.client == "hospital-01")
    attacker, aside = row_of(card, "hospital-01"), row_of(card, "hospital-03")
    assert attacker[2] == "3"
    assert attacker[4] == str(flagged) != "0"
    assert aside[2] == "1"
    assert aside[5] == "2 quarantined"
    assert aside[6] == "yes: labels / in doubt"


@pytest.mark.slow
def test_it_has_the_figures_of_the_exported_round(attacked):
    folder, card = attacked
    last = folder.rounds()[-1]
    assert row_of(card, "auroc")[1:] == [f"{last.metrics['auroc']:.4f}", f"{last.validation['auroc']:.4f}"]
    assert f"ε = {last.privacy['epsilon']:.3f}" in card
    assert f"above a probability of {last.metrics['threshold']:.4g}" in card
    assert f"Brier score on test samples: {last.metrics['brier']:.4f}" in card
    for one in last.details.calibration:
        assert f"| {one.n} | {one.predicted:.4f} | {one.observed:.4f} |" in card


def test_it_has_every_hospital_and_every_patient_group(attacked):
    folder, card = attacked
    last = folder.rounds()[-1]
    for client, metrics in last.per_client.items():
        assert f"| {client} | {metrics['auroc']:.4f} |" in card
    assert set(last.details.groups) >= {"sex", "age"}
    for attribute, groups in last.details.groups.items():
        assert f"### {attribute}" in card
        for group in groups:
            assert f"| {group} | " in card


def test_it_says_what_it_is_not_for(attacked):
    card = attacked[1]
    assert "Not a medical device" in card
    assert "**The run simulated an attack** (`sign-flip`) by hospital-01" in card
    assert "round 3, the last one that is finished" in card


def test_what_is_unknown_is_said(tiny, tmp_path):
    folder = run(load_config({**tiny, "rounds": 3}), tmp_path)
    trained = read_trained_model(folder)
    card = model_card(trained, "nobody asked")
    assert "There is no `model.onnx`: nobody asked." in card
    assert "Not measured: the data has no groups" in card
    assert "ε is not bounded" in card
    assert "The rule raises no flags" in card
    if trained.round != 3:
        assert f"That is not the exported model, which is of round {trained.round}." in card
