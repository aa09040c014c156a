"""The site's source: the tracked pages, one page for every rule and attack, the API, and the navigation."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import torch

from sitegen.members import ROOT, attack_page, rule_page, slug, summary
from wardround import aggregators, attacks
from wardround.registry import Registry

DOCS = ROOT / "docs"
WORKERS = min(4, os.cpu_count() or 1)
NAVIGATION = {
    "Start": ["start", "python", "concepts", "results", "glossary"],
    "For you": ["for-researchers", "for-engineers", "for-hospitals", "for-contributors"],
    "Experiments": [
        "rules",
        "attacks",
        "datasets",
        "protocols",
        "runs",
        "models",
        "watch",
        "engines",
        "redteam",
    ],
    "Methods": ["caac-guard", "fedbnp", "threat-model", "privacy"],
    "A federation": ["federation", "flower-strategy", "reliability"],
    "Reference": [
        "extending",
        "architecture",
        "api",
        "cite",
        "upgrading",
        "changelog",
        "contributing",
        "governance",
        "conduct",
        "security",
    ],
}
PROJECT_FILES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "GOVERNANCE.md": "governance.md",
    "SECURITY.md": "security.md",
}
API = {
    "wardround.api": "simulate and analyze",
    "wardround.updates": "what clients send, and what a rule makes of it",
    "wardround.aggregators": "rules",
    "wardround.attacks": "attacks",
    "wardround.aggregators.fedbnp": "trust from fingerprints",
    "wardround.datasets.base": "datasets",
    "wardround.datasets.partition": "partitions",
    "wardround.models": "networks",
    "wardround.training": "local training",
    "wardround.federation": "the loop",
    "wardround.flower": "the same loop on Flower",
    "wardround.records": "records of a run",
    "wardround.experiments": "configurations, runs and matrices",
    "wardround.analysis": "tables, statistics, verdicts",
    "wardround.registry": "members by name",
    "wardround.plugins": "members of your own",
    "wardround.randomness": "randomness by name",
    "wardround.errors": "errors",
}
"""Modules with a page of their own in the reference, beside their titles."""


def stage(folder: Path) -> None:
    """Write everything Sphinx reads into an empty folder."""
    for page in DOCS.glob("*.md"):
        (folder / page.name).write_text(_within_site(page.read_text(encoding="utf-8")), encoding="utf-8")
    _stage_results(folder)
    for source, name in PROJECT_FILES.items():
        if (ROOT / source).exists():
            text = _within_site((ROOT / source).read_text(encoding="utf-8"))
            (folder / name).write_text(text, encoding="utf-8")
    for picture in [*DOCS.rglob("*.png"), *DOCS.rglob("*.svg")]:
        target = folder / picture.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    _write_members(folder, "rules", aggregators.registry, rule_page)
    _write_members(folder, "attacks", attacks.registry, attack_page)
    _write_api(folder)
    _append_navigation(folder)


def _stage_results(folder: Path) -> None:
    """Copy the pages on results below `results.md` in the sidebar, and their tables, which only those pages link to."""
    source, target = DOCS / "results", folder / "results"
    if not source.is_dir():
        return
    shutil.copytree(source, target)
    for table in target.glob("tables/*.md"):
        table.write_text(f"---\norphan: true\n---\n\n{table.read_text(encoding='utf-8')}", encoding="utf-8")
    pages = "\n".join(f"results/{page.stem}" for page in sorted(target.glob("*.md")))
    overview = folder / "results.md"
    tree = f"\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"
    overview.write_text(overview.read_text(encoding="utf-8") + tree, encoding="utf-8")


def _within_site(text: str) -> str:
    """Point links out of docs/ to the pages of the site; name files that are no page without a link."""
    for source, name in PROJECT_FILES.items():
        text = re.sub(rf"\]\((\.\./)?{re.escape(source)}", f"]({name}", text)
    text = re.sub(r"\]\((?:\.\./)?docs/([\w./#-]+)\)", r"](\1)", text)
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)?README\.md\)", r"[\1](index.md)", text)
    return re.sub(
        r"\[([^\]]+)\]\((?:\.\./|src/|tests/|notebooks/|benchmarks/)[^)]*\)|\[([^\]]+)\]\(LICENSE\)",
        r"\1\2",
        text,
    )


def _write_members(folder: Path, kind: str, registry: Registry, page_of: Callable[[str], str]) -> None:
    """Write one page per member, and link the members in the first cells of the overview's tables."""
    names = registry.available()
    (folder / kind).mkdir()
    for name, text in zip(names, in_processes(page_of, names), strict=True):
        (folder / kind / f"{slug(name)}.rst").write_text(text, encoding="utf-8")
    overview = folder / f"{kind}.md"
    linked = [_with_links(line, kind, names) for line in overview.read_text(encoding="utf-8").split("\n")]
    listed = "\n".join(
        f"| [`{name}`]({kind}/{slug(name)}.rst) | {summary(registry.get(name))} |" for name in names
    )
    pages = "\n".join(f"{kind}/{slug(name)}" for name in names)
    overview.write_text(
        "\n".join(linked)
        + f"\n\n## A page for each\n\nFormula, parameters, a picture of how it behaves, and an example.\n\n"
        f"| name | what it does |\n|---|---|\n{listed}\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
        encoding="utf-8",
    )


def in_processes(make: Callable[[str], str], names: Sequence[str]) -> list[str]:
    """What `make` gives for each name. Pictures are most of a build, and none depends on another."""
    if WORKERS == 1:
        return [make(name) for name in names]
    # A fork has everything imported; where there is none, a new process imports it.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(WORKERS, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(make, names))


def _with_links(line: str, kind: str, names: list[str]) -> str:
    if not line.startswith("| `"):
        return line
    first, rest = line[2:].split(" |", 1)
    for name in names:
        first = re.sub(rf"(?<!\[)`{re.escape(name)}`", f"[`{name}`]({kind}/{slug(name)}.rst)", first)
    return f"| {first} |{rest}"


def _write_api(folder: Path) -> None:
    """Write one page per module, from the docstrings of what it exports."""
    (folder / "api").mkdir()
    modules = [module for module in API if find_spec(module) is not None]
    for module in modules:
        title = f"{module}: {API[module]}"
        (folder / "api" / f"{module}.rst").write_text(
            f"{title}\n{'=' * len(title)}\n\n.. automodule:: {module}\n{_left_out(module)}", encoding="utf-8"
        )
    listed = "\n".join(f"- [`{module}`](api/{module}.rst): {API[module]}" for module in modules)
    pages = "\n".join(f"api/{module}" for module in modules)
    (folder / "api.md").write_text(
        "# API reference\n\nFrom the docstrings of what each module exports.\n\n"
        f"{listed}\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n",
        encoding="utf-8",
    )


def _left_out(module: str) -> str:
    """What every kind of member has is described once, with the registry."""
    return "" if module == "wardround.registry" else "   :exclude-members: Parameters, register\n"


def _append_navigation(folder: Path) -> None:
    """Write the sidebar: the sections above with the pages that exist, and below them all other pages."""
    there = {page.stem for page in folder.glob("*.md")} - {"index"}
    sections = {title: [page for page in pages if page in there] for title, pages in NAVIGATION.items()}
    placed = {page for pages in sections.values() for page in pages}
    sections["More"] = sorted(there - placed)
    index = folder / "index.md"
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```"
        for title, pages in sections.items()
        if pages
    ]
    index.write_text(index.read_text(encoding="utf-8") + "\n\n" + "\n\n".join(trees) + "\n", encoding="utf-8")
