"""Damage to a run folder: the same result or one clear error, never another result and never a raw exception."""

import json
import random
import shutil

import pytest
import torch
import yaml
from fast_cases import slow_but
from hypothesis import given
from hypothesis import strategies as st

import wardround
from wardround.analysis import analyze, load_runs
from wardround.errors import ConfigError, DataError, WardroundError, WardroundWarning
from wardround.experiments import load_config, run
from wardround.runs import folder as folder_module
from wardround.runs import runner
from wardround.runs.folder import RunFolder
from wardround.runs.integrity import add_hash, check_hash, missing_rounds, seal

CONFIG = {
    "name": "whole",
    "dataset": {"name": "synthetic", "samples": 300, "features": 5},
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [4]},
    "aggregator": {"name": "caac", "t_boot": 2},
    "attack": {"name": "sign-flip", "fraction": 0.4, "start": 2},
    "rounds": 6,
}
FILES = ("config.yaml", "rounds.jsonl", "clients.jsonl", "summary.json", "checkpoint.pt")


def results(folder):
    """What a run came to, without times and memory."""
    rounds = [
        {k: v for k, v in record.line().items() if k not in ("seconds", "memory_mb")}
        for record in folder.rounds()
    ]
    summary = folder.summary().plain()
    summary.pop("overhead")
    return json.dumps([rounds, [record.line() for record in folder.clients()], summary])


