"""A rule under encryption gives what it gives in the clear, and the loop keeps its promises about privacy."""

import json

import numpy as np
import pytest
import torch
import yaml

from wardround import Updates, aggregators
from wardround.errors import ConfigError
from wardround.experiments import load_config, run
from wardround.privacy.encryption.sealing import seal_updates
from wardround.privacy.params import MODES, PrivacyParams, rules_for
from wardround.privacy.protection import Protection, without_rows

CLIENTS = tuple(f"hospital-{i}" for i in range(6))
DIMENSION = 5000


@pytest.fixture(scope="module", autouse=True)
def _extra():
    pytest.importorskip("tenseal", reason="the extra 'privacy' is not installed")


@pytest.fixture
def tiny(tiny):
    return {**tiny, "rounds": 4}


def sent(round, rows=None, **changes):
    rng = np.random.default_rng(round)
    matrix = torch.from_numpy(rng.normal(size=(6, DIMENSION)).astype("float32")) * 0.01 + 0.003
    for row, value in (rows or {}).items():
        matrix[row] = value
    reports = {"num_samples": [10, 50, 30, 20, 40, 25], "metrics": {"loss": rng.uniform(0.3, 0.9, 6)}}
    return Updates(matrix, CLIENTS, **{**reports, **changes})


RULES = [aggregators.registry.get(name) for name in aggregators.available()]


def relative(got, expected):
    return float((got.double() - expected.double()).norm() / expected.double().norm())


class Protected:
    """A run's protection whose clients are all played here: they seal, the server and the steward open."""

    def __init__(self, rule, dimension=DIMENSION, **privacy):
        self.protection = Protection(PrivacyParams(**privacy), rule, CLIENTS, dimension, seed=0)
        self.sealers = self.protection.sealers()

    def aggregate(self, updates, round):
        order = f"order of round {round}"
        sealed, problems = seal_updates(updates, self.sealers, round, order)
        size, dtype = updates.dimension, updates.matrix.dtype
        result = self.protection.open(without_rows(updates), sealed, round, order, size, dtype)
        result.dropped |= {client: why for client, why in problems.items() if client in result.dropped}
        return result

    def __getattr__(self, name):
        return getattr(self.protection, name)


def protected(rule, **privacy):
    return Protected(rule, **privacy)


@pytest.mark.slow
@pytest.mark.parametrize("name", rules_for("encrypted-fedmed", RULES))
def test_rules_that_weigh_by_reports_give_the_same_under_encryption(name):
    rule, plain = aggregators.create(name), aggregators.create(name)
    protection = protected(rule, mode="encrypted-fedmed")
    for round in (1, 2):
        expected = plain.aggregate(sent(round), round)
        got = protection.aggregate(sent(round), round)
        assert relative(got.delta, expected.delta) < 1e-4
        assert torch.equal(got.weights, expected.weights)
        assert got.delta.dtype == expected.delta.dtype


@pytest.mark.slow
@pytest.mark.parametrize("name", ["caac", "caac-dir"])
def test_caac_gives_the_same_under_encryption(name):
    rule, plain = aggregators.create(name, t_boot=2), aggregators.create(name, t_boot=2)
    protection = protected(rule, mode="encrypted-caac")
    for round in range(1, 6):
        attack = {4: -9.0 * sent(round).matrix[4]} if round > 3 else {}
        expected = plain.aggregate(sent(round, attack), round)
        got = protection.aggregate(sent(round, attack), round)
        assert relative(got.delta, expected.delta) < 1e-3
        assert (got.flags is None) == (expected.flags is None) == (round <= 2), "no flags in the bootstrap"
        if expected.flags is not None:
            assert torch.equal(got.flags, expected.flags)
        for column in ("norm", "cosine", "anomaly", "clip_scale", "reliability"):
            assert got.columns[column] == pytest.approx(expected.columns[column], rel=2e-3, abs=2e-3)
        if round == 4:  # the attack's first round: later ones may count as normal for this client
            assert bool(got.flags[4]) == (name == "caac")


def test_the_rule_never_sees_a_row(monkeypatch):
    seen = []
    rule = aggregators.create("fedmed")
    monkeypatch.setattr(
        rule, "combine", lambda u, c, real=rule.combine: (seen.append(u.matrix), real(u, c))[1]
    )
    protected(rule, mode="encrypted-fedmed").aggregate(sent(1), 1)
    assert len(seen) == 1
    assert not seen[0].any()
    assert seen[0].shape == (6, 1)


def test_malformed_rows_are_dropped_as_they_are_in_the_clear():
    bad = {1: torch.full((DIMENSION,), torch.nan), 3: torch.full((DIMENSION,), 1e9)}
    rule, plain = aggregators.create("fedmed"), aggregators.create("fedmed")
    got = protected(rule, mode="encrypted-fedmed").aggregate(sent(1, bad), 1)
    assert got.dropped[CLIENTS[1]] == "not finite"
    assert "cannot hold" in got.dropped[CLIENTS[3]]
    expected = plain.aggregate(sent(1).select([0, 2, 4, 5]))
    assert relative(got.delta, expected.delta) < 1e-4
    assert got.weights[1] == got.weights[3] == 0


