"""What `import wardround` offers: by attribute, by TAB, and at once."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import wardround
from wardround import errors


def test_every_name_is_there():
    assert dir(wardround) == sorted(wardround.__all__)
    for name in dir(wardround):
        assert getattr(wardround, name) is not None
    assert wardround.datasets.available()
    assert wardround.models.available()
    assert wardround.Updates is wardround.updates.Updates


def test_every_package_and_every_error_is_among_them():
    folder = Path(wardround.__file__).parent
    programs = {"cli", "live"}  # used from the command line
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} - programs
    raised = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert packages | raised <= set(dir(wardround))


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'wardround' has no attribute 'agregators'"):
        _ = wardround.agregators
    with pytest.raises(ImportError):
        exec("from wardround import Update")


def test_importing_is_light():
    code = "import sys, wardround; dir(wardround); wardround.WardroundError; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "pydantic", "yaml"} & set(out.stdout.split())


def test_the_datasets_too_are_offered_by_name():
    assert {"available", "create", "partition", "registry", "Dataset"} <= set(dir(wardround.datasets))
    assert wardround.datasets.partition.available()
