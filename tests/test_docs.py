"""What the documents promise: their Python runs, their links lead somewhere, their YAML is a configuration, and
their commands have the options they are shown with."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import typer
import yaml

from wardround import aggregators, attacks, plugins
from wardround.cli.main import app
from wardround.experiments import RunConfig, expand, load_config

ROOT = Path(__file__).parent.parent
PROJECT = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "GOVERNANCE.md", "SECURITY.md")
]
PAGES = sorted([*(page for page in PROJECT if page.exists()), *(ROOT / "docs").rglob("*.md")])
SHELLS = "sh|bash|shell|console"
COMMANDS = typer.main.get_command(app)


def named(pages):
    return {"argvalues": pages, "ids": [page.name for page in pages]}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```(?:{language})\n(.*?)^ *```", page.read_text(), re.S | re.M)


def files(page: Path) -> dict[str, str]:
    """Name → content of the files that a page shows: samples whose first line is a comment with a file's name."""
    samples = blocks(page, "python|ya?ml")
    named_samples = [(re.match(r"# ([\w-]+\.(?:py|yaml))\n", sample), sample) for sample in samples]
    return {found[1]: sample for found, sample in named_samples if found}


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M)


def anchors(page: Path) -> set[str]:
    """The names that headings get on the site and on code hosts."""
    headings = re.findall(r"^#+ +(.+?)\s*$", prose(page), re.M)
    plain = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", **named(PAGES))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?://|mailto:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {file.name} has no heading #{anchor}"


def write_files(page: Path, folder: Path) -> dict[str, str]:
    shown = files(page)
    for name, content in shown.items():
        (folder / name).write_text(content)
    return shown


@pytest.mark.parametrize("page", **named([page for page in PAGES if blocks(page, "python")]))
def test_python_runs(page, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "sample"}
    shown = write_files(page, tmp_path)
    for file in shown:
        if file.endswith(".py"):
            plugins.load(tmp_path / file)
    for code in blocks(page, "python"):
        # A session is compared with what it prints, in the tests of its subject.
        if not code.startswith(">>> ") and code not in shown.values():
            exec(compile(code, str(page), "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", **named([page for page in PAGES if blocks(page, "ya?ml")]))
def test_configurations_are_valid(page, tmp_path, monkeypatch, registries):
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "ya?ml"):
        values = yaml.safe_load(block)
        if {"base", "axes", "runs"} & values.keys():
            assert expand(values)
        elif values.keys() <= RunConfig.model_fields.keys():
            assert load_config(values)


def test_the_configurations_in_the_page_on_runs_are_valid():
    run, matrix = (yaml.safe_load(block) for block in blocks(ROOT / "docs" / "runs.md", "yaml"))
    assert load_config(run).rounds == 100
    assert len(expand(matrix)) == 36


def commands(page: Path) -> list[list[str]]:
    """Every command of a page's shell samples, and every `wardround …` in its text, in words."""
    shown = "\n".join(blocks(page, SHELLS)).replace("\\\n", " ").splitlines()
    shown += re.findall(r"`(wardround [^`]+)`", prose(page).replace("\n", " "))
    lines = (line.strip().removeprefix("$ ") for line in shown)
    parts = (part for line in lines for part in re.split(r"&&|\|\||[|;]", line))
    words = (shlex.split(part, comments=True) for part in parts if part.count('"') % 2 == 0)
    return [word for word in words if word]


def complaint(words: list[str]) -> str | None:
    """What is wrong with a `wardround` command; None if nothing is."""
    command: click.Command = COMMANDS
    for word in words[1:]:
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word not in command.commands:
                return None if re.search(r"[^\w-]|^[A-Z]+$", word) else f"there is no {command.name} {word}"
            command = command.commands[word]
        elif re.match(r"--?[a-z]", word):
            known = {
                name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
            }
            if word.split("=")[0] not in known | {"--help", "-h"}:
                return f"{command.name} has no option {word}"
    return None


