"""A rule behind pre-aggregations: how it is written, what it refuses, and what it says of clients."""

import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators._math import mixing
from wardround.errors import ConfigError, ParameterError, TooFewClients
from wardround.runs.config import load_config


@pytest.mark.parametrize(
    "pre", ["nnm", ["nnm"], {"name": "nnm"}, [{"name": "nnm"}], [{"name": "nnm", "f": None}]]
)
def test_a_pre_aggregation_is_a_name_or_a_mapping(pre, make_updates):
    rule = aggregators.create("trimmed-mean", f=3, pre=pre)
    assert rule.name == "trimmed-mean"
    assert rule.resolved(20)["pre"] == [{"name": "nnm", "f": 3}]


def test_an_empty_list_is_the_rule_alone():
    assert type(aggregators.create("krum", pre=[])) is aggregators.registry.get("krum")


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        (["nmm"], "unknown pre-aggregation 'nmm'; .*nnm"),
        ([{"name": "nnm", "k": 3}], "pre-aggregation 'nnm': unknown key 'k'"),
        ([{"f": 3}], "a pre-aggregation is a name or"),
        (7, "must be a list of pre-aggregations"),
        ([{"name": "bucketing", "s": 0}], "s: must be greater than or equal to 1, got 0"),
    ],
)
def test_mistakes_are_said_in_one_line(pre, message):
    with pytest.raises(ParameterError, match=message) as error:
        aggregators.create("median", pre=pre)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("aggregator 'median'")


def test_in_a_configuration():
    config = load_config({"aggregator": {"name": "krum", "f": 2, "pre": [{"name": "arc"}, "nnm"]}})
    assert config.plain()["aggregator"]["pre"] == [{"f": None, "name": "arc"}, {"f": None, "name": "nnm"}]
    again = load_config(config.plain())
    assert again.hash == config.hash
    written_out = load_config(
        {"aggregator": {"name": "krum", "f": 2, "pre": [{"name": "arc", "f": None}, "nnm"]}}
    )
    assert written_out.hash == config.hash
    swapped = load_config({"aggregator": {"name": "krum", "f": 2, "pre": ["nnm", "arc"]}})
    alone = load_config({"aggregator": {"name": "krum", "f": 2}})
    assert len({config.hash, swapped.hash, alone.hash}) == 3
    assert load_config({"aggregator": {"name": "krum", "f": 2, "pre": []}}).hash == alone.hash
    assert "pre" not in alone.aggregator


def test_where_updates_are_hidden_nothing_can_be_mixed():
    hidden = {"privacy": {"mode": "secure-aggregation"}}
    load_config({"aggregator": {"name": "fedavg"}, **hidden})
    with pytest.raises(ConfigError, match="'fedavg' needs to see updates in the clear"):
        load_config({"aggregator": {"name": "fedavg", "pre": ["nnm"]}, **hidden})


@pytest.mark.parametrize("name", ["caac", "caac-guard", "fldetector", "foolsgold"])
def test_a_rule_that_remembers_clients_refuses_rows_that_are_nobodys(name):
    with pytest.raises(
        ParameterError, match=f"aggregator '{name}' remembers clients, and bucketing before it"
    ):
        aggregators.create(name, pre=["nnm", "bucketing"])
    with pytest.raises(ParameterError, match="momentum remembers clients, and bucketing before it"):
        aggregators.create("mean", pre=["bucketing", "momentum"])
    aggregators.create("mean", pre=["momentum", "bucketing"])


def test_a_rule_with_profiles_declares_that_it_remembers():
    for name in aggregators.available():
        if not aggregators.registry.get(name).needs_practice_ground:
            rule = aggregators.create(name)
            assert rule.remembers_clients or rule.profile_table() is None, name


def test_too_few_clients_are_counted_before_the_pre_aggregation():
    rule = aggregators.create("krum", f=2, pre=[{"name": "bucketing", "s": 3}])
    assert rule.minimum_clients(30) == 19  # six buckets of three and one of one
    rule.check(19)
    with pytest.raises(
        TooFewClients, match="N ≥ 2f\\+3 = 7 with f=2 behind bucketing, that is 19 clients, got N=18"
    ):
        rule.check(18)
    assert aggregators.create("mean", pre=[{"name": "nnm", "f": 5}]).minimum_clients(9) == 6


def test_too_few_rows_left_skip_the_round(make_updates):
    rows = make_updates(20, 5).matrix
    rows[:4] = torch.nan
    out = aggregators.create("krum", f=2, pre=[{"name": "bucketing", "s": 3}]).aggregate(Updates(rows))
    assert "16 of 20 updates are well-formed" in out.skipped


