import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wardround.training import batch_plan
from wardround.training.batch_plan import BatchPlan, KeptBatchPlans

cases = (
    st.lists(st.integers(1, 40), min_size=1, max_size=8).map(lambda s: sorted(s, reverse=True)),
    st.integers(1, 10),
    st.integers(1, 3),
)


@given(*cases)
def test_every_client_meets_its_batches_in_its_own_order(sizes, batch_size, epochs):
    plan = BatchPlan.of(np.array(sizes), batch_size, epochs)
    met = [[] for _ in sizes]
    for number, step in enumerate(plan.steps):
        for client in range(step.clients):
            slots = slice(step.first + client * step.width, step.first + (client + 1) * step.width)
            real = plan.weight[slots] > 0
            batch = plan.position[slots][real].tolist()
            assert (plan.client[slots] == client).all()
            assert np.allclose(plan.weight[slots][real], 1 / len(batch))
            assert plan.batch_sizes[step.batch + client] == len(batch)
            # spare slots repeat a sample of the same batch, so they cannot bring in anything new
            assert set(plan.position[slots].tolist()) == set(batch), number
            met[client].append(batch)
    starts = np.cumsum(sizes) - sizes
    for client, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        expected = []
        for epoch in range(epochs):
            own = list(range(epoch * sum(sizes) + start, epoch * sum(sizes) + start + size))
            expected += [own[i : i + batch_size] for i in range(0, size, batch_size)]
        assert met[client] == expected


@given(*cases[:2], st.integers(1, 30))
def test_with_steps_every_client_takes_so_many_batches(sizes, batch_size, steps):
    plan = BatchPlan.of(np.array(sizes), batch_size, 1, steps)
    whole = BatchPlan.of(np.array(sizes), batch_size, steps)
    assert [step.clients for step in plan.steps] == [len(sizes)] * steps
    for client, size in enumerate(sizes):
        own = plan.position[(plan.client == client) & (plan.weight > 0)]
        more = whole.position[(whole.client == client) & (whole.weight > 0)]
        assert own.tolist() == more[: len(own)].tolist(), "the same batches as by epochs, only so many"
        assert plan.samples_seen()[client] == len(own)
        assert plan.epochs >= -(-steps // -(-size // batch_size))


@given(*cases)
def test_nothing_is_computed_for_clients_that_are_done(sizes, batch_size, epochs):
    plan = BatchPlan.of(np.array(sizes), batch_size, epochs)
    batches = [-(-size // batch_size) * epochs for size in sizes]
    assert [step.clients for step in plan.steps] == [sum(b > s for b in batches) for s in range(max(batches))]
    assert plan.steps[-1].last == len(plan.position)


@given(*cases, st.integers(1, 100))
def test_windows_are_all_steps_in_order(sizes, batch_size, epochs, slots):
    plan = BatchPlan.of(np.array(sizes), batch_size, epochs)
    windows = list(plan.windows(slots))
    assert [step for window in windows for step in window] == plan.steps
    assert all(len(w) == 1 or w[-1].last - w[0].first <= slots for w in windows)


def test_schedules_are_kept_within_bounds(monkeypatch):
    monkeypatch.setattr(batch_plan, "KEPT_SLOTS", 20)
    kept = KeptBatchPlans(batch_size=4, epochs=1)
    first = kept.of(np.array([8]))
    assert kept.of(np.array([8])) is first
    kept.of(np.array([7]))
    assert kept.of(np.array([8])) is first
    kept.of(np.array([8, 4]))
    assert kept.of(np.array([8])) is not first
    huge = kept.of(np.array([100]))
    assert len(huge.position) == 100