def figures(folder):
    """What the analysis says of a run."""
    plain = analyze(load_runs([folder.path])).plain()
    return json.dumps([{**measured, "run": None} for measured in plain["runs"]])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(load_config(CONFIG), tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Stopped after three of six rounds."""

    def interrupt(record):
        if record.round == 4:
            raise KeyboardInterrupt

    config, out = load_config(CONFIG), tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        run(config, out, interrupt)
    return RunFolder(out / config.run_name)


def copy_of(folder, tmp_path, number=0):
    target = tmp_path / str(number) / folder.path.name
    shutil.copytree(folder.path, target)
    return RunFolder(target)


def flip_bit(content, rng):
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def change_digit(content, rng):
    """Another digit in place of one: still a number, and valid in every format."""
    places = [i for i, byte in enumerate(content) if chr(byte) in "0123456789"]
    place = rng.choice(places)
    return content[:place] + str((int(chr(content[place])) + 1) % 10).encode() + content[place + 1 :]


def delete_lines(content, rng):
    lines = content.splitlines(keepends=True)
    first = rng.randrange(len(lines))
    return b"".join(lines[:first] + lines[first + rng.randint(1, 3) :])


def delete_first_lines(content, rng):
    return b"".join(content.splitlines(keepends=True)[rng.randint(1, 3) :])


def swap_lines(content, rng):
    lines = content.splitlines(keepends=True)
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


DAMAGES = {
    "a bit flipped": (flip_bit, 25),
    "a digit changed": (change_digit, 15),
    "cut short": (lambda content, rng: content[: rng.randrange(len(content))], 10),
    "lines deleted": (delete_lines, 10),
    "first lines deleted": (delete_first_lines, 3),
    "lines swapped": (swap_lines, 5),
    "a line twice": (lambda content, rng: content + content.splitlines(keepends=True)[-1], 1),
    "empty": (lambda content, rng: b"", 1),
    "zeros": (lambda content, rng: bytes(len(content)), 1),
    "garbage": (lambda content, rng: rng.randbytes(len(content)), 3),
    "garbage behind": (lambda content, rng: content + rng.randbytes(20), 3),
    "other JSON": (lambda content, rng: b'[1, {"round": "two"}, null]\n', 1),
    "gone": (None, 1),
}


def damaged(folder, name, kind, tmp_path, times=None):
    """Copies of the folder, in each of which one file is damaged in one way."""
    change, usual = DAMAGES[kind]
    rng = random.Random(f"{name} {kind}")
    for number in range(times or usual):
        copy = copy_of(folder, tmp_path, number)
        path = copy.path / name
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes(), rng))
        yield copy


def outcome_of(act):
    """What it returns, or the error of ours that it raises; anything else is a defect."""
    try:
        return act()
    except WardroundError as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_run_is_resumed_to_the_same_result_or_refused(finished, stopped, tmp_path, name, kind):
    expected = results(finished)
    for copy in damaged(stopped, name, kind, tmp_path):
        outcome = outcome_of(lambda copy=copy: results(run(load_config(CONFIG), copy.path.parent)))
        if isinstance(outcome, WardroundError):
            assert str(copy.path) in str(outcome)
            assert "\n" not in str(outcome)
        else:
            assert outcome == expected, (name, kind, copy.path)


@pytest.mark.parametrize(
    "kind", slow_but(["a digit changed", "cut short", "lines swapped", "empty"], DAMAGES)
)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_run_is_analysed_to_the_same_result_or_refused(finished, tmp_path, name, kind):
    expected = figures(finished)
    for copy in damaged(finished, name, kind, tmp_path):
        outcome = outcome_of(lambda copy=copy: figures(copy))
        if isinstance(outcome, WardroundError):
            assert "\n" not in str(outcome)
        else:
            assert outcome == expected, (name, kind, copy.path)


@pytest.mark.parametrize("name", ["rounds.jsonl", "clients.jsonl"])
def test_damaged_lines_of_an_unfinished_run_are_not_shown(stopped, tmp_path, name):
    stopped = copy_of(stopped, tmp_path, "killed")
    stopped.summary_path.unlink()  # as after SIGKILL
    (whole,) = load_runs([stopped.path])
    assert [record.round for record in whole.rounds] == [1, 2, 3, 4]
    for copy in damaged(stopped, name, "a digit changed", tmp_path, times=5):
        with pytest.raises(DataError, match=rf"{name}: damaged"):
            load_runs([copy.path])


def test_the_usual_damages_are_found_and_said(finished, stopped, tmp_path):
    """Without this, a check that refuses everything would pass the tests above; so would one that refuses nothing."""
    cut = copy_of(stopped, tmp_path, "cut")
    lines = cut.rounds_path.read_text().splitlines(keepends=True)
    cut.rounds_path.write_text("".join(lines[:1]))
    with pytest.raises(
        DataError, match=r"rounds\.jsonl: damaged, \d+ bytes where the run had written \d+; restore it"
    ):
        run(load_config(CONFIG), cut.path.parent)
    gap = copy_of(finished, tmp_path, "gap")
    lines = gap.rounds_path.read_text().splitlines(keepends=True)
    gap.rounds_path.write_text("".join(lines[:1] + lines[3:]))
    with pytest.raises(DataError, match=r"rounds\.jsonl: damaged"):
        load_runs([gap.path])
    flipped = copy_of(stopped, tmp_path, "flipped")
    content = bytearray(flipped.checkpoint_path.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.checkpoint_path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"checkpoint\.pt: damaged.*not those of its hash.*remove the folder"):
        run(load_config(CONFIG), flipped.path.parent)
    headless = copy_of(stopped, tmp_path, "headless")
    headless.checkpoint_path.unlink()
    with pytest.raises(DataError, match=r"checkpoint\.pt: missing, although rounds are finished"):
        run(load_config(CONFIG), headless.path.parent)
    nameless = copy_of(finished, tmp_path / "some", "a")
    copy_of(finished, tmp_path / "some", "b")
    nameless.config_path.unlink()
    with pytest.raises(DataError, match=r"a run without its config\.yaml"):
        load_runs([tmp_path / "some"])
    edited = copy_of(finished, tmp_path, "edited")
    edited.config_path.write_text(edited.config_path.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(DataError, match=r"config\.yaml: damaged or edited"):
        load_runs([edited.path])
    untold = copy_of(finished, tmp_path, "untold")
    untold.summary_path.write_text("{")
    with pytest.raises(DataError, match=r"summary\.json: damaged.*remove the file and run the same command"):
        run(load_config(CONFIG), untold.path.parent)
    untold.summary_path.unlink()  # and what the message says to do helps
    assert results(run(load_config(CONFIG), untold.path.parent)) == results(finished)


def test_lines_of_a_folder_without_hashes_are_checked_for_gaps(finished, tmp_path):
    """Folders of schema 2 have no hashes: what is missing or unreadable is found even so."""
    old = copy_of(finished, tmp_path)
    config = yaml.safe_load(old.config_path.read_text())
    config["record"] = {**config["record"], "schema": 2}
    del config["record"]["sha256"]
    old.config_path.write_text(yaml.safe_dump(config))
    summary = json.loads(old.summary_path.read_text())
    old.summary_path.write_text(
        json.dumps({k: v for k, v in summary.items() if k not in ("sha256", "files")} | {"schema": 2})
    )
    old.verify()
    lines = old.rounds_path.read_text().splitlines(keepends=True)
    old.rounds_path.write_text("".join(lines[:2] + lines[4:]))
    with pytest.raises(DataError, match=r"rounds\.jsonl: damaged, rounds 3 to 4 are missing"):
        load_runs([old.path])
    old.rounds_path.write_text("".join(lines[:-1]) + '{"round": 6}{\n')
    with pytest.raises(DataError, match=r"rounds\.jsonl: damaged, line 6 is not a record"):
        load_runs([old.path])


def test_a_checkpoint_without_a_hash_is_that_of_an_older_version(stopped, tmp_path):
    folder = copy_of(stopped, tmp_path)
    state = torch.load(folder.checkpoint_path, weights_only=True)
    torch.save(state, folder.checkpoint_path)
    with pytest.raises(DataError, match="its hash is missing"):
        folder.read_checkpoint()
    for key in ("schema", "files", "wardround"):
        del state[key]
    torch.save(state, folder.checkpoint_path)
    assert folder.read_checkpoint()["round"] == 4
    with pytest.warns(WardroundWarning, match="cannot be told whether it is undamaged"):
        assert folder.resume()["round"] == 4


def test_a_run_of_another_version_is_read_but_not_resumed(stopped, finished, tmp_path, monkeypatch):
    folder = copy_of(stopped, tmp_path)
    monkeypatch.setattr(wardround, "__version__", "9.9")
    match = r"begun by wardround .*, this is 9\.9: .*resume it with wardround .* or give another --out"
    with pytest.raises(ConfigError, match=match):
        run(load_config(CONFIG), folder.path.parent)
    assert folder.summary() is not None, "nothing was touched"
    with pytest.warns(WardroundWarning, match=r"its later rounds are computed by another version"):
        assert folder.resume(mix_versions=True)["round"] == 4
    assert figures(finished)


def test_lines_are_on_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    done = []

    def noting(name, real):
        return lambda path, *rest, **options: (done.append((name, path.name)), real(path, *rest, **options))[
            1
        ]

    for name in ("append_text", "sync_file", "replacing"):
        monkeypatch.setattr(folder_module, name, noting(name, getattr(folder_module, name)))
    monkeypatch.setattr(runner, "SIMULATION_SECONDS", 0.0)
    run(load_config({**CONFIG, "rounds": 2}), tmp_path)
    lines = ["clients.jsonl", "rounds.jsonl"]
    of_a_round = [("append_text", name) for name in lines] + [("sync_file", name) for name in lines]
    rounds = done[done.index(of_a_round[0]) :]
    assert rounds == [*of_a_round, ("replacing", "checkpoint.pt")] * 2


def test_a_checkpoint_is_still_an_archive_that_torch_reads(finished):
    assert check_hash(finished.checkpoint_path.read_bytes()) is True
    assert torch.load(finished.checkpoint_path, weights_only=True)["round"] == 6


def test_only_an_archive_gets_a_hash(tmp_path):
    (tmp_path / "file").write_bytes(b"some bytes that are no archive at all")
    with pytest.raises(ValueError, match="ZIP"):
        add_hash(tmp_path / "file")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), plain, max_size=4), st.data())
def test_a_seal_knows_values_and_not_their_order(values, data):
    values.pop("sha256", None)
    order = data.draw(st.permutations(list(values)))
    assert seal({key: values[key] for key in order}) == seal(json.loads(json.dumps(values)))
    if values:
        changed = data.draw(st.sampled_from(list(values)))
        assert seal({**values, changed: [values[changed]]}) != seal(values)


@given(st.integers(0, 12), st.sets(st.integers(1, 12)))
def test_every_missing_round_is_noticed(last, missing):
    numbers = [number for number in range(1, last + 1) if number not in missing]
    whole = numbers == list(range(1, last + 1))
    assert (missing_rounds(numbers, last) is None) == whole
    assert missing_rounds([*numbers, *numbers[:1]], last) is not None or not numbers