def test_weights_of_mixtures_are_traced_to_those_who_are_in_them():
    rows = torch.tensor([[0.0], [1.0], [2.0], [50.0]])
    out = aggregators.create("krum", f=0, pre=[{"name": "nnm", "f": 2}]).aggregate(Updates(rows))
    assert out.weights.tolist() == [0.5, 0.5, 0, 0]  # the mixture (0, 1), or (1, 0)
    assert out.delta.item() == 0.5
    bucketed = aggregators.create("median", pre=["bucketing"]).aggregate(Updates(rows))
    assert bucketed.weights is None
    weights = (
        aggregators.create("fedavg", pre=["bucketing"])
        .aggregate(Updates(rows, num_samples=[1, 1, 1, 5]))
        .weights
    )
    assert weights.sum().item() == pytest.approx(1)
    alone = [i for i in range(4) if weights[i] == weights[3]]
    assert len(alone) == 2, "the two of a bucket share its weight"


def test_distances_and_sums_need_no_values_of_the_mixtures(monkeypatch, make_updates):
    """Behind nnm and bucketing, a rule that needs only the Gram matrix never has the mixtures computed.

    One that looks at coordinates has them computed block by block, and nobody has all of them.
    """
    computed = []
    original = mixing._reduce
    monkeypatch.setattr(mixing, "_reduce", lambda *args: computed.append(1) or original(*args))
    monkeypatch.setattr(mixing, "mix_rows", None)
    for name in ("krum", "multi-krum", "rfa", "mean", "fedavg", "fedmed"):
        for pre in (["nnm"], ["bucketing"], ["arc", "nnm"], ["nnm", "bucketing"]):
            params = {"f": 2} if "krum" in name else {}
            aggregators.create(name, **params, pre=pre).aggregate(make_updates(20, 40))
    assert not computed
    for count, name in enumerate(("median", "trimmed-mean", "meamed"), 1):
        aggregators.create(name, pre=["nnm"]).aggregate(make_updates(20, 40))
        assert len(computed) == count


def test_columns_of_the_pre_aggregation_are_on_record(make_updates):
    rows = make_updates(10, 5).matrix
    rows[0] *= 100
    out = aggregators.create("median", pre=[{"name": "arc", "f": 1}, "bucketing"]).aggregate(Updates(rows))
    assert set(out.columns) == {"arc_scale", "bucket"}
    assert out.columns["arc_scale"][0] < 0.1
    assert out.columns["arc_scale"].max() == 1


def test_warming_up_leaves_the_rule_as_it_was():
    rule = aggregators.create("mean", pre=["momentum"])
    rule.warm_up(5, 7)
    assert rule.state_dict()["pre"][0]["averages"] == {}


def test_a_state_of_another_pipeline_is_refused():
    rule = aggregators.create("mean", pre=["nnm"])
    with pytest.raises(ParameterError, match="the saved state is not one of this rule behind nnm"):
        rule.load_state_dict({})


def test_a_client_that_is_away_keeps_its_momentum():
    rule = aggregators.create("mean", pre=[{"name": "momentum", "beta": 0.5}])
    rule.aggregate(Updates(torch.tensor([[4.0], [0.0]]), ["a", "b"]))
    rule.aggregate(Updates(torch.tensor([[0.0]]), ["b"]))
    assert rule.aggregate(Updates(torch.tensor([[0.0]]), ["a"])).delta.item() == 2


def test_far_colluders_do_not_blur_the_distances_of_the_others():
    """Attackers a million times longer than the rest, in float32: the mixtures of the honest rows stay exact."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(12, 70_000, generator=generator)
    rows[9:] = 1e6 * torch.randn(1, 70_000, generator=generator)
    out = aggregators.create("krum", f=3, pre=["nnm"]).aggregate(Updates(rows))
    expected = aggregators.create("krum", f=3, pre=["nnm"]).aggregate(Updates(rows.double()))
    assert torch.equal(out.weights, expected.weights)
    torch.testing.assert_close(out.scores[:9], expected.scores[:9], rtol=1e-4, atol=0)
    clipped = aggregators.create("krum", f=3, pre=[{"name": "arc", "f": 3}]).aggregate(Updates(rows))
    exact = aggregators.create("krum", f=3, pre=[{"name": "arc", "f": 3}]).aggregate(Updates(rows.double()))
    torch.testing.assert_close(clipped.scores, exact.scores, rtol=1e-3, atol=0)
