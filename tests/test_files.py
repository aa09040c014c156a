"""Files that stay whole: replaced at once or not at all, on disk when they say so, locked between processes."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from wardround import files
from wardround.errors import WardroundError
from wardround.files import (
    LockHeld,
    append_text,
    can_lock,
    locked,
    make_private_folder,
    replace_file,
    replacing,
)


@pytest.fixture
def calls(monkeypatch):
    """The order in which the disk is asked for something."""
    made = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def note(*args, name=name, real=real):
            made.append(name)
            return real(*args)

        monkeypatch.setattr(files.os, name, note)
    return made


def test_a_file_is_on_disk_before_it_gets_its_name_and_the_name_after_it(tmp_path, calls):
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert calls == ["fsync", "replace", "fsync"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_appended_is_on_disk(tmp_path, calls):
    append_text(tmp_path / "log", "one\n")
    append_text(tmp_path / "log", "zwölf\n")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "one\nzwölf\n"
    assert calls == ["fsync", "fsync", "fsync"], "the text, the new name, the text"


def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write_half():
        with replacing(path) as temporary:
            temporary.write_bytes(b"half of the n")
            assert path.read_bytes() == b"old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_secret_is_private_from_its_first_byte(tmp_path):
    path, elsewhere = tmp_path / "key", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    (tmp_path / "key.tmp").symlink_to(elsewhere)  # what somebody left, or put there
    with replacing(path, 0o600) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
        temporary.write_bytes(b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not path.is_symlink()
    assert elsewhere.read_bytes() == b"not ours"
    replace_file(tmp_path / "public", b"key", 0o644)
    assert (tmp_path / "public").stat().st_mode & 0o777 == 0o644
    append_text(tmp_path / "log", "line\n", 0o600)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_lock_keeps_others_off_or_makes_them_wait(tmp_path):
    path, entered = tmp_path / "lock", threading.Event()

    def second():
        with locked(path):
            entered.set()

    thread = threading.Thread(target=second)
    with locked(path) as file:
        with pytest.raises(LockHeld, match="another process holds"), locked(path, wait=False):
            pass
        with pytest.raises(LockHeld), locked(path, wait=False, shared=True):
            pass
        thread.start()
        assert not entered.wait(0.2)
        file.write(b"by the holder")
    thread.join(120)
    assert entered.is_set()
    with locked(path, shared=True) as one, locked(path, wait=False, shared=True) as other:
        assert one.read() == other.read() == b"by the holder"
        with pytest.raises(LockHeld), locked(path, wait=False):
            pass
    with locked(path, wait=False):
        pass


def _hold(path, pipe):
    with locked(path):
        pipe.send("held")
        pipe.recv()


def test_a_lock_ends_with_its_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(tmp_path / "lock", theirs))
    process.start()
    assert ours.recv() == "held"
    with pytest.raises(LockHeld), locked(tmp_path / "lock", wait=False):
        pass
    process.kill()
    process.join()
    with locked(tmp_path / "lock", wait=False):
        pass


def test_where_there_are_no_locks_it_is_said_when_one_is_used(tmp_path, monkeypatch):
    assert can_lock()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert not can_lock()
    with pytest.raises(WardroundError, match="need Linux or macOS; this is"), locked(tmp_path / "lock"):
        pass
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_all_but_the_locks_works_without_fcntl_and_resource(tmp_path):
    code = """
        import sys
        sys.modules["fcntl"] = sys.modules["resource"] = None  # as on Windows
        import wardround, wardround.updates, wardround.aggregators, wardround.attacks
        import wardround.records, wardround.files, wardround.runs
        import wardround.runs.config, wardround.runs.audit, wardround.runs.quarantine, wardround.runs.runner
        from wardround.aggregators import create, available
        from wardround.attacks import available as attacks_available
        from wardround.federation.schedule import peak_memory_mb
        import torch
        assert available() and attacks_available()
        create("median").aggregate(wardround.Updates(torch.randn(5, 10)), round=1)
        assert (peak_memory_mb() or 1) > 0  # Linux tells it without `resource` too
        try:
            with wardround.runs.RunFolder(sys.argv[1]).locked():
                pass
        except wardround.errors.WardroundError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    assert output.stdout.startswith("locks between processes need Linux or macOS")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o377])
def test_a_private_folder_is_its_owners_alone_whatever_the_umask(tmp_path, mode_of, umask):
    before = os.umask(umask)
    try:
        make_private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700


def test_a_folder_that_is_there_keeps_its_mode(tmp_path, mode_of):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o750)
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
