"""Names of nodes: their own word, never another's."""

import logging

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from wardround.errors import ConfigError
from wardround.flower.node_names import NodeNames


def saying(name, key="name"):
    return RecordDict({"metrics": MetricRecord({"n": 1}), "about": ConfigRecord({key: name})})


def test_a_node_is_called_what_it_says():
    names = NodeNames(None, "hospital")
    assert names[3] == "node-3"
    assert 3 not in names
    names.learn(3, saying("St. Mary's", "hospital"))
    names.learn(4, saying("ignored", "name"))
    names.learn(5, RecordDict())
    assert [names[node] for node in (3, 4, 5)] == ["St. Mary's", "node-4", "node-5"]


def test_a_name_belongs_to_whom_said_it_first(caplog):
    names = NodeNames(None, "name")
    with caplog.at_level(logging.WARNING, "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        for _ in range(3):
            names.learn(3, saying("Charité"))
            names.learn(4, saying("Charité"))
            names.learn(3, saying("Köln"))
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert (names[3], names[4]) == ("Charité", "node-4")
    said = [record.getMessage() for record in caplog.records]
    assert sum("node-4 says that it is 'Charité', but so does node-3" in line for line in said) >= 1
    assert len(set(said)) == 2, "each said once"


@pytest.mark.parametrize("name", ["node-9", "", "  ", "x" * 81, "a\nb", 7, b"x", ["x"]])
def test_what_is_no_name_is_not_taken(name):
    names = NodeNames(None, "name")
    names.learn(3, saying(name))
    assert names[3] == "node-3"


def test_the_operators_list_counts_first():
    names = NodeNames({3: "Charité"}, "name")
    names.learn(3, saying("Köln"))
    names.learn(4, saying("Charité"))
    assert (names[3], names[4]) == ("Charité", "node-4")


@pytest.mark.parametrize("given", [{"3": "Köln"}, {3: ""}, {3: "node-4"}, {3: "Köln", 4: "Köln"}])
def test_a_list_that_cannot_be(given):
    with pytest.raises(ConfigError, match="node_names"):
        NodeNames(given, "name")
