"""The roster: who may use which name, who is refused and why, and what survives a restart."""

from types import SimpleNamespace

import pytest

import wardround
from wardround.flower.messages import Note
from wardround.flower.server.broker import Failure
from wardround.flower.server.roster import Roster

SHAPE = {"task": "binary", "class_names": ["no", "yes"], "input_shape": [6], "feature_names": ["age"]}


def hello(name="hospital-a", samples=100, **changes):
    own = {"versions": {"wardround": wardround.__version__}}
    return Note({"name": name, "samples": samples, **own, **SHAPE, **changes})


def node(number, key=b""):
    return SimpleNamespace(node_id=number, public_key=key)


@pytest.fixture
def events():
    return []


@pytest.fixture
def make(events):
    def make(**options):
        return Roster(lambda event, **fields: events.append({"event": event, **fields}), **options)

    return make


def test_an_admitted_hospital_is_known_by_name(make, events):
    roster = make()
    roster.admit("node:7", hello())
    assert roster.split_known([node(7), node(8)]) == ({"hospital-a": 7}, {"node:8": 8})
    assert roster.descriptions == {"hospital-a": {"samples": 100, **SHAPE}}
    assert events == [{"event": "joined", "client": "hospital-a", "node": "node:7", "samples": 100}]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (hello(name=None), "it said no name"),
        (hello(name=""), "it said no name"),
        (hello(name="a" * 81), "it said no name"),
        (hello(name="a\nb"), "it said no name"),
        (hello(name=["a"]), "it said no name"),
        (hello(samples=0), "it says it has 0 samples"),
        (hello(samples=-5), "it says it has -5 samples"),
        (hello(samples=True), "it says it has True samples"),
        (hello(samples="many"), "it says it has 'many' samples"),
        (Note({"name": "hospital-a", "samples": 1}), "it did not say what its data look like"),
        (hello(name="hospital-z"), "'hospital-z' is none of the 2 clients of the partition"),
        (hello(name="hospital-b"), "the name 'hospital-b' is another node's; federation.rebind lets it move"),
        (hello(task="multiclass"), "its data have other task than the federation's"),
        (hello(input_shape=[7]), "its data have other input shape than the federation's"),
        (hello(class_names=["yes", "no"]), "its data have other class names than the federation's"),
        (hello(feature_names=["sex"]), "its data have other feature names than the federation's"),
    ],
)
def test_who_is_refused_and_why(make, events, reply, reason):
    roster = make(known=("hospital-a", "hospital-b"))
    roster.shape = dict(SHAPE)
    roster.admit("node:2", hello("hospital-b"))
    roster.admit("node:7", reply)
    assert reason in roster.refused["node:7"]
    assert roster.names == {"node:2": "hospital-b"}
    assert list(roster.descriptions) == ["hospital-b"]
    assert events[-1]["event"] == "refused"
    assert events[-1]["reason"] == roster.refused["node:7"]
    assert roster.split_known([node(7)]) == ({}, {"node:7": 7}), "it may be asked again"
    roster.admit("node:7", reply)
    assert [event["event"] for event in events].count("refused") == 1, "the same reason is logged once"


def test_who_was_refused_may_fix_it(make, events):
    roster = make()
    roster.admit("node:7", hello(samples=0))
    roster.admit("node:7", hello(samples=-1))
    assert [event["event"] for event in events] == ["refused", "refused"], "another reason is news"
    roster.admit("node:7", hello())
    assert not roster.refused
    assert roster.names == {"node:7": "hospital-a"}
    assert events[-1]["event"] == "joined"


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"wardround": "0.0.9"}, "it runs wardround 0.0.9"),
        (None, "it runs wardround an older version"),
        (
            {"wardround": f"{wardround.__version__}.1"},
            f"it runs wardround {wardround.__version__}.1, the server",
        ),
        ({"wardround": wardround.__version__}, None),
    ],
)
def test_another_version_is_said(make, events, versions, words):
    make().admit("node:7", hello(versions=versions))
    said = [event["reason"] for event in events if event["event"] == "version-differs"]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


