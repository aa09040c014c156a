"""What is handed out: a wheel that works where nothing else of the project is, and the files a project has."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import wardround

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_one_version_everywhere():
    """The package says it; the rest follows it, or is held to it here."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert "version" in PROJECT["dynamic"]
    assert citation["version"] == wardround.__version__
    assert f"version = {{{wardround.__version__}}}" in (ROOT / "docs" / "cite.md").read_text()


def test_the_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"authors", "message", "title"} <= citation.keys()
    known = {
        "cff-version",
        "message",
        "type",
        "title",
        "abstract",
        "authors",
        "version",
        "date-released",
        "license",
        "keywords",
    }
    assert citation.keys() <= known, "the format allows no keys of one's own"
    assert citation["type"] == "software"
    assert citation["license"] == PROJECT["license"] == "Apache-2.0"
    assert all("name" in author or "family-names" in author for author in citation["authors"])
    assert all(
        isinstance(value, str) for value in (citation["version"], citation["title"], citation["message"])
    )


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.stem != "config"], ids=lambda form: form.stem
)
def test_issue_forms_are_forms(form):
    values = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= values.keys()
    kinds = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    fields = [field for field in values["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in values["body"]} <= kinds
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields) > 0


@pytest.mark.parametrize(
    "workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda file: file.stem
)
def test_workflows_do_what_can_be_done_by_hand(workflow):
    """Every `make` target exists, nothing asks for more rights than reading, and no package index is named."""
    text = workflow.read_text()
    values = yaml.safe_load(text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = {name for line in re.findall(r"run: make (.+)", text) for name in line.split()}
    assert called
    assert called <= targets
    assert values["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in values["jobs"].values())
    assert not re.search(r"https?://|index-url (?!\$)", text, re.I)


def test_every_python_that_is_promised_is_tested():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    tested = set(workflow["jobs"]["check"]["strategy"]["matrix"]["python"])
    promised = {name.rsplit(" ", 1)[1] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    assert tested == promised
    assert PROJECT["requires-python"] == ">=" + min(promised, key=lambda name: int(name.split(".")[1]))


def tracked_data() -> set[str]:
    """Everything in the package's folder that is no code: presets, tables, what pages are made of."""
    files = (ROOT / "src").rglob("*")
    return {
        file.relative_to(ROOT / "src").as_posix()
        for file in files
        if file.is_file()
        and file.suffix != ".py"
        and "__pycache__" not in file.parts  # compiled code, and the lock of who compiles
        and ".egg-info" not in str(file)
    }


@pytest.fixture
def handed_out(tmp_path):
    """The wheel, built from the source archive, which is built from a copy of the project: (wheel, archive)."""
    pytest.importorskip("build")
    copy = tmp_path / "project"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.nb[ic]")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for folder in ("docs", "tests", "benchmarks", "notebooks", "tools"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, copy)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(copy)],
        check=True, capture_output=True, text=True, timeout=1200, env=without_the_project(),
    )  # fmt: skip
    return next((tmp_path / "dist").glob("*.whl")), next((tmp_path / "dist").glob("*.tar.gz"))


def without_the_project() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def clean_environment(folder: Path) -> Path:
    """A new environment: its own packages first, those of the test environment behind, the project's source nowhere."""
    venv.create(folder, with_pip=False)
    own = next(folder.glob("lib/python*/site-packages"), folder / "Lib" / "site-packages")
    (own / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return own


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_a_clean_environment(handed_out, tmp_path):
    wheel, archive = handed_out
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert tracked_data() <= inside, "what the package reads is in it"
    assert {"wardround/datasets/files/support2.csv.gz", "wardround/protocols/own/presets/demo.yaml"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "docs", "benchmarks"))]
    with tarfile.open(archive) as source:
        packed = {name.partition("/")[2] for name in source.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "Makefile", "requirements.txt", "docs/index.md"} <= packed
    assert {"tools/release_check.py", "GOVERNANCE.md", "CODE_OF_CONDUCT.md"} <= packed
    assert {"tests/test_packaging.py", "docs/tools/build_site.py", "benchmarks/run.py"} <= packed

    own = clean_environment(tmp_path / "environment")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(own), str(wheel)],
        check=True, capture_output=True, text=True, timeout=300, env=without_the_project(),
    )  # fmt: skip
    python = next((tmp_path / "environment").glob("[bS]*/python*"))
    where = subprocess.run(
        [python, "-c", "import wardround; print(wardround.__file__)"],
        check=True, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=without_the_project(),
    ).stdout  # fmt: skip
    assert Path(where.strip()).is_relative_to(own)
    done = subprocess.run(
        [python, "-m", "wardround", "demo", "--quick"],
        capture_output=True, text=True, cwd=tmp_path, timeout=3000, check=False, env=without_the_project(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("fedavg", "krum", "median", "caac-guard", "report: "))
    assert "as far as a single seed can tell" in done.stdout or "No rule can be recommended" in done.stdout
    page = (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    assert "AUROC" in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=.https?:", page)