@pytest.mark.parametrize("page", **named([page for page in PAGES if commands(page)]))
def test_commands_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for words in commands(page):
        program = words[0].rsplit("/", 1)[-1]
        if program == "wardround":
            assert not complaint(words), f"{page.name}: {' '.join(words)}: {complaint(words)}"
        elif program == "make":
            asked = {word for word in words[1:] if "=" not in word}
            assert asked <= targets, f"{page.name}: {' '.join(words)}"
        elif (
            program.startswith("python") and len(words) > 1 and words[1].startswith(("docs/", "benchmarks/"))
        ):
            assert (ROOT / words[1]).exists(), f"{page.name}: {words[1]}"


def test_a_wrong_command_is_found():
    assert complaint(shlex.split("wardround matrix caac-core --jbos 2")) == "matrix has no option --jbos"
    assert complaint(shlex.split("wardround marvel caac-core"))
    assert complaint(shlex.split("wardround matrix caac-core --jobs 2")) is None


def test_examples_compare_methods_on_the_same_seed():
    """Comparisons are paired by seed: an example that changes rule and seed at once would compare nothing."""
    for file in PAGES:
        for line in file.read_text().splitlines():
            if "wardround run" in line and re.search(r"(aggregator|attack)\.name=", line):
                assert not re.search(r"\bseed=", line), f"{file.name}: {line}"


def test_a_run_is_resumed_and_does_not_go_on():
    """One word for one thing."""
    said = re.compile(
        r"\b(run|command|search|training|experiment|federation|matrix)s? (goes|go|will go) on\b"
    )
    for file in [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]:
        assert not said.search(file.read_text()), file


def test_make_demo_installs_what_the_first_page_uses():
    """And says how much that is before it starts, with a progress that is seen."""
    makefile = (ROOT / "Makefile").read_text()
    core = makefile[makefile.index(".venv/.core:") : makefile.index(".venv/.dev:")]
    (extras,) = re.findall(r"\.\[([a-z0-9,]+)\]", core)
    needed = {"watch": "live", "serve": "flower", "join": "flower", "redteam": "redteam", "export": "export"}
    used = set(re.findall(r"^wardround (\w+)", (ROOT / "docs" / "start.md").read_text(), re.M))
    assert "watch" in used
    assert {needed[command] for command in used & needed.keys()} <= set(extras.split(","))
    assert core.index("1.6 GB") < core.index("$(LOCKED)")
    (locked,) = re.findall(r"^LOCKED := (.*)$", makefile, re.M)
    assert "--quiet" not in locked
    assert "--progress-bar on" in locked


def test_every_extra_that_is_named_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for file in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        for group in re.findall(r"wardround\[([a-z0-9,]+)\]", file.read_text()):
            assert set(group.split(",")) <= extras.keys(), f"{file.name}: wardround[{group}]"


@pytest.mark.parametrize("kind", ["rules", "attacks"])
def test_overviews_name_every_member(kind):
    registry = {"rules": aggregators, "attacks": attacks}[kind]
    pages = [ROOT / "docs" / f"{kind}.md", ROOT / "docs" / "fedbnp.md", ROOT / "docs" / "caac-guard.md"]
    text = "".join(page.read_text() for page in pages if page.exists())
    missing = [name for name in registry.available() if f"`{name}`" not in text and f"### {name}" not in text]
    assert not missing


LONG = 900
"""Words: about two screens."""


@pytest.mark.parametrize("page", **named(sorted((ROOT / "docs").glob("*.md"))))
def test_a_long_page_begins_with_a_summary(page):
    """Some sentences between the title and the first heading, table, list, picture or sample."""
    if len(page.read_text().split()) < LONG:
        return
    opening = re.match(r"# .+\n\n((?:(?!```|[#|!-])\S.*\n)+)", page.read_text())
    assert opening is not None, f"{page.name}: nothing but the title before the first heading or sample"
    assert len(opening[1].split()) >= 20, f"{page.name}: {opening[1]}"
