"""The detector as a whole, on a server whose data can be made by hand."""

import pickle

import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators.fedbnp import Detector, DetectorParams
from wardround.errors import DataError, ParameterError

SIZE = 30


def aggregate(rule, server, updates, t=1):
    return rule.aggregate(updates, t, global_weights=torch.zeros(SIZE), practice_ground=server)


@pytest.mark.slow
def test_attackers_like_the_planted_ones_are_found(make_server, make_round):
    server = make_server()
    rule = aggregators.create("fedbnp-sharp", practice_groups=3, practice_draws=2, practice_clients=8)
    out = aggregate(rule, server, make_round())
    assert out.flags.tolist() == [False] * 12 + [True] * 4
    assert out.weights[12:].sum() < 0.1
    assert out.scores[12:].min() > out.scores[:12].max()
    assert out.columns["attention"][:12].min() > out.columns["attention"][12:].max()
    assert {"vae_error", "cosine", "peer_cosine", "norm", "sign_consistency", "shapley"} < out.columns.keys()


@pytest.mark.slow
def test_the_documents_trust_squeezes_and_the_verdict_does_not(make_server, make_round, brief):
    document, sharp = aggregators.create("fedbnp", **brief), aggregators.create("fedbnp-sharp", **brief)
    a, b = (aggregate(rule, make_server(), make_round()) for rule in (document, sharp))
    assert torch.equal(a.flags, b.flags)
    assert torch.equal(a.scores, b.scores)
    mixed = 0.6 * a.columns["attention"] + 0.4 * a.columns["policy"]
    torch.testing.assert_close(a.weights, torch.sigmoid(mixed) / torch.sigmoid(mixed).sum())
    torch.testing.assert_close(b.weights, mixed / mixed.sum())
    assert a.weights.max() / a.weights.min() < 0.7311 / 0.5 + 1e-3
    named = aggregators.create("fedbnp", trust="sharp", **brief)
    assert torch.equal(aggregate(named, make_server(), make_round()).weights, b.weights)


@pytest.mark.slow
def test_rl_weighs_by_the_policy_alone(make_server, make_round, brief):
    out = aggregate(aggregators.create("rl", **brief), make_server(), make_round())
    torch.testing.assert_close(out.weights, out.columns["policy"] / out.columns["policy"].sum())
    assert torch.equal(out.flags, out.columns["policy"] < 0.5)
    assert "attention" not in out.columns


@pytest.mark.slow
def test_cost_is_reported_and_bounded(make_server, brief):
    rows = torch.linspace(-1, 1, SIZE) + torch.randn(20, SIZE, generator=torch.Generator().manual_seed(0))
    server, rule = make_server(), aggregators.create("fedbnp", **brief)
    for t in (1, 2):  # both with practice
        aggregate(rule, server, Updates(rows), t)
    before = server.evaluated
    out = aggregate(rule, server, Updates(rows), 3)
    assert out.columns["evaluations"].tolist() == [server.evaluated - before] * 20
    assert server.evaluated - before <= 150


@pytest.mark.slow
def test_practice_is_rare(make_server, make_round, brief):
    server, rule = make_server(), aggregators.create("fedbnp", **brief)
    asked = []
    server.root_updates = lambda *where: asked.append(where[0]) or make_server.root_updates(server, *where)
    for t in range(1, 7):
        aggregate(rule, server, make_round(seed=t), t)
    assert set(asked) == {1, 2, 4}, "the first, one after half of three rounds, then every three"


@pytest.mark.parametrize("name", ["fedbnp", "fedbnp-sharp", "rl"])
def test_without_the_servers_side_it_says_what_is_missing(name, make_round):
    with pytest.raises(ParameterError, match=rf"{name} needs practice_ground"):
        aggregators.create(name).aggregate(make_round(), global_weights=torch.zeros(SIZE))


@pytest.mark.slow
def test_a_server_that_cannot_train_skips_the_round_and_goes_on(make_server, make_round, brief):
    server, rule = make_server(), aggregators.create("fedbnp", **brief)
    server.root_updates = lambda round, count, *_: torch.full((count, SIZE), torch.nan)
    out = aggregate(rule, server, make_round())
    assert "not finite" in out.skipped
    assert torch.equal(out.delta, torch.zeros(SIZE))
    assert aggregate(rule, make_server(), make_round(), 2).skipped is None


@pytest.mark.slow
def test_a_root_update_that_is_not_finite_is_replaced_by_the_median(make_server, make_round, brief):
    server, rule = make_server(), aggregators.create("fedbnp", **brief)
    server.reference = lambda round, group=None, draw=0: (
        server.direction * (torch.nan if group is None else 1)
    )
    updates = make_round()
    out = aggregate(rule, server, updates)
    middle = updates.matrix.quantile(0.5, dim=0)
    cosine = torch.cosine_similarity(updates.matrix.double(), middle.double()[None])
    torch.testing.assert_close(out.columns["cosine"], cosine, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_enormous_rows_do_no_harm(make_server, make_round, brief):
    updates = make_round()
    updates.matrix[12:] = 1e18
    out = aggregate(aggregators.create("fedbnp-sharp", **brief), make_server(), updates)
    for values in (out.weights, out.scores, *out.columns.values()):
        assert torch.isfinite(values).all()


@pytest.mark.slow
def test_long_updates_are_projected_for_the_autoencoder(make_server, make_round, brief):
    rule = aggregators.create("fedbnp", vae_max_dim=16, **brief)
    assert aggregate(rule, make_server(), make_round()).skipped is None
    assert rule.detector.vae.inputs == 16
    assert rule.state_dict()["vae.body.0.weight"].shape == (128, 16)


@pytest.mark.slow
def test_a_saved_detector_gives_the_same_opinions(make_server, make_round, brief, tmp_path):
    def opinion(detector, t):
        server = make_server()
        return detector.examine(make_round(seed=t), t, torch.zeros(SIZE), server.direction, server)

    detector = Detector(DetectorParams(**brief))
    for t in (1, 2):
        opinion(detector, t)
    detector.save(tmp_path / "detector.pt")
    again = Detector(DetectorParams(**brief))
    again.load(tmp_path / "detector.pt")
    for t in (3, 4):  # with a time of practice between them
        one, other = opinion(detector, t), opinion(again, t)
        assert torch.equal(one.attention, other.attention)
        assert torch.equal(one.policy, other.policy)
        assert torch.equal(one.features, other.features)


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_file_that_would_run_code_is_refused_and_not_run(tmp_path):
    trace = tmp_path / "trace"
    torch.save({"rounds": Harm(str(trace))}, tmp_path / "harm.pt")
    with pytest.raises(DataError, match="not a saved detector"):
        Detector().load(tmp_path / "harm.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Harm(str(trace))))
    with pytest.raises(DataError, match="not a saved detector"):
        Detector().load(tmp_path / "plain.pt")
    assert not trace.exists()


def test_other_files_are_refused_in_one_line(tmp_path):
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"rounds": 1}, tmp_path / "half.pt")
    for name, message in (
        ("list.pt", "it holds a list"),
        ("half.pt", "not the state"),
        ("no.pt", "No such file"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            Detector().load(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_detector_of_other_parameters_does_not_fit(make_server, make_round, brief, tmp_path):
    rule = aggregators.create("fedbnp", **brief)
    aggregate(rule, make_server(), make_round())
    other = aggregators.create("fedbnp", **brief, vae_max_dim=8)
    with pytest.raises(DataError, match="with these parameters"):
        other.load_state_dict(rule.state_dict())
