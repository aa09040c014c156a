import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from wardround.threads import one_thread
from wardround.training import ClientData, ClientTask, Objective, TrainingParams, learning_rate
from wardround.training.base import batches, local_steps


def task_of(n, seed=0):
    return ClientTask("a", ClientData(torch.zeros(n, 1), torch.arange(n), torch.zeros(n)), seed)


def test_schedules():
    step = TrainingParams(lr=0.8, schedule="step", step_every=2, step_factor=0.5)
    assert [learning_rate(step, t, 6) for t in range(1, 7)] == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    cosine = TrainingParams(lr=2.0, schedule="cosine")
    assert learning_rate(cosine, 1, 10) == 2.0
    assert learning_rate(cosine, 6, 10) == pytest.approx(1.0)
    assert learning_rate(cosine, 10, 10) == pytest.approx(1 + math.cos(0.9 * math.pi))
    assert learning_rate(TrainingParams(lr=0.3), 7, 10) == 0.3


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 3))
def test_every_epoch_sees_every_sample_once(n, batch_size, epochs):
    seen = list(batches(task_of(n), batch_size, epochs))
    assert sorted(torch.cat(seen).tolist()) == sorted(list(range(n)) * epochs)
    assert all(1 <= len(batch) <= batch_size for batch in seen)


def test_a_last_batch_too_small_is_left_out_unless_it_is_all():
    assert [len(batch) for batch in batches(task_of(9), 4, 1, smallest=2)] == [4, 4]
    assert [len(batch) for batch in batches(task_of(1), 4, 1, smallest=2)] == [1]


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 20))
def test_steps_are_so_many_batches_of_as_many_epochs_as_they_take(n, batch_size, steps):
    seen = list(batches(task_of(n), batch_size, epochs=1, steps=steps))
    assert len(seen) == steps
    whole = list(batches(task_of(n), batch_size, epochs=steps))
    assert all(torch.equal(one, other) for one, other in zip(seen, whole, strict=False))


def test_losses_are_means():
    logits, classes = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 0.0]]), torch.tensor([1, 0])
    expected = -torch.log_softmax(logits, 1)[torch.arange(2), classes].mean()
    assert torch.isclose(Objective(True, torch.nn.Identity()).loss(logits, classes), expected)
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    expected = functional.softplus(torch.where(labels > 0, -logits, logits)).mean()
    assert torch.isclose(Objective(False, torch.nn.Identity()).loss(logits, labels), expected)


def test_client_data_must_fit():
    with pytest.raises(ValueError, match="3 rows need as many targets, got 2"):
        ClientData(torch.zeros(5, 1), torch.arange(3), torch.zeros(2))
    with pytest.raises(ValueError, match="without samples"):
        ClientData(torch.zeros(5, 1), torch.arange(0), torch.zeros(0))


def test_one_thread_is_given_back_after_an_error():
    before = torch.get_num_threads()

    def fail():
        with one_thread():
            raise KeyError(torch.get_num_threads())

    with pytest.raises(KeyError, match="1"):
        fail()
    assert torch.get_num_threads() == before


@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 3), st.booleans())
def test_local_steps_are_the_batches_that_an_engine_makes(samples, batch_size, epochs, batch_norm):
    data = ClientData(torch.zeros(samples, 1), torch.arange(samples), torch.zeros(samples))
    made = len(list(batches(ClientTask("a", data, 0), batch_size, epochs, 2 if batch_norm else 1)))
    params = TrainingParams(batch_size=batch_size, epochs=epochs)
    assert local_steps(params, samples, batch_norm) == max(1, made)
    assert local_steps(TrainingParams(steps=5), samples, batch_norm) == 5


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"optimizer": "adam"}, "needs optimizer sgd without momentum"),
        ({"momentum": 0.9}, "needs optimizer sgd without momentum"),
        ({"client_momentum": 0.9}, "scaffold and client_momentum exclude each other"),
    ],
)
def test_scaffold_is_refused_where_it_is_not_defined(other, said):
    with pytest.raises(ValueError, match=said):
        TrainingParams(**{"method": "scaffold", "optimizer": "sgd", **other})


def test_control_variates_is_another_way_to_write_scaffold():
    assert TrainingParams(optimizer="sgd", control_variates=True).method == "scaffold"
    assert TrainingParams(control_variates=False).method == "plain"
    with pytest.raises(ValueError, match="control_variates: false contradicts method: scaffold"):
        TrainingParams(optimizer="sgd", method="scaffold", control_variates=False)
    with pytest.raises(ValueError, match="control_variates: true or false, got 'yes'"):
        TrainingParams(optimizer="sgd", control_variates="yes")
