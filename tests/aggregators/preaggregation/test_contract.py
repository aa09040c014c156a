"""What every rule promises holds behind every pre-aggregation; and the values are those of the rows written out."""

import copy

import numpy as np
import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators import preaggregation
from wardround.errors import TooFewClients
from wardround.randomness import seed_for

RULES = [name for name in aggregators.available() if not aggregators.registry.get(name).needs_practice_ground]
PRE = {
    "nnm": [{"name": "nnm", "f": 3}],
    "bucketing": ["bucketing"],
    "clipping": [{"name": "clipping", "norm": 3.0}],
    "arc": [{"name": "arc", "f": 4}],
    "arc+nnm": [{"name": "arc", "f": 3}, {"name": "nnm", "f": 3}],
    "momentum+nnm": [{"name": "momentum", "beta": 0.5}, {"name": "nnm", "f": 3}],
    "nnm+momentum": [{"name": "nnm", "f": 3}, {"name": "momentum", "beta": 0.5}],
    "bucketing+nnm": ["bucketing", {"name": "nnm", "f": 3}],
}
N, D = 20, 40


def build(name, pre):
    """The composed rule, with f = 2 where it has one."""
    params = {"f": 2} if "f" in aggregators.registry.describe(name) else {}
    return aggregators.create(name, **params, pre=PRE[pre])


def goes_together(name, pre):
    """Not so: rules that remember clients behind rows that are nobody's, and Bulyan (N ≥ 4f+3) on ten buckets."""
    return "bucketing" not in pre or not (
        aggregators.registry.get(name).remembers_clients or name == "bulyan"
    )


COMPOSED = [(name, pre) for name in RULES for pre in PRE if goes_together(name, pre)]
ONCE = [(name, list(PRE)[i % len(PRE)]) for i, name in enumerate(RULES)]
ONCE = [(name, pre if goes_together(name, pre) else "momentum+nnm") for name, pre in ONCE]
"""Every rule behind one of them, in turn: for what has little to do with which one it is."""


def all_of(pairs, *more, fast=ONCE):
    """Every pair, each with the given values; those that are not among the fast are slow, since they are many."""
    return [
        pytest.param(*pair, *more, marks=() if pair in fast else pytest.mark.slow, id="-".join(pair))
        for pair in pairs
    ]


def aggregate(rule, updates, round=1):
    generator = torch.Generator().manual_seed(99)
    weights = torch.randn(updates.dimension, generator=generator)
    root = torch.randn(updates.dimension, generator=generator) + 0.5
    return rule.aggregate(updates, round=round, global_weights=weights, root_update=root)


def written_out(updates, step, round, averages):
    """A pre-aggregation in numpy on the rows themselves: another way to the same rows, names and sample counts."""
    rows, n = updates.matrix.double().numpy(), len(updates)
    step = {"name": step} if isinstance(step, str) else step
    clients, samples, metrics = updates.clients, updates.num_samples, updates.metrics
    if step["name"] == "nnm":
        distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        rows = np.stack([rows[np.argsort(line)[: n - step["f"]]].mean(0) for line in distances])
    elif step["name"] == "bucketing":
        drawn = sorted(range(n), key=lambda i: seed_for(0, "bucketing", round, clients[i]))
        buckets = [drawn[i : i + 2] for i in range(0, n, 2)]
        rows = np.stack([rows[bucket].mean(0) for bucket in buckets])
        samples = torch.stack([samples[bucket].mean() for bucket in buckets])
        metrics = {k: torch.stack([v[bucket].mean() for bucket in buckets]) for k, v in metrics.items()}
        clients = [f"b{i}" for i in range(len(buckets))]
    elif step["name"] in ("clipping", "arc"):
        norms = np.linalg.norm(rows, axis=1)
        kept = n - 1 - int(2 * step.get("f", 0) / n * (n - step.get("f", 0)) + 1e-9)
        bound = step.get("norm", np.sort(norms)[kept])
        rows = rows * np.minimum(1, bound / norms)[:, None]
    else:
        rows = np.stack(
            [
                row if client not in averages else step["beta"] * averages[client] + (1 - step["beta"]) * row
                for row, client in zip(rows, clients, strict=True)
            ]
        )
        averages |= dict(zip(clients, rows, strict=True))
    return Updates(torch.from_numpy(rows), clients, samples, metrics, updates.layout)


# These rank distances, and behind nnm many are equal: written out, rounding errors would rank them.
RANKING = ("dos", "meamed", "flame", "deepsight")
COMPARED = [(name, pre) for name, pre in COMPOSED if name not in RANKING or "nnm" not in pre]


@pytest.mark.parametrize(
    ("name", "pre", "dtype"),
    all_of(COMPARED, torch.float64, fast=())
    + all_of([pair for pair in COMPARED if pair in ONCE], torch.float32),
)
def test_the_result_is_the_rule_on_the_rows_written_out(name, pre, dtype, make_updates):
    composed, averages = build(name, pre), {}
    params = {"f": 2} if "f" in aggregators.registry.describe(name) else {}
    alone = aggregators.create(name, **params)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t, dtype=dtype)
        rows = updates
        for step in PRE[pre]:
            rows = written_out(rows, step, t, averages)
        expected, result = aggregate(alone, rows, t), aggregate(composed, updates, t)
        torch.testing.assert_close(result.delta.double(), expected.delta, rtol=tolerance, atol=tolerance)
        if composed.keeps_clients:
            for field in ("scores", "flags"):
                one, other = getattr(result, field), getattr(expected, field)
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)
        else:
            assert result.scores is None
            assert result.flags is None
        assert (result.weights is None) == (expected.weights is None)


