"""Which licences come with wardround: everything that the package and its extras need, asked of pip-licenses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PERMISSIVE = re.compile(
    r"\b(MIT(-0|-CMU)?|BSD|[023]?-?BSD(-\d-Clause)?|Apache|ISC|ISCL|PSF(-2\.0)?|Python Software Foundation|CC0-1\.0|"
    r"Zlib|BSL-1\.0|MPL|MPL-2\.0|Mozilla Public License|Public Domain|Unlicense|HPND)\b",
    re.I,
)
"""Licences that may be handed out beside Apache-2.0. MPL asks something only of those who change its files."""
LOOKED_AT = {
    "codespell": "GPL-2.0, a program that `make lint` starts; not imported",
    "cuda-toolkit": "as nvidia-*: it has no files but names those",
    "docutils": "its code is in the public domain or BSD; the GPL is for one Emacs file; used to build the site",
    "gmpy2": "LGPL-3.0, an optional library (extra privacy), imported and not changed",
    "nvidia-*": "NVIDIA's own licence; comes with builds of torch for CUDA and is not needed by those for the CPU",
    "psycopg": "LGPL-3.0, an optional library (extra omop), imported and not changed",
    "psycopg-binary": "LGPL-3.0, as psycopg",
    "axe-playwright-python": "MIT in its repository, not in its metadata; used by tests only",
    "byzfl": "MIT in its repository, not in its metadata; compared with in tests only",
    "sphinxcontrib-jsmath": "BSD, said in its classifiers",
    "yattag": "LGPL, needed by cosmic-ray, which `make mutate` uses",
}
"""Packages (or patterns of names) whose licence is not plainly permissive, each with why it may stay."""


def needed_packages() -> set[str]:
    """Installed packages that wardround needs, with all of its extras, and what these need in turn."""
    names: set[str] = set()
    waiting = [("wardround", frozenset(metadata.metadata("wardround").get_all("Provides-Extra") or ()))]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed
        names.add(canonicalize_name(name))
        for requirement in map(Requirement, requirements):
            environments = [{"extra": extra} for extra in extras or {""}]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                step = (canonicalize_name(requirement.name), frozenset(requirement.extras))
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
    return names - {"wardround"}


def check_licences() -> tuple[str, list[str]]:
    """A Markdown table of packages and licences, and one line per package whose licence nobody has looked at."""
    answer = subprocess.run(
        [sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    needed = needed_packages()
    rows, problems = [], []
    for package in json.loads(answer.stdout):
        name, licence = canonicalize_name(package["Name"]), package["License"].splitlines()[0]
        if name not in needed:
            continue
        why = next((reason for pattern, reason in LOOKED_AT.items() if fnmatch(name, pattern)), "")
        rows.append(f"| {name} | {package['Version']} | {licence} | {why} |")
        if not why and not is_permissive(licence):
            problems.append(
                f"{name} {package['Version']}: licence '{licence}': look at it, then say why in LOOKED_AT"
            )
    table = "| package | version | licence | why it may stay |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    return table, problems


def is_permissive(licence: str) -> bool:
    """Whether every part of a licence is permissive; where there is a choice (OR), one of them."""
    choices = [re.split(r"\bAND\b|;", choice) for choice in re.split(r"\bOR\b", licence)]
    return any(
        all(PERMISSIVE.search(part) and not re.search("GPL|GNU", part) for part in parts) for parts in choices
    )
