"""The cache: complete or not there, keyed by options, resumed after an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wardround import datasets
from wardround.datasets.base import Parameters, Task
from wardround.datasets.prepared_cache import (
    PreparedSource,
    cache_folder,
    data_root,
    info,
    open_cache,
    prepare,
)
from wardround.errors import ConfigError, DataError


class Two(PreparedSource):
    """Two stages; the second does what the test wants."""

    name = "two"
    task = Task.BINARY
    layout = "a file raw.txt"
    origin = "the moon"
    load_only = frozenset({"view"})

    class Params(Parameters):
        size: int = 1
        view: str = "a"

    built: list[str]
    trouble: BaseException | None = None

    def raw_files(self, folder):
        if not (folder / "raw.txt").exists():
            raise DataError(f"{folder / 'raw.txt'} does not exist")
        return [folder / "raw.txt"]

    def build(self, folder, work):
        if not work.has("first"):
            with work.writing("first") as path:
                path.write_text((folder / "raw.txt").read_text())
            self.built.append("first")
        with work.writing("second") as path:
            path.write_text("half of")
            if self.trouble is not None:
                raise self.trouble
            path.write_text("all of it")
        self.built.append("second")
        work.progress("second", 1, 1)
        return {"letters": len((work / "first").read_text())}

    def read(self, cache, seed):
        return cache.facts, (cache / "first").read_text()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "raw.txt").write_text("hello")
    return folder


def two(trouble: BaseException | None = None, **params) -> Two:
    source = Two(Two.Params(**params))
    source.built, source.trouble = [], trouble
    return source


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(datasets.registry._members, "two", Two)


def test_prepared_once_and_then_found(raw, cache):
    source = two()
    folder = prepare(source, raw)
    assert folder == cache_folder(source)
    assert folder.parent == cache
    assert source.load(0) == ({"letters": 5}, "hello")
    prepare(source, raw)
    assert source.built == ["first", "second"]
    prepare(source, raw, force=True)
    assert source.built == ["first", "second"] * 2
    assert sorted(path.name for path in cache.iterdir()) == [folder.name]


def test_the_key_is_the_content_of_the_options():
    assert cache_folder(two(size=1)) == cache_folder(two())
    assert cache_folder(two(size=2)) != cache_folder(two())
    assert cache_folder(two(view="b")) == cache_folder(two())


def test_other_raw_files_are_prepared_anew(raw):
    prepare(two(), raw)
    (raw / "raw.txt").write_text("goodbye")
    prepare(two(), raw)
    assert two().load(0)[1] == "goodbye"


def test_what_is_not_prepared_says_the_command(cache):
    with pytest.raises(
        DataError, match=r"not prepared yet.*run: wardround data prepare two --source DIR size=3 .*the moon"
    ):
        two(size=3).load(0)
    assert info(two())["prepared"] is None


def test_a_cache_of_an_earlier_version_is_not_taken_and_says_so(raw, monkeypatch):
    old = prepare(two(), raw)
    monkeypatch.setattr(Two, "version", 3)
    with pytest.raises(
        DataError, match=rf"earlier version that kept less \({old}.*run: wardround data prepare two"
    ):
        two().load(0)
    prepare(two(), raw)
    assert two().load(0)[1] == "hello"


def test_bad_input_leaves_nothing(raw, left_behind):
    with pytest.raises(DataError, match="no good"):
        prepare(two(DataError("no good")), raw)
    assert left_behind() == []


def test_bad_input_leaves_the_old_cache(raw):
    prepare(two(), raw)
    with pytest.raises(DataError):
        prepare(two(DataError("no good")), raw, force=True)
    assert two().load(0)[1] == "hello"


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interruption_keeps_finished_stages_only(raw, left_behind, trouble):
    with pytest.raises(type(trouble)):
        prepare(two(trouble), raw)
    name = cache_folder(two()).name
    assert left_behind() == [
        ".preparing",
        *(f".preparing/{name}{end}" for end in ("", "/fingerprint", "/first")),
    ]
    with pytest.raises(DataError, match="was not prepared to the end"):
        open_cache(two())
    source = two()
    prepare(source, raw)
    assert source.built == ["second"]
    assert [path for path in left_behind() if ".preparing" in path] == []


def test_finished_stages_of_other_files_are_not_taken(raw):
    with pytest.raises(KeyboardInterrupt):
        prepare(two(KeyboardInterrupt()), raw)
    (raw / "raw.txt").write_text("quite different")
    source = two()
    prepare(source, raw)
    assert source.built == ["first", "second"]
    assert source.load(0)[1] == "quite different"


@pytest.mark.slow
def test_a_killed_preparation_is_cleaned_up(raw, tmp_path, cache, left_behind):
    """kill -9 in the middle of a stage: the half-written file goes, the finished stage stays."""
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_prepared_cache as tests\n"
        "from wardround import datasets\n"
        "datasets.registry.available(); datasets.registry._members['two'] = tests.Two\n"
        "class Kill(tests.Two):\n"
        "    name = 'two'\n"
        "    built = []\n"
        "    @property\n"
        "    def trouble(self): os.kill(os.getpid(), signal.SIGKILL)\n"
        "from pathlib import Path\n"
        f"tests.prepare(Kill(tests.Two.Params()), Path({str(raw)!r}))\n"
    )
    killed = subprocess.run([sys.executable, script], env={**os.environ, "WARDROUND_DATA": str(cache)})
    assert killed.returncode == -signal.SIGKILL
    name = cache_folder(two()).name
    assert f".preparing/{name}/second.tmp" in left_behind()
    source = two()
    prepare(source, raw)
    assert source.built == ["second"]
    assert not any(".preparing" in path for path in left_behind())


def test_one_preparation_at_a_time(raw, cache):
    fcntl = pytest.importorskip("fcntl")
    target = cache_folder(two())
    (cache / ".preparing").mkdir(parents=True)
    with (cache / ".preparing" / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="being prepared by another process"):
            prepare(two(), raw)


def test_a_damaged_manifest_is_noticed(raw):
    folder = prepare(two(), raw)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"missing or damaged.*--force"):
        two().load(0)
    prepare(two(), raw, force=True)
    assert json.loads((folder / "manifest.json").read_text())["facts"] == {"letters": 5}


def test_wrong_folders(tmp_path, left_behind):
    with pytest.raises(DataError, match=r"does not exist; expected: a file raw\.txt; get it from the moon"):
        prepare(two(), tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is not a folder"):
        prepare(two(), tmp_path / "file")
    with pytest.raises(ConfigError, match="give --source DIR"):
        prepare(two(), None)
    with pytest.raises(ConfigError, match="needs no preparation"):
        prepare(datasets.create("icu"), tmp_path)
    assert left_behind() == []


def test_where_caches_live(monkeypatch, tmp_path):
    assert data_root() == Path(os.environ["WARDROUND_DATA"])
    monkeypatch.delenv("WARDROUND_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "wardround"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "wardround"
