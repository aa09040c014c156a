"""Every registered member has a page, also a new one in a file of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sitegen import pages
from sitegen.members import explained, slug

from wardround import aggregators, attacks, faults

ROOT = Path(__file__).parents[2]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
RULE, ATTACK = (
    next(
        block
        for block in re.findall(r"^```python\n(.*?)^```", EXTENDING, re.S | re.M)
        if f'"{name}"' in block
    )
    for name in ("clipped-mean", "fading")
)
AS_MEMBERS = """
import sys
import wardround.aggregators, wardround.attacks
sys.path.insert(0, {docs!r})
wardround.aggregators.__path__.append({folder!r} + "/aggregators")
wardround.attacks.__path__.append({folder!r} + "/attacks")
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess:
    """In a process of its own, with the samples of the page on extending in a file each, as a contributor would."""
    for package, name, sample in (("aggregators", "clipped_mean", RULE), ("attacks", "fading", ATTACK)):
        (folder / package).mkdir()
        (folder / package / f"{name}.py").write_text(sample)
    setup = AS_MEMBERS.format(docs=str(ROOT / "docs" / "tools"), folder=str(folder))
    return subprocess.run(
        [sys.executable, "-c", setup + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "registry",
    [aggregators.registry, attacks.registry, faults.registry],
    ids=["rules", "attacks", "faults"],
)
def test_every_parameter_says_what_it_does(registry):
    members = {name: registry.get(name).Params for name in registry.available()}
    unexplained = {
        f"{name}.{parameter}"
        for name, params in members.items()
        for parameter in params.model_fields.keys() - explained(params).keys()
    }
    assert not unexplained, "a line below the parameter becomes its row on the member's page"


@pytest.mark.slow
def test_a_new_file_gets_a_page(tmp_path):
    done = run(
        "from sitegen.members import attack_page, rule_page\n"
        "print(rule_page('clipped-mean'), attack_page('fading'))",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "median length" in done.stdout
    assert "Length that is left alone" in done.stdout
    assert "``" not in done.stdout
    assert done.stdout.count("<svg") == 2
    assert "aggregator: {name: clipped-mean, c: 1.0}" in done.stdout
    assert "attack: {name: fading, fraction: 0.2, start: 15, q: 0.9}" in done.stdout


@pytest.mark.slow
def test_the_contract_holds_for_the_sample(tmp_path):
    """The contract tests find the new files by themselves, and pass."""
    done = run(
        "import pytest\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', 'clipped or fading', "
        "'tests/aggregators/test_contract.py', 'tests/attacks/test_contract.py']))",
        tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 10


def test_pages_made_side_by_side_are_those_made_one_after_the_other(monkeypatch):
    names = ["krum", "caac-mag+dir", "median", "rfa", "mean"]
    monkeypatch.setattr(pages, "WORKERS", 2)
    assert pages.in_processes(slug, names) == [slug(name) for name in names]
    monkeypatch.setattr(pages, "WORKERS", 1)
    assert pages.in_processes(slug, names) == [slug(name) for name in names]
