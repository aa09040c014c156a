"""What the documents promise: their Python runs, their links lead somewhere, their YAML is a configuration."""

import re
from pathlib import Path

import pytest
import yaml

from wardround.experiments import expand, load_config

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda page: page.name)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(page, "python"):
        if ">>> " not in code:  # a session is compared with what it prints, in the tests of its subject
            exec(compile(code, str(page), "exec"), names)


def test_the_configurations_in_the_page_on_runs_are_valid():
    run, matrix = (yaml.safe_load(block) for block in blocks(ROOT / "docs" / "runs.md", "yaml"))
    assert load_config(run).rounds == 100
    assert len(expand(matrix)) == 36
