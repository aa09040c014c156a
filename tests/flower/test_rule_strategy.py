"""Rules as strategies of other people's apps: the same results as elsewhere, and no reply stops the run."""

import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from wardround import Updates, aggregators
from wardround.analysis import analyze, load_runs
from wardround.errors import WardroundError
from wardround.flower import strategy
from wardround.flower.inline_grid import InlineGrid
from wardround.live.feed import Feed
from wardround.report.page import write_page
from wardround.runs.folder import RunFolder

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


def hospital_app(broken=(), names=True):
    """Twelve hospitals that agree, but for node 5, which sends the opposite, ten times as long."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        if context.node_id in broken:
            raise RuntimeError("its disk is full")
        rng = np.random.default_rng([context.node_id, message.content["config"]["server-round"]])
        step = -10.0 if context.node_id == 5 else 1.0
        moved = {
            name: array.numpy() + step * (0.1 + 0.01 * rng.normal(size=array.numpy().shape))
            for name, array in message.content["arrays"].items()
        }
        content = reply_of(0, {name: value.astype("float32") for name, value in moved.items()})
        if names:
            content["about"] = ConfigRecord({"name": f"Klinik {context.node_id}"})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        auroc = 1 - 0.5 / message.content["config"]["server-round"]
        metrics = MetricRecord({"num-examples": 10, "eval_auc": auroc, "eval_loss": 0.5})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def start(tmp_path, app, rounds=4, **params):
    chosen = strategy("caac", t_boot=1, run_folder=tmp_path / "runs" / "app", **params)
    begin = record(w=START["w"], b=START["b"])
    return chosen, chosen.start(InlineGrid(app, 12), begin, num_rounds=rounds)


@pytest.fixture
def flower_log(caplog):
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_the_log_says_who_was_flagged_and_why(tmp_path, flower_log):
    chosen, _ = start(tmp_path, hospital_app())
    said = [entry.getMessage() for entry in flower_log.records]
    flagged = [line for line in said if "flagged Klinik 5" in line]
    assert flagged, said
    assert "score" in flagged[-1]
    assert "the others" in flagged[-1], "what stands out"
    lines = [line for line in chosen.history if line["flag"]]
    assert {line["client"] for line in lines} == {"Klinik 5"}
    assert {line["node"] for line in lines} == {5}
    assert all("score" in line["why"] for line in lines)
    assert chosen.history[0]["node"] in range(2, 14)


def test_a_rule_without_flags_says_whom_it_gave_no_weight(flower_log):
    rounds("krum", honest())
    assert any("next to no weight for node-" in entry.getMessage() for entry in flower_log.records)


def test_the_run_folder_is_one_of_ours(tmp_path):
    chosen, result = start(tmp_path, hospital_app())
    (run,) = load_runs([tmp_path / "runs"])
    assert run.finished
    assert run.method == "caac"
    assert [number for number, _ in run.curve] == [1, 2, 3, 4]
    assert run.final("auroc") == pytest.approx(result.evaluate_metrics_clientapp[4]["eval_auc"])
    assert run.rounds[3].per_client["Klinik 5"]["auroc"] == pytest.approx(0.875)
    assert {one.client for one in run.clients if one.flag} == {"Klinik 5"}
    assert len(run.clients) == 48
    assert [one.weight for one in run.clients] == [line["weight"] for line in chosen.history]
    assert run.record["clients"]["Klinik 7"] == [10]
    assert run.config["aggregator"]["t_boot"] == 1
    page = write_page([run], tmp_path / "page.html", "app").read_text()
    assert "Klinik 5" in page
    assert "1 finished run." in analyze([run]).markdown()
    feed = Feed([tmp_path / "runs"])
    feed.poll()
    (shown,) = feed.runs.values()
    assert shown.describe()["round"] == 4
    assert shown.describe()["clients"] == 12


def test_the_servers_own_evaluation_counts_more(tmp_path):
    chosen = strategy("median", run_folder=tmp_path / "app")
    begin = record(w=START["w"], b=START["b"])
    chosen.start(
        InlineGrid(hospital_app(), 12), begin, num_rounds=2,
        evaluate_fn=lambda number, arrays: MetricRecord({"auroc": 0.25 * number}),
    )  # fmt: skip
    folder = RunFolder(tmp_path / "app")
    assert [line.metrics for line in folder.rounds()] == [{"auroc": 0.25}, {"auroc": 0.5}]
    assert folder.summary().auroc == 0.5


def test_an_app_that_measures_no_auroc_has_none(tmp_path):
    chosen = strategy("median", fraction_evaluate=0.0, run_folder=tmp_path / "app")
    chosen.start(InlineGrid(hospital_app(), 12), record(w=START["w"], b=START["b"]), num_rounds=2)
    (run,) = load_runs([tmp_path / "app"])
    assert run.final("auroc") is None
    assert run.curve == []
    assert run.broken_rounds == 0
    assert run.why_no_auroc == "no round was evaluated"


def test_who_does_not_answer_is_recorded(tmp_path, flower_log):
    chosen, _ = start(tmp_path, hospital_app(broken={7}), rounds=2, node_names={7: "Klinik Süd"})
    folder = RunFolder(tmp_path / "runs" / "app")
    absent = [one for one in folder.clients() if one.status == "absent"]
    assert [one.client for one in absent] == ["Klinik Süd"] * 2
    assert "its disk is full" in absent[0].reason
    assert folder.rounds()[0].left_out["Klinik Süd"].status == "absent"
    assert any("without Klinik Süd (absent" in entry.getMessage() for entry in flower_log.records)
    assert all(line["client"] != "Klinik Süd" for line in chosen.history)


def test_a_round_without_any_answer_is_in_the_record(tmp_path):
    start(tmp_path, hospital_app(broken=set(range(2, 14))), rounds=2)
    folder = RunFolder(tmp_path / "runs" / "app")
    assert [line.skipped for line in folder.rounds()] == ["no node replied"] * 2
    assert len(folder.rounds()[0].left_out) == 12
    assert analyze(load_runs([folder.path])).measured


def test_a_crash_leaves_a_failed_run(tmp_path):
    def breaks(number, arrays):
        if number == 2:
            raise RuntimeError("no more memory")

    chosen = strategy("median", run_folder=tmp_path / "app")
    with pytest.raises(RuntimeError):
        chosen.start(InlineGrid(hospital_app(), 12), record(w=START["w"]), num_rounds=3, evaluate_fn=breaks)
    summary = RunFolder(tmp_path / "app").summary()
    assert (summary.status, summary.rounds) == ("failed", 2)
    assert "no more memory" in summary.reason


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path):
    start(tmp_path, hospital_app(), rounds=1)
    with pytest.raises(WardroundError, match="holds a run already; give another one"):
        start(tmp_path, hospital_app())


def test_the_rule_knows_nodes_by_their_ids_alone(tmp_path):
    """A name is a node's own word; what a rule remembers of a client must not move with it."""
    named, _ = start(tmp_path / "a", hospital_app())
    plain, _ = start(tmp_path / "b", hospital_app(names=False))
    assert str(named.state_dict()) == str(plain.state_dict())
    assert [line["weight"] for line in named.history] == [line["weight"] for line in plain.history]
    assert "Klinik" not in str(named.state_dict())
