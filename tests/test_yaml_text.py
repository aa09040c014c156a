"""YAML that people write: a key that stands twice is an error, everything else is as usual."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wardround.yaml_text import dump_yaml, parse_own_yaml, parse_yaml

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("abc: #{}[]-\n\"'1.e", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcd", min_size=1), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(plain, st.booleans())
def test_what_has_no_key_twice_is_read_as_ever(values, flow):
    text = yaml.safe_dump(values, default_flow_style=flow)
    assert parse_yaml(text) == parse_own_yaml(text) == yaml.safe_load(text) == values


@given(plain)
def test_what_the_program_writes_any_program_reads(values):
    assert yaml.safe_load(dump_yaml(values)) == parse_own_yaml(dump_yaml(values)) == values


def test_keys_keep_their_order_and_words_their_letters():
    assert dump_yaml({"b": {"y": 1, "x": [1, "ü"]}, "a": None}) == "b:\n  y: 1\n  x:\n  - 1\n  - ü\na: null\n"


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("seed: 1\nrounds: 2\nseed: 1\n", "'seed' is given twice, in lines 1 and 3", 2),
        ("attack: {name: alie, fraction: 0.1, name: ipm}", "'name' is given twice, in lines 1 and 1", 0),
        ("a:\n  - b: 1\n    c: 2\n    b: 3\n", "'b' is given twice, in lines 2 and 4", 3),
        ("1: a\n0x1: b\n", "'1' is given twice", 1),
    ],
)
def test_a_key_that_stands_twice_is_an_error_that_says_where(text, problem, line):
    yaml.safe_load(text)  # where the last one wins, silently
    with pytest.raises(yaml.YAMLError) as caught:
        parse_yaml(text)
    assert problem in caught.value.problem
    assert caught.value.problem_mark.line == line


def test_anchors_and_merge_keys_work():
    text = "base: &base {lr: 1, rounds: 2}\none: {<<: *base, lr: 3}\nother: {<<: [*base, *base]}\n"
    assert parse_yaml(text) == yaml.safe_load(text)


def test_what_the_program_writes_is_read_without_yaml(monkeypatch):
    values = {
        "seed": 1,
        "model": {"hidden": [64, 32], "parts": [{"name": "none", "clients": []}]},
        "drift": None,
    }
    text = dump_yaml(values)
    load, asked = yaml.load, []
    monkeypatch.setattr(yaml, "load", lambda text, loader: asked.append(text) or load(text, loader))
    assert parse_own_yaml(text) == values
    assert all("\n" not in one for one in asked)  # single values at most


@pytest.mark.parametrize(
    "text",
    [
        "a: &x\n  b: 1\nc: *x\n",
        "a: |\n  two\n  lines\n",
        "a: folded\n  text\nb: 1\n",
        "- folded\n  text\n- b\n",
        "a:\n- - 1\n  - 2\n- - 3\n",
        "a:\nb: 1\n",
        "a: [1, {b: 2}]\n",
        "a: 1 # said\n\nb: 2\n",
        "yes: no\n1: 0x10\n",
        "---\na: 1\n",
        "a: -1.5e-3\nb: '-'\n",
    ],
)
def test_other_texts_are_read_as_yaml_reads_them(text):
    assert repr(parse_own_yaml(text)) == repr(yaml.safe_load(text))
