"""`wardround.simulate`: the same run as the command line makes, on a user's own network and rows."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import wardround
from wardround.datasets.base import split_units
from wardround.errors import ConfigError, DataError, WardroundError, WardroundWarning
from wardround.federation.model_factory import build_model
from wardround.runs.config import load_config
from wardround.runs.export.writer import export_run
from wardround.runs.runner import load_dataset, run
from wardround.updates import Layout

CONFIG = {
    "dataset": {"name": "synthetic", "samples": 400},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [8]},
    "aggregator": {"name": "trimmed-mean", "f": 2},
    "attack": {"name": "sign-flip", "fraction": 0.34},
    "training": {"optimizer": "sgd", "lr": 0.1},
    "participation": 0.9,
    "rounds": 4,
    "seed": 3,
}


def simulate(*args, **kwargs):
    return wardround.simulate(*args, **{"rounds": 3, "progress": False, **kwargs})


def lines(folder):
    """Both files of records, without what a clock and the machine decide."""
    rounds = [json.loads(line) for line in folder.rounds_path.read_text().splitlines()]
    for line in rounds:
        line.pop("seconds"), line.pop("memory_mb")
    return rounds, folder.clients_path.read_bytes()


def weights_of(network):
    return Layout.of(network).flatten(network.state_dict())


def test_it_is_the_run_of_the_same_configuration(tmp_path):
    config = load_config({"name": "simulation", **CONFIG})
    folder = run(config, tmp_path / "cli")
    result = simulate(out=tmp_path / "python", **CONFIG)
    assert result.path.name == folder.path.name
    assert lines(result.folder) == lines(folder)
    assert torch.equal(weights_of(result.model), folder.read_checkpoint()["federation"]["weights"])
    assert result.metrics == {k: v for k, v in folder.summary().final.items() if k != "round"}


def test_a_network_of_ones_own_trains_as_one_by_name(tmp_path):
    """The same layers and initial weights as `mlp`, handed over as an object: the same bytes."""
    config = load_config(CONFIG)
    data = load_dataset(config)
    own = build_model(config.model, data.input_shape, data.task.value, 2, config.seed)
    by_name = simulate(**CONFIG)
    by_object = simulate(own, **{key: value for key, value in CONFIG.items() if key != "model"})
    assert lines(by_object.folder) == lines(by_name.folder)
    assert torch.equal(weights_of(by_object.model), weights_of(by_name.model))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result_and_another_another(hospitals, net):
    attack = {"name": "alie", "fraction": 0.2}
    first, again = (simulate(net, hospitals, aggregator="median", attack=attack, seed=5) for _ in range(2))
    other = simulate(net, hospitals, aggregator="median", attack=attack, seed=6)
    assert lines(first.folder) == lines(again.folder)
    assert torch.equal(weights_of(first.model), weights_of(again.model))
    assert not torch.equal(weights_of(first.model), weights_of(other.model))


def test_the_network_that_was_given_stays_as_it_was(hospitals, net):
    before, random_state = weights_of(net).clone(), torch.random.get_rng_state()
    assert net.training
    result = simulate(net, hospitals)
    assert torch.equal(weights_of(net), before)
    assert net.training
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert not result.model.training
    assert not torch.equal(weights_of(result.model), before)


def test_a_function_starts_from_the_seed(hospitals):
    def make():
        return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1))

    torch.manual_seed(1)
    first = simulate(make, hospitals)
    torch.manual_seed(2)
    again, other = simulate(make, hospitals), simulate(make, hospitals, seed=1)
    assert torch.equal(weights_of(first.model), weights_of(again.model))
    assert not torch.equal(weights_of(first.model), weights_of(other.model))
    models = [result.folder.config()["model"] for result in (first, again, other)]
    assert models[0] == models[1] == models[2], "seeds of one experiment, for who compares them"


def test_it_learns_and_its_records_say_who_attacked(hospitals):
    result = simulate(
        lambda: nn.Linear(5, 1),
        hospitals,
        aggregator="caac-guard",
        attack={"name": "sign-flip", "clients": ["hospital 1"]},
        training={"lr": 0.05},
        rounds=8,
    )
    assert result.metrics["auroc"] > 0.9
    assert len(result.rounds) == 8
    assert {record.client for record in result.clients if record.byzantine} == {"hospital 1"}
    assert set(result.clients["client"]) == set(hospitals)
    assert next(iter(result.flagged)) == "hospital 1"
    assert "hospital 1 in" in repr(result)
    assert "an attacker" in repr(result)
    assert "predicts '1' (not '0')" in repr(result)
    with torch.no_grad():
        logits = result.model(torch.tensor(hospitals["hospital 0"][0], dtype=torch.float32))
    assert logits.shape == (40, 1)


@pytest.mark.slow
def test_numpy_torch_pandas_and_lists_are_the_same(hospitals, net):
    pandas = pytest.importorskip("pandas")
    forms = [
        hospitals,
        {name: (torch.tensor(x), torch.tensor(y)) for name, (x, y) in hospitals.items()},
        {name: (pandas.DataFrame(x), pandas.Series(y)) for name, (x, y) in hospitals.items()},
        {name: (x.tolist(), y.tolist()) for name, (x, y) in hospitals.items()},
        {name: (x, y.astype(bool)[:, None]) for name, (x, y) in hospitals.items()},
    ]
    results = [simulate(net, form, rounds=1) for form in forms]
    assert all(torch.equal(weights_of(r.model), weights_of(results[0].model)) for r in results)
    assert len({r.path.name for r in results}) == 1, "one experiment"


@pytest.mark.slow
def test_labels_are_words_and_one_is_predicted(hospitals, net):
    words = {name: (x, np.where(y, "ill", "well")) for name, (x, y) in hospitals.items()}
    assert simulate(net, words, rounds=1).class_names == ["well", "ill"], "the words say which"
    assert simulate(net, words, rounds=1, positive="well").class_names == ["ill", "well"]
    sites = {name: (x, np.where(y, "north", "south")) for name, (x, y) in hospitals.items()}
    with pytest.warns(WardroundWarning, match="'south' is taken for the one to predict"):
        assert simulate(net, sites, rounds=1).class_names == ["north", "south"]
    numbers = simulate(net, hospitals, rounds=1)
    assert lines(simulate(net, words, rounds=1, positive="ill").folder) == lines(numbers.folder)
    with pytest.raises(ConfigError, match="positive='sick' must be one of two labels"):
        simulate(net, words, positive="sick")


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes_take_one_output_or_two(hospitals, outputs):
    result = simulate(lambda: nn.Linear(5, outputs), hospitals, training={"lr": 0.05}, rounds=5)
    assert result.metrics["auroc"] > 0.9


def test_pooled_rows_are_shared_out_by_a_partition(hospitals):
    x, y = (np.concatenate(parts) for parts in zip(*hospitals.values(), strict=True))
    result = simulate(lambda: nn.Linear(5, 1), dataset=(x, y), partition={"name": "iid", "clients": 4})
    assert set(result.clients["client"]) == {f"hospital-0{i}" for i in range(4)}


def test_several_findings(hospitals):
    findings = {name: (x, np.column_stack([y, 1 - y])) for name, (x, y) in hospitals.items()}
    result = simulate(lambda: nn.Linear(5, 2), findings)
    assert result.folder.config()["record"]["task"] == "multi-label"


def test_images_and_batch_norm():
    rng = np.random.default_rng(0)
    images = {name: (rng.normal(size=(30, 1, 8, 8)), rng.integers(0, 3, 30)) for name in "abc"}
    result = simulate(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)
        ),
        images,
        rounds=1,
    )
    assert result.class_names == ["0", "1", "2"]
    assert result.model[1].running_mean.abs().sum() > 0


def test_the_same_call_finds_the_run_again(hospitals, net, tmp_path):
    first = simulate(net, hospitals, out=tmp_path)
    written = first.folder.rounds_path.stat().st_mtime_ns
    again = simulate(net, hospitals, out=tmp_path)
    assert again.path == first.path
    assert again.folder.rounds_path.stat().st_mtime_ns == written
    assert torch.equal(weights_of(again.model), weights_of(first.model))
    changed = {**hospitals, "hospital 0": (hospitals["hospital 0"][0] + 1, hospitals["hospital 0"][1])}
    assert simulate(net, changed, out=tmp_path).path != first.path, "other rows are another run"


def test_no_row_is_written_down(hospitals, net):
    """The run folder holds a hash of the rows; a value of a patient is in none of its files."""
    marked = {name: (np.where(x == x.max(), 0.123456789, x), y) for name, (x, y) in hospitals.items()}
    result = simulate(net, marked)
    needle = np.float32(0.123456789)
    for file in result.path.iterdir():
        content = file.read_bytes()
        assert needle.tobytes() not in content
        assert b"0.12345678" not in content


def test_a_run_of_objects_cannot_be_repeated_without_them(hospitals, net, tmp_path):
    config = simulate(net, hospitals, out=tmp_path).folder.config()
    with pytest.raises(DataError, match="rows live in the Python program"):
        run(load_config({**config, "seed": 99}), tmp_path)
    with pytest.raises(ConfigError, match="network Net lives in the Python program"):
        run(load_config({**config, "dataset": {"name": "synthetic"}, "partition": {"name": "iid"}}), tmp_path)


def test_members_that_only_a_program_has_are_not_offered():
    assert "in-memory" not in wardround.datasets.available()
    assert "in-memory" not in wardround.models.available()


def test_the_report(hospitals, net, tmp_path):
    page = simulate(net, hospitals, attack={"name": "sign-flip", "fraction": 0.2}).report(tmp_path / "r.html")
    assert page == tmp_path / "r.html"
    assert "sign-flip" in page.read_text()


NET = nn.Linear(5, 1)
ROWS = np.ones((20, 5)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: simulate(NET, {}), "give at least one"),
        (lambda: simulate(NET, [ROWS]), "expected {'name': .X, y., …}, got list"),
        (lambda: simulate(NET, {"a": ROWS}, dataset="icu"), "clients or dataset, not both"),
        (lambda: simulate(NET, {"a": ROWS}, partition="iid"), "`clients` say who holds what"),
        (lambda: simulate(NET, {"a": ROWS}, aggregator="medain"), "did you mean 'median'"),
        (lambda: simulate(NET, {"a": ROWS}, aggregator=3), "aggregator: expected a name"),
        (lambda: simulate(NET, {"a": ROWS}, round=3), "unknown key 'round'|'round'"),
        (lambda: simulate(NET, {"a": ROWS}, rounds=0), "rounds"),
        (lambda: simulate(NET, dataset="icu", positive=1), "positive: goes with"),
        (lambda: simulate("mpl", {"a": ROWS}), "did you mean 'mlp'"),
        (lambda: simulate(nn.Linear(4, 1), {"a": ROWS}), "cannot take a batch of the shape .20, 5."),
        (
            lambda: simulate(nn.Linear(5, 3), {"a": ROWS}),
            "it has 3 outputs, but the labels 0, 1 need 1 output",
        ),
        (lambda: simulate(nn.Linear(5, 3), dataset="icu"), "cannot take a batch"),
    ],
)
def test_what_cannot_be_is_one_line(make, says):
    with pytest.raises(WardroundError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_unscaled_columns_are_said(hospitals, net):
    wide = {name: (x * [1, 1, 1, 5000, 1], y) for name, (x, y) in hospitals.items()}
    with pytest.warns(UserWarning, match="column 3 of X spreads by .*standardise"):
        simulate(net, wide, rounds=1)


def test_an_auroc_that_cannot_be_computed_says_why(net, tmp_path):
    """The only positive rows are training rows: no silent gap, and nothing that passes for chance."""
    x = np.random.default_rng(0).normal(size=(40, 5))
    y = np.zeros(40, int)
    y[split_units(np.arange(40), 0)[0][:5]] = 1
    result = simulate(net, {"a": (x, y), "b": (x, np.zeros(40))}, out=tmp_path)
    assert result.metrics["auroc"] is None
    assert "no AUROC: all 16 rows are of class '0'" in repr(result)
    analysis = wardround.analyze(result)
    assert analysis.runs["auroc"] == [None]
    assert analysis.runs["broken_rounds"] == [0]
    assert "No AUROC in 1 of 1 runs: all 16 rows are of class '0'" in analysis.markdown()
    assert result.report(tmp_path / "page.html").exists()


def test_clients_are_what_files_of_hospitals_are(hospitals, tmp_path):
    """The same rows as arrays, and as one CSV file per hospital without scaling: the same bytes."""
    rows = {name: (x.astype(np.float32), y) for name, (x, y) in hospitals.items()}
    for name, (x, y) in rows.items():
        lines = [
            ",".join([*map(repr, map(float, row)), str(int(label))]) for row, label in zip(x, y, strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,d,e,died", *lines]) + "\n")
    settings = {
        "model": {"name": "mlp", "hidden": [4]},
        "aggregator": {"name": "median"},
        "attack": {"name": "sign-flip", "fraction": 0.2},
        "partition": {"name": "natural", "min_size": 1},
        "rounds": 3,
        "seed": 2,
    }
    files = {name: str(tmp_path / f"{name}.csv") for name in rows}
    config = {**settings, "dataset": {"name": "csv", "files": files, "label": "died"}}
    from_files = run(load_config({**config, "preprocessing": {"scale": "none"}}), tmp_path / "runs")
    assert lines_of_clients(simulate(clients=rows, **settings).folder) == lines_of_clients(from_files)
    assert weights_match(simulate(clients=rows, **settings), from_files)


def lines_of_clients(folder):
    return folder.clients_path.read_bytes()


def weights_match(result, folder):
    return torch.equal(weights_of(result.model), folder.read_checkpoint()["federation"]["weights"])


@pytest.fixture
def raw_tables():
    """Frames with gaps, words and unscaled columns; one hospital lacks a column."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    tables = {}
    for number in range(4):
        age = rng.normal(65, 12, 90).round(1)
        frame = pandas.DataFrame(
            {"age": age, "sex": rng.choice(["f", "m"], 90), "lab": rng.normal(2e5, 5e4, 90)}
        )
        frame.loc[rng.random(90) < 0.1, "lab"] = np.nan
        tables[f"h{number}"] = (
            frame.drop(columns="lab") if number == 3 else frame,
            np.where(age + rng.normal(0, 8, 90) > 68, "died", "alive"),
        )
    return tables


