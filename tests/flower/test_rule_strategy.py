"""Rules as strategies of other people's apps: the same results as elsewhere, and no reply stops the run."""

import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from wardround import Updates, aggregators
from wardround.errors import WardroundError
from wardround.flower import strategy
from wardround.flower.inline_grid import InlineGrid

START = {"w": np.zeros((2, 2), np.float32), "b": np.ones(1, np.float32), "counter": np.array(7)}


def record(**arrays):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def reply_of(node, arrays=None, metrics=None):
    """Node n moves every weight by n."""
    moved = {"w": START["w"] + node, "b": START["b"] + node, "counter": np.array(9)}
    content = RecordDict({"arrays": record(**(moved if arrays is None else arrays))})
    content["metrics"] = MetricRecord({"num-examples": 10, "loss": 0.5} if metrics is None else metrics)
    return content


def rounds(rule, contents, grid_nodes=6, count=1, **params):
    """Drive a strategy by hand over made-up replies; contents: node → RecordDict, Error or None."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        content = contents[context.node_id]
        if isinstance(content, Exception):
            raise content
        return Message(content, reply_to=message)

    chosen, arrays = strategy(rule, **params), record(**START)
    grid = InlineGrid(app, grid_nodes)
    for number in range(1, count + 1):
        orders = chosen.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, metrics = chosen.aggregate_train(number, grid.send_and_receive(orders))
    return chosen, arrays, metrics


def honest(nodes=6):
    return {node: reply_of(node) for node in range(2, 2 + nodes)}


@pytest.mark.parametrize("rule", ["fedavg", "median", "krum", "caac", "dos", "rfa", "trimmed-mean", "fedmed"])
def test_a_rule_does_what_it_does_elsewhere(rule):
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    sent = {
        node: reply_of(0, {"w": row[:4].view(2, 2).numpy(), "b": 1 + row[4:].numpy(), "counter": np.array(9)})
        for node, row in zip(range(2, 8), rows, strict=True)
    }
    _, arrays, _ = rounds(rule, sent)
    names = [f"node-{node}" for node in range(2, 8)]
    sent = Updates(rows, names, [10.0] * 6, {"loss": [0.5] * 6})
    start = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])
    expected = aggregators.create(rule).aggregate(sent, 1, start).delta
    np.testing.assert_allclose(arrays["w"].numpy().reshape(-1), expected[:4], atol=1e-5)
    np.testing.assert_allclose(arrays["b"].numpy(), 1 + expected[4:], atol=1e-5)
    assert arrays["counter"].numpy() == 7, "integers are not averaged"
    assert arrays["w"].numpy().dtype == np.float32
    assert list(arrays) == ["w", "b", "counter"]


def nonsense():
    moved = {"w": START["w"] + 1, "b": START["b"] + 1, "counter": np.array(9)}
    two = reply_of(3)
    two["more"] = record(w=START["w"])
    bare = RecordDict({"arrays": record(**moved)})
    return {
        "nan": (reply_of(3, {**moved, "w": START["w"] * np.nan}), "not finite"),
        "shape": (reply_of(3, {**moved, "w": np.ones((4,), np.float32)}), "no update"),
        "key": (reply_of(3, {"w": moved["w"]}), "no update"),
        "words": (reply_of(3, {**moved, "w": np.full((2, 2), "a")}), "no update"),
        "two records": (two, "no update"),
        "nothing": (RecordDict(), "no update"),
        "no metrics": (bare, "no sample count"),
        "other metric": (reply_of(3, metrics={"n": 3}), "no sample count"),
        "list": (reply_of(3, metrics={"num-examples": [1, 2]}), "no sample count"),
        "huge count": (reply_of(3, metrics={"num-examples": 10**15}), "1000 times"),
        "endless count": (reply_of(3, metrics={"num-examples": 1e308}), "sample count"),
        "nan count": (reply_of(3, metrics={"num-examples": math.nan}), "no sample count"),
        "negative count": (reply_of(3, metrics={"num-examples": -1}), "sample count -1"),
    }


@pytest.mark.parametrize("rule", ["fedavg", "median", "caac"])
@pytest.mark.parametrize("kind", nonsense())
def test_nonsense_costs_its_row(rule, kind):
    sent, reason = nonsense()[kind]
    chosen, arrays, metrics = rounds(rule, {**honest(), 3: sent}, count=2)
    assert np.isfinite(arrays["w"].numpy()).all()
    lines = [line for line in chosen.history if line["client"] == "node-3"]
    assert len(lines) == 2
    assert all(reason in line["dropped"] for line in lines)
    assert metrics["loss"] == pytest.approx(0.5)
    others = {line["client"] for line in chosen.history if line["dropped"] is None}
    assert others == {f"node-{node}" for node in (2, 4, 5, 6, 7)}


def test_errors_and_second_answers_are_nobodys():
    chosen = strategy("fedavg")
    grid = InlineGrid(ClientApp(), 3)
    orders = list(chosen.configure_train(1, record(**START), ConfigRecord(), grid))
    grid.push_messages(orders)
    twice = [Message(reply_of(2), reply_to=orders[0]), Message(reply_of(9), reply_to=orders[0])]
    failed = Message(Error(2, "it broke"), reply_to=orders[1])
    arrays, _ = chosen.aggregate_train(1, [failed, *twice])
    assert arrays["b"].numpy() == 3
    assert [line["client"] for line in chosen.history] == ["node-2"]
    assert chosen.aggregate_train(2, [failed]) == (None, None)
    assert chosen.aggregate_train(2, []) == (None, None)


def test_too_few_answers_leave_the_model_as_it_was():
    chosen, arrays, _ = rounds("krum", honest(3), grid_nodes=3, f=1)
    assert arrays["w"].numpy().tolist() == START["w"].tolist()
    assert len(chosen.history) == 3


def test_evaluation_is_a_bounded_mean():
    chosen = strategy("median")
    grid = InlineGrid(ClientApp(), 4)
    orders = list(chosen.configure_evaluate(1, record(**START), ConfigRecord(), grid))
    grid.push_messages(orders)
    reports = [{"num-examples": 10, "auroc": 0.8}, {"num-examples": 30, "auroc": 0.4}, {"auroc": 9.0}]
    replies = [
        Message(RecordDict({"metrics": MetricRecord(t)}), reply_to=o)
        for t, o in zip(reports, orders, strict=False)
    ]
    replies.append(Message(RecordDict(), reply_to=orders[3]))
    assert chosen.aggregate_evaluate(1, replies)["auroc"] == pytest.approx(0.5)
    assert chosen.aggregate_evaluate(1, []) is None


def test_root_data_come_through_a_function():
    def root(round, arrays):
        return record(**{name: array.numpy() + (name != "counter") for name, array in arrays.items()})

    _, arrays, _ = rounds("fltrust", {**honest(), 3: reply_of(-3)}, root_fn=root)
    assert arrays["b"].numpy() == pytest.approx(2.0)


def test_state_goes_over_a_restart():
    first, _, _ = rounds("caac", honest(), count=3)
    second = strategy("caac")
    second.load_state_dict(first.state_dict())
    assert str(second.state_dict()) == str(first.state_dict())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strategy("kaac"), "did you mean 'caac'"),
        (lambda: strategy("caac", t_bot=1), "did you mean 't_boot'"),
        (lambda: strategy("fltrust"), "root_fn"),
        (lambda: strategy("fedbn"), "more than a strategy"),
        (lambda: strategy("fedavg", fraction_train=2), "between 0 and 1"),
    ],
)
def test_a_strategy_that_cannot_be_is_one_line(make, message):
    with pytest.raises(WardroundError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_fedprox_tells_clients_its_mu():
    chosen, grid = strategy("fedprox", mu=0.1), InlineGrid(ClientApp(), 2)
    orders = list(chosen.configure_train(1, record(**START), ConfigRecord(), grid))
    assert orders[0].content["config"]["proximal-mu"] == pytest.approx(0.1)


def test_it_starts_with_whoever_is_there():
    chosen = strategy("fedavg", min_available_nodes=5, wait_seconds=0, fraction_train=0.5)
    assert (
        len(list(chosen.configure_train(1, record(**START), ConfigRecord(), InlineGrid(ClientApp(), 4)))) == 2
    )
