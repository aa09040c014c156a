"""What every registered rule promises, whatever it computes."""

import copy

import numpy as np
import pytest
import torch
from fast_cases import slow_but
from outcome_parts import split_by_outcome

from wardround import Updates, aggregators
from wardround.errors import ParameterError, TooFewClients

# Rules that train or evaluate on the server's own data need a whole federation around them: tested there.
RULES = [name for name in aggregators.available() if not aggregators.registry.get(name).needs_practice_ground]
N, D = 20, 40
UNALTERED = {"lasa": {"sparsity": 0.0}, "flame": {"noise": 0.0}, "norm-clipping": {"noise": 0.0}}
"""With these parameters a rule neither thins out nor blurs what it has accepted."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


def aggregate(rule, updates, round=1, split=True):
    """Aggregate with everything that any rule may need beside the updates."""
    generator = torch.Generator().manual_seed(99)
    if rule.client_policy.by_outcome and split:
        updates = split_by_outcome(updates)
    return rule.aggregate(
        updates,
        round=round,
        global_weights=torch.randn(D, generator=generator),
        root_update=torch.randn(D, generator=generator) + 0.5,
    )


def assert_alike(a, b, tolerance=0.0):
    torch.testing.assert_close(a.delta, b.delta, rtol=tolerance, atol=tolerance)
    for name in ("weights", "scores", "flags"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_every_rule_of_the_field_is_there():
    expected = (
        "fedavg mean krum multi-krum bulyan median trimmed-mean rfa centered-clipping fltrust lasa dos fedmed "
        "fedprox fedbn caac caac-mag caac-dir caac-temp caac-mag+dir"
    )
    assert set(expected.split()) <= set(RULES)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_permuting_clients_permutes_the_result(name, dtype, make_updates, both_paths):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5)).tolist()
    one, other = aggregators.create(name), aggregators.create(name)
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t, dtype=dtype)
        a, b = aggregate(one, updates, t), aggregate(other, updates.select(order), t)
        for field in ("weights", "scores", "flags"):
            if getattr(a, field) is not None:
                setattr(a, field, getattr(a, field)[order])
        assert_alike(a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_input_is_left_unchanged(name, dtype, make_updates, both_paths):
    updates = make_updates(N, D, dtype=dtype)
    matrix, samples = updates.matrix.clone(), updates.num_samples.clone()
    loss = updates.metrics["loss"].clone()
    rule = aggregators.create(name)
    out = aggregate(rule, updates)
    out.delta.zero_()  # the result is the caller's: it must not be a view of the input
    assert torch.equal(updates.matrix, matrix)
    assert torch.equal(updates.num_samples, samples)
    assert torch.equal(updates.metrics["loss"], loss)


@pytest.mark.parametrize("name", RULES)
def test_a_caller_who_changes_the_delta_does_not_change_the_rule(name, make_updates):
    one, other = aggregators.create(name), aggregators.create(name)
    aggregate(one, make_updates(N, D, seed=1)).delta.mul_(100)
    aggregate(other, make_updates(N, D, seed=1))
    assert_alike(*(aggregate(rule, make_updates(N, D, seed=2), 2) for rule in (one, other)))


@pytest.mark.parametrize("name", RULES)
def test_state_survives_save_and_load_in_the_middle_of_a_run(name, make_updates, tmp_path):
    params = {"t_boot": 3} if "t_boot" in aggregators.registry.describe(name) else {}
    straight, before = aggregators.create(name, **params), aggregators.create(name, **params)
    for t in range(1, 5):
        aggregate(straight, make_updates(N, D, seed=t), t)
        aggregate(before, make_updates(N, D, seed=t), t)
    torch.save(before.state_dict(), tmp_path / "state.pt")
    resumed = aggregators.create(name, **params)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for t in range(5, 9):
        updates = make_updates(N, D, seed=t)
        assert_alike(aggregate(straight, updates, t), aggregate(resumed, updates, t))


@pytest.mark.parametrize("name", RULES)
def test_saved_state_does_not_change_afterwards(name, make_updates):
    rule = aggregators.create(name)
    aggregate(rule, make_updates(N, D, seed=1))
    saved = rule.state_dict()
    as_it_was = copy.deepcopy(saved)
    aggregate(rule, make_updates(N, D, seed=2), 2)
    assert same(as_it_was, saved)


def same(one, other):
    """Equal to the last bit, tensors inside mappings and lists included."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def malformed(kind):
    row = torch.full((D,), 0.5)
    match kind:
        case "nan":
            row[3] = torch.nan
        case "inf":
            row[3] = torch.inf
        case "short":
            row = row[:-1]
        case "long":
            row = torch.ones(D + 5)
        case "empty":
            row = torch.empty(0)
    return row


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", slow_but(["nan", "short"], ["nan", "inf", "short", "long", "empty"]))
def test_a_malformed_row_is_dropped_and_named(name, kind, make_updates):
    """The result is that of the others alone (with the same f: it counts who sent something)."""
    updates = make_updates(N, D)
    rows = list(updates.matrix)
    rows[7] = malformed(kind)
    sent = Updates(rows, updates.clients, updates.num_samples, updates.metrics)
    params = {"f": 4} if "f" in aggregators.registry.describe(name) else {}
    if name == "bulyan":
        params = {"f": 3}
    split = not isinstance(sent.matrix, list)
    out = aggregate(aggregators.create(name, **params), sent, split=split)
    others = [i for i in range(N) if i != 7]
    alone = aggregate(aggregators.create(name, **params), updates.select(others), split=split)
    assert list(out.dropped) == ["client-07"]
    assert out.skipped is None
    torch.testing.assert_close(out.delta, alone.delta, rtol=1e-6, atol=1e-6)
    if out.weights is not None:
        assert out.weights[7] == 0
        torch.testing.assert_close(out.weights[others], alone.weights)
    if out.flags is not None:
        assert out.flags[7]
    if out.scores is not None:
        assert out.scores[7].isnan()