def test_a_version_that_agrees_again_is_said_once(make, events):
    roster = make()
    for version in ("0.0.9", "0.0.9", wardround.__version__, wardround.__version__):
        roster.admit("node:7", hello(versions={"wardround": version}))
    assert [event["event"] for event in events] == ["joined", "version-differs", "version-agrees"]
    again = make()
    again.load_state_dict(roster.state_dict())
    again.admit("node:7", hello(versions={"wardround": "0.0.9"}))
    assert events[-1]["event"] == "version-differs"


def test_a_property_that_the_federation_does_not_fix_may_differ(make):
    roster = make()
    roster.shape = {**SHAPE, "feature_names": []}
    roster.admit("node:7", hello(feature_names=["sex"]))
    assert not roster.refused


def test_a_failed_introduction_is_no_refusal(make, events):
    roster = make()
    roster.admit("node:7", Failure("it went offline"))
    assert events == [{"event": "not-introduced", "node": "node:7", "reason": "it went offline"}]
    assert roster.split_known([node(7)]) == ({}, {"node:7": 7}), "it is asked again"


def test_a_name_belongs_to_the_first_key_that_claims_it(make):
    roster = make()
    roster.admit("key:1", hello())
    roster.admit("key:2", hello())
    assert roster.names == {"key:1": "hospital-a"}
    assert "another node's" in roster.refused["key:2"]
    roster.admit("key:1", hello(samples=50))
    assert roster.descriptions["hospital-a"]["samples"] == 50, "its owner may introduce itself again"


def test_rebind_moves_a_name_to_another_key(make, events):
    roster = make(rebind=["hospital-a"])
    roster.admit("key:1", hello())
    roster.admit("key:3", hello("hospital-b"))
    roster.admit("key:2", hello(samples=50))
    roster.admit("key:4", hello("hospital-b"))
    assert roster.names == {"key:2": "hospital-a", "key:3": "hospital-b"}
    assert roster.descriptions["hospital-a"]["samples"] == 50
    assert list(roster.refused) == ["key:4"], "only the listed name may move"
    assert [event["node"] for event in events if event["event"] == "joined"] == ["key:1", "key:3", "key:2"]


def test_rebind_works_after_a_restart(make):
    first = make()
    first.admit("key:1", hello())
    for rebind, owner in ((), "key:1"), (["hospital-a"], "key:2"):
        second = make(rebind=rebind)
        second.load_state_dict(first.state_dict())
        second.admit("key:2", hello())
        assert second.names == {owner: "hospital-a"}


def test_a_replaced_key_cannot_take_its_name_back(make):
    roster = make(rebind=["hospital-a"])
    for identity in ("key:1", "key:2", "key:1"):
        roster.admit(identity, hello())
    assert roster.names == {"key:2": "hospital-a"}
    assert roster.refused == {
        "key:1": "the name 'hospital-a' has moved to another node, and does not move back"
    }
    restarted = make(rebind=["hospital-a"])
    restarted.load_state_dict(roster.state_dict())
    restarted.admit("key:1", hello())
    assert restarted.names == {"key:2": "hospital-a"}


@pytest.mark.parametrize(
    ("identity", "name", "reason"),
    [
        ("key:1", "hospital-a", None),
        ("key:1", "hospital-b", "but its key is registered as 'hospital-a' (the file hospital-a.pub)"),
        ("key:9", "hospital-a", "it says it is 'hospital-a', but its key is not registered"),
    ],
)
def test_a_registered_key_has_the_name_of_its_file(make, identity, name, reason):
    roster = make(registered={"key:1": "hospital-a", "key:2": "hospital-b"})
    roster.admit(identity, hello(name))
    if reason is None:
        assert roster.names == {identity: name}
    else:
        assert roster.names == {}
        assert reason in roster.refused[identity]


