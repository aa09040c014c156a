"""Doctests are looked for only where there are some: most files have none, and looking means importing them."""

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Leave out what `--doctest-modules` makes of a file without an example."""
    collectors = yield
    if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
        return collectors
    return [collector for collector in collectors if isinstance(collector, pytest.Module)]
