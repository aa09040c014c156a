"""What every rule promises, kept by the rules that need the server's own side as well."""

import copy

import pytest
import torch

from wardround import Updates, aggregators
from wardround.aggregators._math import compiled

RULES = ["fedbnp", "fedbnp-sharp", "rl"]
N, D = 12, 40
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


@pytest.fixture
def create(brief):
    return lambda name: aggregators.create(name, **brief)


@pytest.fixture
def aggregate(make_server):
    def call(rule, updates, round=1, size=D):
        generator = torch.Generator().manual_seed(99)
        return rule.aggregate(
            updates,
            round=round,
            global_weights=torch.randn(size, generator=generator),
            practice_ground=make_server(size),
        )

    return call


def make_updates(seed=0, dtype=torch.float32, n=N, d=D):
    generator = torch.Generator().manual_seed(seed)
    return Updates(torch.randn(n, d, generator=generator).to(dtype) + 0.5)


def assert_alike(a, b, tolerance=0.0):
    for name in ("delta", "weights", "scores", "flags"):
        one, other = getattr(a, name), getattr(b, name)
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("named", [True, False])
def test_permuting_clients_permutes_the_result(name, dtype, named, create, aggregate):
    """With their names; and, in a first round, without: nothing but the order of rows has changed then."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5)).tolist()
    one, other = create(name), create(name)
    for t in (1, 2) if named else (1,):
        updates = make_updates(t, dtype)
        moved = updates.select(order) if named else Updates(updates.matrix[order])
        a, b = aggregate(one, updates, t), aggregate(other, moved, t)
        for field in ("weights", "scores", "flags"):
            setattr(a, field, getattr(a, field)[order])
        assert_alike(a, b, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_input_and_rule_are_the_callers_no_more(name, create, aggregate):
    updates = make_updates()
    before = updates.matrix.clone()
    one, other = create(name), create(name)
    out = aggregate(one, updates)
    assert out.weights.sum().item() == pytest.approx(1)
    out.delta.mul_(100)
    assert torch.equal(updates.matrix, before)
    aggregate(other, make_updates())
    assert_alike(*(aggregate(rule, make_updates(2), 2) for rule in (one, other)))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_state_survives_save_and_load_in_the_middle_of_a_run(name, create, aggregate, tmp_path):
    straight, before = create(name), create(name)
    for t in (1, 2):
        aggregate(straight, make_updates(t), t)
        aggregate(before, make_updates(t), t)
    saved = before.state_dict()
    as_it_was = copy.deepcopy(saved)
    torch.save(saved, tmp_path / "state.pt")
    aggregate(before, make_updates(7), 3)
    for key, value in as_it_was.items():
        same = torch.equal(value, saved[key]) if isinstance(value, torch.Tensor) else value == saved[key]
        assert same, key
    resumed = create(name)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for t in (3, 4):  # a time of practice lies between
        assert_alike(aggregate(straight, make_updates(t), t), aggregate(resumed, make_updates(t), t))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_fresh_rule_can_be_saved_too(name, create, aggregate):
    resumed = create(name)
    resumed.load_state_dict(create(name).state_dict())
    assert_alike(aggregate(resumed, make_updates()), aggregate(create(name), make_updates()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_malformed_row_is_dropped_and_named(name, create, aggregate):
    updates = make_updates()
    rows = list(updates.matrix.clone())
    rows[7] = torch.full((D,), torch.nan)
    out = aggregate(create(name), Updates(rows, updates.clients))
    others = [i for i in range(N) if i != 7]
    alone = aggregate(create(name), updates.select(others))
    assert list(out.dropped) == ["client-07"]
    assert out.weights[7] == 0
    assert out.flags[7]
    assert out.scores[7].isnan()
    torch.testing.assert_close(out.weights[others], alone.weights)
    torch.testing.assert_close(out.delta, alone.delta)
    nothing = aggregate(create(name), Updates(torch.full((N, D), torch.nan)))
    assert nothing.skipped
    assert not nothing.delta.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n", [1, 2, N])
def test_equal_rows_agree_on_themselves_and_zero_rows_give_zero(name, n, create, aggregate):
    row, rule = torch.linspace(-0.5, 1.0, D), create(name)
    out = aggregate(rule, Updates(row.repeat(n, 1)))
    torch.testing.assert_close(out.delta, row, rtol=1e-5, atol=1e-6)
    out = aggregate(rule, Updates(torch.zeros(n, D)), 2)
    assert torch.equal(out.delta, torch.zeros(D))
    for values in (out.weights, out.scores, *out.columns.values()):
        assert torch.isfinite(values).all()
        assert values.shape == (n,)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_numpy_strides_and_compiled_loops_change_nothing(name, create, aggregate, monkeypatch):
    matrix = make_updates().matrix
    plain = aggregate(create(name), Updates(matrix))
    assert_alike(plain, aggregate(create(name), Updates(matrix.numpy().copy())))
    assert_alike(plain, aggregate(create(name), Updates(matrix.T.contiguous().T)), 1e-5)
    monkeypatch.setattr(compiled, "_loops", lambda: None)
    assert_alike(plain, aggregate(create(name), Updates(matrix)), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_warming_up_leaves_the_rule_as_it_was(name, create, aggregate):
    warm = create(name)
    warm.warm_up(N, D)
    assert_alike(aggregate(warm, make_updates()), aggregate(create(name), make_updates()))


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_threads_do_not_change_a_bit(name, create, aggregate):
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            rule = create(name)
            for t in (1, 2):
                out = aggregate(rule, make_updates(t, n=5, d=66_000), t, size=66_000)
            results.append(out)
    finally:
        torch.set_num_threads(before)
    assert_alike(*results)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_client_without_a_sample_is_a_client_all_the_same(name, create, aggregate):
    updates, rule = make_updates(1), create(name)
    updates.num_samples[3] = 0
    out = aggregate(rule, updates)
    assert not out.dropped
    assert out.skipped is None
    assert torch.isfinite(out.delta).all()
    assert out.weights.sum().item() == pytest.approx(1)
    assert min(rule.detector.sizes) >= 1, "made-up hospitals have samples"
    assert all(torch.isfinite(values).all() for values in (out.scores, *out.columns.values()))
    nobody = Updates(updates.matrix, num_samples=torch.zeros(N))
    assert torch.equal(
        aggregate(create(name), nobody).weights, aggregate(create(name), Updates(updates.matrix)).weights
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_extreme_rounds(name, create, make_server):
    """Rows of any magnitude, malformed ones among them: a finite result, or a round that is skipped with a reason."""
    for case in range(40):
        generator = torch.Generator().manual_seed(case)
        size, clients = 10, 6 + case % 4
        rule, server = create(name), make_server(size)
        scales = torch.tensor([0.0, 1e-42, 1e-30, 1e-3, 1.0, 1e10, 1e37])
        rows = torch.randn(clients, size, generator=generator)
        rows *= scales[torch.randint(len(scales), (clients, 1), generator=generator)]
        if case % 3 == 0:
            rows[0, 0] = torch.nan
        if case % 4 == 0:
            rows[1] = rows[2]
        counts = [1e308 if case % 5 == 0 else 10.0, *[5.0] * (clients - 1)]
        weights = torch.zeros(size)
        result = rule.aggregate(
            Updates(rows, num_samples=counts), 1, global_weights=weights, practice_ground=server
        )
        assert bool(torch.isfinite(result.delta).all()), (name, case)
        assert bool(torch.isfinite(result.weights).all()), (name, case)
        assert float(result.weights.sum()) == pytest.approx(1, abs=1e-6) or result.skipped, (name, case)