def test_unbound_names_belong_to_whoever_says_them(make):
    roster = make(bound=False)
    roster.admit("node:1", hello())
    roster.admit("node:2", hello())
    assert roster.names == {"node:2": "hospital-a"}


def test_a_key_is_known_on_any_connection(make):
    from wardround.flower.server.roster import identity_of

    roster = make()
    roster.admit(identity_of(node(7, b"key of a")), hello())
    assert roster.split_known([node(12, b"key of a")]) == ({"hospital-a": 12}, {})
    assert roster.split_known([node(7, b"key of b")])[0] == {}


def test_most_hospitals_decide_what_data_look_like(make, events):
    roster = make()
    for number, name in enumerate("abc"):
        roster.admit(f"node:{number}", hello(name, input_shape=[7] if name == "a" else [6]))
    roster.agree_on_shape()
    assert roster.shape == SHAPE
    assert roster.refused == {"node:0": "its data look different from those of most hospitals"}
    assert set(roster.descriptions) == set(roster.names.values()) == {"b", "c"}
    assert events[-1] == {
        "event": "refused",
        "node": "node:0",
        "client": "a",
        "reason": roster.refused["node:0"],
    }


def test_a_shape_that_is_fixed_stays(make):
    roster = make()
    roster.agree_on_shape()
    assert roster.shape is None, "nobody has said anything yet"
    roster.admit("node:0", hello("a"))
    roster.shape = {**SHAPE, "input_shape": [7]}
    roster.agree_on_shape()
    assert roster.shape["input_shape"] == [7]
    assert not roster.refused


def test_state_survives_a_restart(make):
    first, second = make(), make()
    first.admit("key:1", hello())
    first.agree_on_shape()
    second.load_state_dict(first.state_dict())
    assert second.split_known([node(3)]) == ({}, {"node:3": 3})
    assert (second.names, second.descriptions, second.shape) == (first.names, first.descriptions, SHAPE)


def test_the_state_of_an_older_checkpoint_is_read(make):
    roster = make()
    description = {"samples": 100, **SHAPE}
    roster.load_state_dict({"names": {"key:1": "a"}, "told": {"a": description}, "shape": SHAPE})
    assert roster.descriptions == {"a": description}


def test_unbound_names_are_not_saved(make):
    roster = make(bound=False)
    roster.admit("node:1", hello())
    state = roster.state_dict()
    assert state["names"] == {}
    assert list(state["descriptions"]) == ["hospital-a"]


def test_keys_that_are_replaced_revoked_and_registered_again(make):
    roster = make(registered={"key:1": "hospital-a", "key:2": "hospital-b"})
    for identity, name in (("key:1", "hospital-a"), ("key:2", "hospital-b")):
        roster.admit(identity, hello(name))
    assert roster.names == {"key:1": "hospital-a", "key:2": "hospital-b"}
    # A new key for hospital-a, no rebind and no restart needed: the folder of keys is the operator's word.
    roster.obey({"key:3": "hospital-a", "key:2": "hospital-b"})
    assert roster.names == {"key:2": "hospital-b"}
    roster.admit("key:1", hello("hospital-a"))
    assert "not registered" in roster.refused["key:1"]
    roster.admit("key:3", hello("hospital-a"))
    assert roster.names == {"key:2": "hospital-b", "key:3": "hospital-a"}
    # Revoked, and registered again.
    roster.obey({"key:3": "hospital-a"})
    assert roster.names == {"key:3": "hospital-a"}
    assert "key:2" in roster.replaced, "it is not asked for its name, as long as it is connected"
    roster.obey({"key:3": "hospital-a", "key:2": "hospital-b"})
    assert roster.refused == {}
    roster.admit("key:2", hello("hospital-b"))
    assert roster.names["key:2"] == "hospital-b"