@pytest.mark.parametrize("name", RULES)
def test_only_malformed_rows_skip_the_round(name, make_updates):
    updates = make_updates(N, D, matrix=torch.full((N, D), torch.nan))
    rule = aggregators.create(name)
    out = aggregate(rule, updates)
    assert out.skipped
    assert torch.equal(out.delta, torch.zeros(D))
    assert len(out.dropped) == N
    again = aggregate(rule, make_updates(N, D), 2)  # and training goes on
    assert again.skipped is None
    assert torch.isfinite(again.delta).all()


@pytest.mark.parametrize("name", RULES)
def test_equal_rows_agree_on_themselves(name, make_updates, both_paths):
    row = torch.linspace(-0.5, 1.0, D)
    updates = make_updates(N, D, matrix=row.repeat(N, 1), metrics={"loss": torch.full((N,), 0.7)})
    rule = aggregators.create(name, **UNALTERED.get(name, {}))
    for t in (1, 2, 3):
        out = aggregate(rule, updates, t)
        assert out.skipped is None
        if name == "fltrust":  # takes the direction from the clients and the length from the server
            cosine = torch.dot(out.delta, row) / (out.delta.norm() * row.norm())
            assert cosine == pytest.approx(1, abs=1e-6)
        else:
            torch.testing.assert_close(out.delta, row, rtol=1e-5, atol=1e-6)
        if out.weights is not None:
            assert out.weights.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_zero_rows_give_zero(name, make_updates, both_paths):
    rule = aggregators.create(name)
    for t in (1, 2, 3):
        out = aggregate(rule, make_updates(N, D, matrix=torch.zeros(N, D)), t)
        assert torch.equal(out.delta, torch.zeros(D))
        for values in (out.weights, out.scores, *out.columns.values()):
            assert values is None or torch.isfinite(values).all()


@pytest.mark.parametrize("name", RULES)
def test_weights_are_shares(name, make_updates):
    out = aggregate(aggregators.create(name), make_updates(N, D))
    if out.weights is not None:
        assert (out.weights >= 0).all()
        assert out.weights.sum().item() == pytest.approx(1, abs=1e-6)
    for values in (out.weights, out.scores, out.flags, *out.columns.values()):
        assert values is None or values.shape == (N,)


BY_SAMPLES = [
    "caac",
    "caac-dir",
    "caac-guard",
    "caac-mag",
    "caac-mag+dir",
    "caac-temp",
    "fedavg",
    "fedbn",
    "fedprox",
    "fldetector",
    "norm-clipping",
    "rfa",
]
"""Rules whose weights follow sample counts (those of the caac family while they bootstrap)."""
LEAVE_OUT = [
    "caf",
    "deepsight",
    "dnc",
    "flame",
    "fltrust",
    "foolsgold",
    "krum",
    "lasa",
    "mda",
    "monna",
    "multi-krum",
    "signguard",
    "smea",
]
"""Rules that may give a client no weight for its update alone."""