def test_a_refused_opening_skips_the_round_and_says_why():
    loss = [1e-9, 0.5, 0.5, 0.5, 0.5, 0.5]
    rule = aggregators.create("fedmed", clip="none")
    got = protected(rule, mode="encrypted-fedmed").aggregate(sent(1, metrics={"loss": loss}), 1)
    assert "the steward refuses round 1" in got.skipped
    assert not got.delta.any()
    assert got.delta.shape == (DIMENSION,)
    assert not got.weights.any()
    assert got.columns["quality"][0] > 1e5


def test_too_few_updates_skip_the_round():
    bad = {row: torch.full((DIMENSION,), torch.inf) for row in range(4)}
    for mode, name in (("encrypted-fedmed", "fedmed"), ("encrypted-caac", "caac")):
        got = protected(aggregators.create(name), mode=mode).aggregate(sent(1, bad), 1)
        assert "2 updates could be encrypted" in got.skipped


def test_paillier_gives_the_same_sum():
    small = Updates(sent(1).matrix[:, :60], CLIENTS, metrics=sent(1).metrics)
    rule = aggregators.create("fedmed")
    protection = protected(rule, dimension=60, mode="encrypted-fedmed", cipher="paillier")
    got = protection.aggregate(small, 1)
    assert relative(got.delta, aggregators.create("fedmed").aggregate(small).delta) < 1e-4


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "plaintext"])
def test_a_rule_that_needs_plaintext_is_refused_by_the_configuration(tiny, mode):
    for name in set(aggregators.available()) - set(rules_for(mode, RULES)):
        with pytest.raises(ConfigError) as error:
            load_config({**tiny, "aggregator": {"name": name}, "privacy": {"mode": mode}})
        assert name in str(error.value)
        assert all(rule in str(error.value) for rule in rules_for(mode, RULES))
        assert "\n" not in str(error.value)


def test_the_papers_rules_work_in_the_modes_made_for_them():
    assert rules_for("encrypted-fedmed", RULES) == ["fedavg", "fedmed", "fedprox", "mean"]
    assert rules_for("encrypted-caac", RULES) == ["caac", "caac-dir", "caac-mag", "caac-mag+dir", "caac-temp"]
    assert rules_for("plaintext", RULES) == aggregators.available()


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"mode": "encrypted"}, "mode"),
        ({"mode": "encrypted-caac", "cipher": "paillier"}, "ckks"),
        ({"steward": "http://127.0.0.1:1"}, "steward_keys"),
        ({"dp": {"unit": "patient"}}, "noise_multiplier"),
        ({"dp": {"epsilonn": 1}}, "epsilon"),
        ({"profile_noise": {"clip": 1.0}}, "profile_noise is for rules with profiles"),
        ({"mode": "encrypted-fedmed", "min_cohort": 1}, "min_cohort"),
    ],
)
def test_mistakes_in_the_section_are_told(tiny, privacy, message):
    with pytest.raises(ConfigError, match=message):
        load_config({**tiny, "aggregator": {"name": "fedmed"}, "privacy": privacy})


def test_too_few_clients_for_any_opening_is_an_error_before_the_first_round(tiny, tmp_path):
    tiny |= {"aggregator": {"name": "fedmed"}, "privacy": {"mode": "encrypted-fedmed"}, "participation": 0.3}
    with pytest.raises(ConfigError, match="2 clients a round, but the steward opens sums of at least"):
        run(load_config(tiny), tmp_path)
    assert not list(tmp_path.iterdir())


def test_privacy_that_is_off_does_not_change_a_runs_name(tiny):
    assert load_config(tiny).plain()["privacy"] == {"mode": "plaintext"}
    assert load_config(tiny).hash == load_config({**tiny, "privacy": {"min_cohort": 7}}).hash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "rule"),
    [("encrypted-fedmed", {"name": "fedmed"}), ("encrypted-caac", {"name": "caac", "t_boot": 2})],
)
def test_a_run_ends_where_it_ends_in_the_clear(tiny, tmp_path, mode, rule):
    tiny |= {"aggregator": rule}
    plain = run(load_config(tiny), tmp_path).summary()
    hidden = run(load_config({**tiny, "privacy": {"mode": mode}}), tmp_path).summary()
    assert hidden.status == "finished"
    assert hidden.final["auroc"] == pytest.approx(plain.final["auroc"], abs=0.005)
    assert hidden.final["loss"] == pytest.approx(plain.final["loss"], abs=1e-3)