def test_raw_tables_are_preprocessed_as_files_are(raw_tables, tmp_path):
    """As frames in memory, and as one CSV file per hospital: the same bytes, and the same input for new rows."""
    for name, (frame, y) in raw_tables.items():
        frame.assign(died=y).to_csv(tmp_path / f"{name}.csv", index=False)
    settings = {"model": "mlp", "aggregator": "median", "rounds": 3, "seed": 1}
    files = {name: str(tmp_path / f"{name}.csv") for name in raw_tables}
    section = {"name": "csv", "files": files, "label": "died", "categorical": ["sex"]}
    from_files = simulate(dataset=section, partition="natural", **settings)
    from_frames = simulate(clients=raw_tables, preprocessing={}, **settings)
    assert lines_of_clients(from_frames.folder) == lines_of_clients(from_files.folder)
    assert from_frames.preprocessing.feature_names == ("age", "lab", "sex=f", "sex=m")
    assert from_frames.class_names == from_files.class_names == ["alive", "died"]
    new = raw_tables["h0"][0]
    np.testing.assert_array_equal(from_frames.predict(new), from_files.predict(new))
    inputs = torch.from_numpy(from_files.preprocessing.transform({c: new[c].to_numpy() for c in new}))
    with torch.no_grad():
        expected = torch.sigmoid(from_files.model(inputs))[:, 0]
    np.testing.assert_array_equal(from_frames.predict(new), expected.numpy())


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_network_of_ones_own_on_raw_tables(raw_tables, outputs):
    result = simulate(
        lambda: nn.Linear(4, outputs), raw_tables, preprocessing={}, training={"lr": 0.05}, rounds=6
    )
    assert result.metrics["auroc"] > 0.75
    assert result.predict(raw_tables["h1"][0]).shape == (90,)
    with pytest.raises(ConfigError, match=r"cannot take a batch of the shape \(64, 4\)"):
        simulate(lambda: nn.Linear(3, 1), raw_tables, preprocessing={})
    frame, y = raw_tables["h0"]
    with pytest.raises(DataError, match="column 'age' holds words at 'h0' and numbers at 'h3'"):
        simulate("mlp", {**raw_tables, "h0": (frame.assign(age="old"), y)}, preprocessing={})


def test_probabilities_for_new_rows(hospitals):
    x = hospitals["hospital 0"][0]
    binary = simulate(lambda: nn.Linear(5, 1), hospitals)
    with torch.no_grad():
        logits = binary.model(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(binary.predict(x), torch.sigmoid(logits)[:, 0], rtol=1e-6)
    three = {name: (x, np.arange(len(x)) % 3) for name, (x, _) in hospitals.items()}
    shares = simulate(lambda: nn.Linear(5, 3), three).predict(x)
    assert shares.shape == (len(x), 3)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    with pytest.raises(DataError, match="NaN"):
        binary.predict(x * np.nan)


def test_the_model_is_exported_with_the_network_that_was_given(raw_tables, tmp_path):
    """Also after the user has gone on training the network that was handed over."""
    network = nn.Linear(4, 1)
    result = simulate(network, raw_tables, preprocessing={})
    with torch.no_grad():
        network.weight.zero_()
    folder = result.export(tmp_path / "model", onnx=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["feature_names"] == ["age", "lab", "sex=f", "sex=m"]
    assert (folder / "model.safetensors").exists()
    with pytest.raises(ConfigError, match="network Linear lives in the Python program"):
        export_run(result.folder, tmp_path / "again", onnx=False)
