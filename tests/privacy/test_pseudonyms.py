import json

import pytest
import torch

from wardround.errors import ConfigError
from wardround.experiments import load_config, run
from wardround.privacy.pseudonyms import Pseudonyms, from_key_file
from wardround.runs.runner import load_and_partition


def test_names_depend_on_the_key():
    one, other = Pseudonyms(b"one"), Pseudonyms(b"other")
    assert one("a") != other("a")
    assert len({one(f"hospital-{i}") for i in range(2000)}) == 2000


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "keys" / "names.key"
    first = from_key_file(path)
    assert from_key_file(path)("a") == first("a")
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", ["", "not hex", "abcd"])
def test_a_file_that_is_no_key_is_an_error(tmp_path, content):
    (tmp_path / "names.key").write_text(content)
    with pytest.raises(ConfigError, match=r"names\.key"):
        from_key_file(tmp_path / "names.key")


def test_a_run_with_pseudonyms_writes_no_clients_id_anywhere(tmp_path):
    key = tmp_path / "names.key"
    config = {
        "dataset": {"name": "synthetic", "samples": 300, "features": 6},
        "partition": {"name": "dirichlet", "clients": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "aggregator": {"name": "caac", "t_boot": 1},
        "attack": {"name": "sign-flip", "fraction": 0.2, "start": 2},
        "privacy": {"pseudonyms": str(key)},
        "rounds": 2,
    }
    folder = run(load_config(config), tmp_path / "runs")
    for path in folder.path.iterdir():
        if path.is_file():
            assert b"hospital-" not in path.read_bytes(), path.name
    name = from_key_file(key)
    ids = {name(f"hospital-0{i}") for i in range(5)}
    assert {line.client for line in folder.clients()} == ids
    rule = torch.load(folder.checkpoint_path, weights_only=True)["federation"]["rule"]
    assert set(rule["clients"]) == ids
    by_hand = {**config, "attack": {"name": "sign-flip", "clients": ["hospital-03"]}}
    attacked = run(load_config(by_hand), tmp_path / "by-hand")
    assert {line.client for line in attacked.clients() if line.byzantine} == {name("hospital-03")}
    assert json.loads(attacked.summary_path.read_text())["status"] == "finished"


def test_the_order_of_clients_says_nothing_about_them(tmp_path):
    """Two keys give the same clients two orders, each that of the names; a client keeps its own samples."""
    orders = []
    for key in ("a", "b"):
        config = {
            "dataset": {"name": "synthetic", "samples": 300, "features": 6},
            "partition": {"name": "dirichlet", "clients": 8},
            "model": {"name": "mlp", "hidden": [8]},
            "attack": {"name": "sign-flip", "fraction": 0.3, "start": 1},
            "privacy": {"pseudonyms": str(tmp_path / f"{key}.key")},
            "rounds": 1,
        }
        name = from_key_file(tmp_path / f"{key}.key")
        plain = load_and_partition(load_config({**config, "privacy": {}}))[1]
        hidden = load_and_partition(load_config(config))[1]
        assert hidden.clients == tuple(sorted(map(name, plain.clients)))
        for client, train, test in zip(plain.clients, plain.train, plain.test, strict=True):
            place = hidden.clients.index(name(client))
            assert (hidden.train[place] == train).all()
            assert (hidden.test[place] == test).all()
        folder = run(load_config(config), tmp_path / "runs")
        listed = [line.client for line in folder.clients()]
        record = folder.config()["record"]
        assert listed == sorted(listed) == list(record["clients"])
        assert record["attack"]["byzantine"] == sorted(record["attack"]["byzantine"])
        ids = {name(client): client for client in plain.clients}
        orders.append([ids[client] for client in listed])
    assert orders[0] != orders[1]