@pytest.mark.parametrize("name", RULES)
def test_a_client_without_a_sample_is_a_client_all_the_same(name, make_updates, both_paths):
    """It is not dropped, it breaks nothing, and where sample counts are weights it has none."""
    rule = aggregators.create(name)
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t)
        updates.num_samples[7] = 0
        out = aggregate(rule, updates, t)
        assert not out.dropped
        assert out.skipped is None
        assert torch.isfinite(out.delta).all()
        for values in (out.weights, out.scores, *out.columns.values()):
            assert values is None or torch.isfinite(values).all()
        if out.weights is not None:
            assert out.weights.sum().item() == pytest.approx(1, abs=1e-6)
            assert (out.weights[7] == 0) == (name in BY_SAMPLES) or name in LEAVE_OUT
    if name in ("fedavg", "fedbn", "fedprox"):
        others = updates.select([i for i in range(N) if i != 7])
        torch.testing.assert_close(out.delta, aggregate(rule, others).delta, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_where_nobody_has_a_sample_all_count_alike(name, make_updates):
    """The same result as if everyone had one."""
    none, one = aggregators.create(name), aggregators.create(name)
    for t in (1, 2, 3):
        updates = make_updates(N, D, seed=t, num_samples=torch.zeros(N))
        alike = make_updates(N, D, seed=t, num_samples=torch.ones(N))
        assert_alike(aggregate(none, updates, t), aggregate(one, alike, t), 1e-9)


@pytest.mark.parametrize("name", RULES)
def test_one_client_is_its_own_aggregate_or_too_few(name, make_updates, both_paths):
    updates = make_updates(1, D)
    rule = aggregators.create(name, **UNALTERED.get(name, {}))
    if rule.minimum_clients(1) > 1:
        with pytest.raises(TooFewClients, match="got N=1"):
            aggregate(rule, updates)
        return
    out = aggregate(rule, updates)
    if name != "fltrust":
        torch.testing.assert_close(out.delta, updates.matrix[0], rtol=1e-5, atol=1e-6)
    assert torch.isfinite(out.delta).all()


@pytest.mark.parametrize(
    ("name", "f", "least"),
    [("krum", 4, 11), ("multi-krum", 4, 11), ("bulyan", 4, 19), ("trimmed-mean", 4, 9)],
)
def test_too_few_clients_for_f_is_an_error_before_any_work(name, f, least, make_updates, monkeypatch):
    rule = aggregators.create(name, f=f)
    monkeypatch.setattr(type(rule), "combine", lambda *_: pytest.fail("work was done"))
    with pytest.raises(TooFewClients, match=rf"{name}: N ≥ \df\+\d = {least} with f=4, got N={least - 1}"):
        rule.check(least - 1)
    with pytest.raises(TooFewClients):
        aggregate(rule, make_updates(least - 1, D))
    rule.check(least)


@pytest.mark.parametrize("name", ["krum", "multi-krum", "bulyan", "trimmed-mean"])
def test_too_few_well_formed_rows_skip_the_round(name, make_updates):
    """The configuration is fine, this round is not: the model stays and the reason is on record."""
    updates = make_updates(19, D)
    updates.matrix[:12] = torch.nan
    out = aggregate(aggregators.create(name, f=4), updates)
    assert out.skipped.startswith("7 of 19 updates are well-formed")
    assert "with f=4" in out.skipped
    assert torch.equal(out.delta, torch.zeros(D))


@pytest.mark.parametrize("name", ["krum", "multi-krum", "bulyan", "trimmed-mean"])
def test_default_f_is_a_fifth_of_all_senders_and_on_record(name):
    rule = aggregators.create(name)
    assert rule.resolved(24)["f"] == 4
    assert rule.resolved(9)["f"] == 1
    assert aggregators.create(name, f=2).resolved(24)["f"] == 2


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_and_torch_input_are_the_same(name, dtype, make_updates):
    matrix = make_updates(N, D).matrix.numpy().astype(dtype)
    for_numpy = make_updates(N, D, matrix=matrix)
    for_torch = make_updates(N, D, matrix=torch.from_numpy(matrix.copy()))
    assert np.shares_memory(for_numpy.matrix.numpy(), matrix)
    a, b = (aggregate(aggregators.create(name), u) for u in (for_numpy, for_torch))
    assert_alike(a, b)
    assert a.delta.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("name", RULES)
def test_a_matrix_that_is_not_contiguous_is_as_good(name, make_updates):
    matrix = make_updates(N, D).matrix
    strided = matrix.T.contiguous().T
    a, b = (aggregate(aggregators.create(name), make_updates(N, D, matrix=m)) for m in (matrix, strided))
    assert_alike(a, b, 1e-5)


@pytest.mark.parametrize("name", RULES)
def test_both_paths_agree(name, make_updates, monkeypatch):
    pytest.importorskip("numba")
    updates = make_updates(N, D)
    fast = aggregate(aggregators.create(name), updates)
    monkeypatch.setattr("wardround.aggregators._math.compiled._loops", lambda: None)
    assert_alike(fast, aggregate(aggregators.create(name), make_updates(N, D)), 1e-5)


@pytest.mark.parametrize("name", RULES)
def test_unknown_parameters_are_named(name):
    with pytest.raises(ParameterError, match="unknown key 'nonsense'"):
        aggregators.create(name, nonsense=1)


@pytest.mark.parametrize("name", RULES)
def test_warming_up_leaves_the_rule_as_it_was(name, make_updates):
    warm, cold = aggregators.create(name), aggregators.create(name)
    warm.warm_up(N, D)
    assert_alike(*(aggregate(rule, make_updates(N, D)) for rule in (warm, cold)))


@pytest.mark.parametrize("name", RULES)
def test_threads_do_not_change_a_bit(name, make_updates, both_paths):
    clients, wide = 7, 66_000  # three ranges of columns
    generator = torch.Generator().manual_seed(3)
    extra = {
        "global_weights": torch.randn(wide, generator=generator),
        "root_update": torch.randn(wide, generator=generator) + 0.5,
    }
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            rule = aggregators.create(name)
            for t in (1, 2):
                out = rule.aggregate(make_updates(clients, wide, seed=t), t, **extra)
            results.append(out)
    finally:
        torch.set_num_threads(before)
    assert_alike(*results)
