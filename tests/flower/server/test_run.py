"""A federation's run folder, as the server keeps it."""

import shutil

import pytest
import torch
from tests.flower.server.former import make_former

from wardround.errors import WardroundError, WardroundWarning
from wardround.runs.audit import verify


def test_a_federations_run_folder_is_its_owners_alone(open_umask, mode_of, town):
    folder = town(rounds=1).run()
    assert mode_of(folder.path) == 0o700


class Stopped(Exception):
    """The operator stops the server in the middle of a run."""


@pytest.mark.slow
def test_a_copy_of_the_run_folder_is_a_backup(town, tmp_path):
    """What is copied while the server is stopped goes on elsewhere as if nothing had happened."""
    whole = town(rounds=4)
    expected = whole.run().read_checkpoint()["federation"]["weights"]
    shutil.rmtree(whole.out)

    def stop_after_two(record):
        if record.round == 2:
            raise Stopped

    first = town(rounds=4)
    with pytest.raises(Stopped):
        first.run(stop_after_two)
    backup = tmp_path / "backup"
    shutil.copytree(first.folder.path, backup)
    shutil.rmtree(first.out)
    restored = town(rounds=4)
    shutil.copytree(backup, restored.folder.path)
    folder = restored.run()
    assert [record.round for record in folder.rounds()] == [1, 2, 3, 4]
    assert torch.equal(folder.read_checkpoint()["federation"]["weights"], expected)
    assert verify(folder.path / "audit.jsonl") > 0, "the chain goes on"


@pytest.fixture
def stopped(town):
    """A federation that was stopped after its second round of four, with one hospital in quarantine."""

    def stop_after_two(record):
        if record.round == 2:
            raise Stopped

    def stop():
        first = town(rounds=4, aggregator={"name": "caac"})
        with pytest.raises(Stopped):
            first.run(stop_after_two)
        return first

    return stop


@pytest.mark.slow
@pytest.mark.parametrize("schema", [1, 2])
def test_a_federation_goes_on_where_an_earlier_version_stopped(stopped, town, schema):
    """With the same result as if it had never been stopped; of version 0.1 under the name that is looked for now."""
    expected = town(rounds=4, aggregator={"name": "caac"})
    weights = expected.run().read_checkpoint()["federation"]["weights"]
    names = {line.client for line in expected.folder.clients()}
    shutil.rmtree(expected.out)
    first = stopped()
    legacy = first.out / first.config.run.legacy_run_name
    former = make_former(first.folder, schema, legacy if schema == 1 else None)
    assert former.rounds()[-1].round == 2
    with pytest.warns(WardroundWarning) as said:
        folder = first.run()
    words = " ".join(str(one.message) for one in said)
    assert "of an older schema, without a hash" in words
    assert ("begun by version 0.1; resumed as small-" in words) == (schema == 1)
    assert [one.name for one in first.out.iterdir()] == [folder.path.name], "one run, one folder"
    assert [record.round for record in folder.rounds()] == [1, 2, 3, 4]
    assert {line.client for line in folder.clients() if line.round > 2} == names
    assert torch.equal(folder.read_checkpoint()["federation"]["weights"], weights)
    assert folder.config()["record"]["schema"] == 3
    assert [event["round"] for event in first.audit() if event["event"] == "run-resumed"] == [2]
    assert verify(folder.path / "audit.jsonl") > 0
    folder.verify()


def test_a_run_of_version_0_1_with_other_defaults_is_not_begun_anew_in_silence(stopped):
    first = stopped()
    name, other = first.folder.path.name, first.out / "small-0123456789"
    make_former(first.folder, 1, other)
    with pytest.raises(
        WardroundError, match=f"begun by version 0.1, .*rename it to {name} to resume it"
    ) as problem:
        first.run()
    assert "\n" not in str(problem.value)
    assert [one.name for one in first.out.iterdir()] == [other.name], "nothing was begun"
    other.rename(first.out / name)
    with pytest.warns(WardroundWarning, match="older schema"):
        folder = first.run()
    assert [record.round for record in folder.rounds()] == [1, 2, 3, 4]


def test_a_finished_run_of_version_0_1_is_left_alone(town):
    first = town(rounds=1)
    folder = first.run()
    legacy = first.out / first.config.run.legacy_run_name
    folder.path.rename(legacy)
    (legacy / "deliveries.json").unlink()
    with pytest.warns(WardroundWarning, match="runs that version 0.1 finished are not run again"):
        assert first.run().path == legacy


def test_a_folder_of_a_newer_version_is_refused_in_one_line(stopped):
    first = stopped()
    state = first.folder.read_checkpoint()
    import wardround.runs.folder as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SCHEMA_VERSION", module.SCHEMA_VERSION + 1)
        first.folder.write_checkpoint(state)
    with pytest.raises(WardroundError, match="this version reads up to 3: upgrade wardround") as problem:
        first.run()
    assert "\n" not in str(problem.value)