# Of ten mixtures of buckets some values are equally far from the median: which of them counts is a tie.
WITHOUT_TIES = [pair for pair in COMPOSED if pair != ("meamed", "bucketing+nnm")]


@pytest.mark.parametrize(("name", "pre"), all_of(WITHOUT_TIES))
def test_permuting_clients_permutes_the_result(name, pre, make_updates):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5)).tolist()
    one, other = build(name, pre), build(name, pre)
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t)
        a, b = aggregate(one, updates, t), aggregate(other, updates.select(order), t)
        torch.testing.assert_close(a.delta, b.delta, rtol=1e-4, atol=1e-5)
        for field in ("weights", "scores", "flags"):
            value = getattr(a, field)
            assert (value is None) == (getattr(b, field) is None)
            if value is not None:
                torch.testing.assert_close(value[order], getattr(b, field), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "pre"), ONCE)
def test_input_is_left_unchanged_and_weights_are_shares(name, pre, make_updates):
    updates = make_updates(N, D)
    matrix = updates.matrix.clone()
    rule = build(name, pre)
    out = aggregate(rule, updates)
    if out.weights is not None:
        assert (out.weights >= 0).all()
        assert out.weights.sum().item() == pytest.approx(1, abs=1e-6)
    for values in (out.weights, out.scores, out.flags, *out.columns.values()):
        assert values is None or values.shape == (N,)
    out.delta.zero_()
    assert torch.equal(updates.matrix, matrix)


@pytest.mark.parametrize(("name", "pre"), all_of(COMPOSED))
def test_state_survives_save_and_load(name, pre, make_updates, tmp_path):
    straight, before = build(name, pre), build(name, pre)
    for t in (1, 2):
        aggregate(straight, make_updates(N, D, seed=t), t)
        aggregate(before, make_updates(N, D, seed=t), t)
    saved = before.state_dict()
    as_it_was = copy.deepcopy(saved)
    torch.save(saved, tmp_path / "state.pt")
    aggregate(before, make_updates(N, D, seed=9), 3)
    assert str(saved) == str(as_it_was), "what is saved does not change afterwards"
    resumed = build(name, pre)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for t in (3, 4):
        updates = make_updates(N, D, seed=t)
        assert torch.equal(aggregate(straight, updates, t).delta, aggregate(resumed, updates, t).delta)


@pytest.mark.parametrize(("name", "pre"), ONCE)
def test_a_malformed_row_is_dropped_and_named(name, pre, make_updates):
    rows = make_updates(N, D).matrix
    rows[7, 3] = torch.nan
    out = aggregate(build(name, pre), make_updates(N, D, matrix=rows))
    assert list(out.dropped) == ["client-07"]
    assert out.skipped is None
    assert torch.isfinite(out.delta).all()
    assert out.weights is None or out.weights[7] == 0


@pytest.mark.parametrize(("name", "pre"), ONCE)
def test_zero_rows_give_zero(name, pre, make_updates):
    rule = build(name, pre)
    for t in (1, 2):
        out = aggregate(rule, make_updates(N, D, matrix=torch.zeros(N, D)), t)
        assert torch.equal(out.delta, torch.zeros(D))
        assert out.weights is None or torch.isfinite(out.weights).all()


@pytest.mark.parametrize(("name", "pre"), all_of(COMPOSED, fast=ONCE[::4]))
def test_extreme_rounds(name, pre):
    """Whatever clients send, the result is finite or the round is skipped with a reason."""
    for case in range(5):
        rng = np.random.default_rng([case, len(name), len(pre)])
        n, d = int(rng.integers(1, 16)), int(rng.integers(1, 20))
        rule = build(name, pre)
        for t in (1, 2):
            rows = rng.normal(size=(n, d)) * rng.choice([0, 1e-45, 1e-30, 1.0, 1e10, 3e38], size=(n, 1))
            rows[rng.integers(n)] = rows[rng.integers(n)]
            with np.errstate(over="ignore"):
                rows = rows.astype(rng.choice(["float32", "float64"]))
            loss = rng.choice([0.0, 0.5, 1e300, np.nan, -1.0], size=n)
            sent = Updates(
                rows, num_samples=rng.choice([0.0, 1.0, 1e6, np.nan], size=n), metrics={"loss": loss}
            )
            try:
                out = aggregate(rule, sent, t)
            except TooFewClients:
                break
            assert torch.isfinite(out.delta).all(), (case, t)
            if out.weights is not None:
                assert torch.isfinite(out.weights).all()
                assert float(out.weights.sum()) == pytest.approx(1, abs=1e-6) or not out.weights.any()


@pytest.mark.parametrize("name", preaggregation.available())
def test_every_pre_aggregation_is_described(name):
    member = preaggregation.registry.get(name)
    assert member.__doc__.strip()
    assert "pre=" in member.__doc__, "an example that runs"
