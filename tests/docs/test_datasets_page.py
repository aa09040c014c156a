"""The page on datasets agrees with the code."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from wardround import datasets, models
from wardround.datasets import partition
from wardround.datasets.mimic3.variables import VARIABLES

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


@pytest.mark.slow
def test_figures_are_what_the_code_prints():
    pytest.importorskip("monai")
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_every_name_is_there():
    named = set(re.findall(r"`([\w-]+)`", PAGE.read_text()))
    assert named >= {*datasets.available(), *models.available(), *partition.available()}


def test_the_number_of_variables():
    assert f"of {len(VARIABLES)} variables" in PAGE.read_text()


@pytest.mark.parametrize("name", datasets.available())
def test_origins_are_those_of_the_code(name):
    """Every address that a dataset gives is on the page."""
    page = PAGE.read_text()
    for address in re.findall(r"https?://[^\s),]+", datasets.registry.get(name).origin):
        assert address in page
