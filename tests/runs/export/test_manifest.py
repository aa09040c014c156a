"""The manifest: a change to any file is noticed, and what is no manifest is refused in one line."""

import hashlib
import json

import pytest

from wardround.errors import DataError
from wardround.runs.export.manifest import FILES, MANIFEST, Manifest, check_files


def made(**changes):
    values = {
        "run": "a-run", "round": 3, "chosen": "best", "model": {"name": "mlp"}, "group_norm": False, "task": "binary",
        "class_names": ["no", "yes"], "input_shape": [2], "feature_names": ["a", "b"], "thresholds": {"yes": 0.3},
        "parameters": 9, "weights": "0" * 64,
        "files": {name: hashlib.sha256(name.encode()).hexdigest() for name in FILES}, "wardround": "0", "format": 1,
    }  # fmt: skip
    return {**values, **changes}


def test_it_comes_back_as_it_was():
    manifest = Manifest.from_bytes(json.dumps(made()).encode())
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.input_shape == (2,)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_and_a_missing_one_are_named(name):
    manifest = Manifest.from_bytes(json.dumps(made()).encode())
    contents = {file: file.encode() for file in FILES}
    check_files(manifest, contents, "model")
    with pytest.raises(DataError, match=f"model: {name} is not the file that was exported"):
        check_files(manifest, {**contents, name: b"other"}, "model")
    del contents[name]
    with pytest.raises(DataError, match=f"model: {name} is missing"):
        check_files(manifest, contents, "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "written in format 2; this version reads up to 1: upgrade wardround"),
        ({"format": None}, "written in format None"),
        ({"files": {"../../etc/passwd": "0" * 64}}, "is no file of a model"),
        ({"files": {}}, "no model.safetensors"),
        ({"round": "three"}, "round is 'three'"),
        ({"model": {}}, "the model has no name"),
        ({"class_names": "yes"}, "class_names is 'yes'"),
    ],
)
def test_what_is_no_manifest_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        Manifest.from_bytes(json.dumps(made(**changes)).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_bytes_that_are_none_are_refused(content):
    with pytest.raises(DataError, match=MANIFEST):
        Manifest.from_bytes(content)


def test_a_missing_entry_is_named():
    values = made()
    del values["weights"]
    with pytest.raises(DataError, match="no 'weights'"):
        Manifest.from_bytes(json.dumps(values).encode())