@pytest.mark.slow
def test_an_encrypted_run_goes_on_where_it_was_stopped(tiny, tmp_path):
    """Up to the ciphers' noise: cosines are measured against the sum opened before the stop."""
    tiny |= {"aggregator": {"name": "caac", "t_boot": 1}, "privacy": {"mode": "encrypted-caac"}}
    whole = run(load_config(tiny), tmp_path / "a")

    class Stop(Exception):
        pass

    def stop(result):
        if result.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(load_config(tiny), tmp_path / "b", stop)
    parts = run(load_config(tiny), tmp_path / "b")
    for one, other in zip(whole.clients(), parts.clients(), strict=True):
        assert one["cosine"] == pytest.approx(other["cosine"], abs=1e-3)
        assert one.flag == other.flag


class TestDifferentialPrivacy:
    def test_epsilon_of_the_whole_run_is_told_every_round_and_in_the_summary(self, tiny, tmp_path):
        tiny |= {"privacy": {"dp": {"epsilon": 2.0, "clip": 0.5}}}
        folder = run(load_config(tiny), tmp_path)
        spent = [line.privacy["epsilon"] for line in folder.rounds()]
        assert spent == sorted(spent)
        assert len(set(spent)) == 4
        assert folder.summary().privacy == {"epsilon": spent[-1], "delta": 1e-5}
        record = yaml.safe_load(folder.config_path.read_text())["record"]
        assert record["privacy"]["noise_multiplier"] == pytest.approx(2.4224, abs=1e-4)

    def test_the_run_stops_before_the_budget_is_overspent(self, tiny, tmp_path):
        tiny |= {"privacy": {"dp": {"budget": 4.0}}, "rounds": 50}
        folder = run(load_config(tiny), tmp_path)
        summary = folder.summary()
        assert summary.status == "stopped"
        assert "privacy budget" in summary.reason
        assert 0 < summary.rounds < 50
        assert summary.privacy["epsilon"] <= 4.0
        again = run(load_config(tiny), tmp_path).summary()
        assert again.rounds == summary.rounds, "asking again spends nothing"

    def test_what_was_spent_survives_a_stop(self, tiny, tmp_path):
        tiny |= {"privacy": {"dp": {}}, "participation": 0.5}
        whole = run(load_config(tiny), tmp_path / "a")

        def stop(result):
            if result.round == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(load_config(tiny), tmp_path / "b", stop)
        parts = run(load_config(tiny), tmp_path / "b")
        assert parts.summary().privacy == whole.summary().privacy
        assert json.dumps(parts.summary().final) == json.dumps(whole.summary().final)

    def test_rows_are_clipped_and_noised_before_the_rule_sees_them(self, tiny, tmp_path):
        tiny |= {
            "aggregator": {"name": "caac"},
            "privacy": {"dp": {"clip": 1e-3, "noise_multiplier": 5.0}},
            "rounds": 1,
        }
        folder = run(load_config(tiny), tmp_path)
        parameters = folder.config()["record"]["model_parameters"]
        norms = [line["norm"] for line in folder.clients()]
        assert norms == pytest.approx([5e-3 * parameters**0.5] * 6, rel=0.3)

    def test_noisy_profiles(self, tiny, tmp_path):
        tiny |= {"aggregator": {"name": "caac", "t_boot": 1}}
        plain = run(load_config(tiny), tmp_path)
        tiny |= {"privacy": {"profile_noise": {"epsilon": 5.0, "clip": 0.5}}}
        noisy = run(load_config(tiny), tmp_path)
        spent = [line.privacy["profile_epsilon"] for line in noisy.rounds()]
        assert spent == sorted(spent)
        pairs = zip(plain.clients()[:6], noisy.clients()[:6], strict=True)
        assert all(one["norm"] != other["norm"] for one, other in pairs)

    @pytest.mark.slow
    def test_noise_and_encryption_together(self, tiny, tmp_path):
        tiny |= {
            "aggregator": {"name": "fedmed"},
            "privacy": {"mode": "encrypted-fedmed", "dp": {"clip": 0.1, "noise_multiplier": 0.5}},
        }
        folder = run(load_config(tiny), tmp_path)
        assert folder.summary().status == "finished"
        assert folder.summary().privacy["epsilon"] > 0


@pytest.mark.slow
def test_encrypted_caac_on_intensive_care_data(tmp_path):
    config = {
        "dataset": {"name": "icu"},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5},
        "aggregator": {"name": "caac", "t_boot": 3},
        "attack": {"name": "sign-flip", "fraction": 0.2, "start": 5},
        "rounds": 7,
        "evaluate_every": 7,
    }
    plain = run(load_config(config), tmp_path)
    hidden = run(load_config({**config, "privacy": {"mode": "encrypted-caac"}}), tmp_path)
    flags = [[line.flag for line in folder.clients()] for folder in (plain, hidden)]
    assert flags[0] == flags[1]
    one, other = (folder.summary().final["auroc"] for folder in (plain, hidden))
    assert other == pytest.approx(one, abs=0.005)
