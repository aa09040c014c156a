"""The files that start a federation: compose, Dockerfile, systemd units. No test runs a container."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from wardround.cli.main import app
from wardround.flower.trial import NAMES

DEPLOY = Path(__file__).parents[1] / "deploy"
PARTIES = {"server", "steward", *NAMES}


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def parses(words):
    """Does our command line understand these words? Nothing is run."""
    command = typer.main.get_command(app)
    context = command.make_context("wardround", list(words), resilient_parsing=False)
    name, sub, rest = command.resolve_command(context, list(words))
    sub.make_context(name, list(rest), parent=context)
    return name


@pytest.mark.slow
def test_the_compose_file_is_valid():
    vendor = pytest.importorskip("check_jsonschema").__path__[0]
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(Path(vendor, "builtin_schemas", "vendor", "compose-spec.json").read_text())
    values = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "services": {"server": {"comand": []}}}, schema)


def test_a_server_a_steward_and_four_hospitals_with_volumes_of_their_own(services):
    assert set(services) == {"prepare", *PARTIES}
    for name in PARTIES:
        assert services[name]["volumes"] == [f"{name}:/fed"]
        assert "healthcheck" in services[name]
        assert services[name]["cap_drop"] == ["ALL"]
    volumes = {volume.split(":")[0] for volume in services["prepare"]["volumes"]}
    assert volumes == PARTIES
    assert services["steward"]["networks"] == ["steward"], "hospitals cannot reach it"


def test_every_command_is_one_of_ours(services):
    for name in PARTIES:
        assert parses(services[name]["command"]) == services[name]["command"][0]
    script = services["prepare"]["command"][0].replace("$$", "$")
    assert subprocess.run(["sh", "-n", "-c", script]).returncode == 0
    (trial,) = [line.strip() for line in script.splitlines() if line.strip().startswith("wardround ")]
    assert parses(shlex.split(trial)[1:]) == "trial"
    (loop,) = [line for line in script.splitlines() if line.startswith("for party in")]
    assert set(re.findall(r"[a-z]+", loop.split(" in ")[1].split(";")[0])) == PARTIES
    for name in NAMES:
        assert services[name]["healthcheck"]["test"][:2] == ["CMD", "wardround"]
    for name in ("server", "steward"):
        compile(services[name]["healthcheck"]["test"][3], name, "exec")


def test_the_image_is_not_root_and_has_what_it_copies():
    text = (DEPLOY / "Dockerfile").read_text()
    final = text.split("FROM ")[-1]
    assert re.search(r"^USER wardround$", final, re.M)
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        for source in sources.split():
            assert (DEPLOY.parent / source).exists(), source
            assert f"!{source}" in ignored, source
    extras = re.search(r'"\.\[([a-z,]+)\]"', text)[1].split(",")
    known = (DEPLOY.parent / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", known, re.M) for extra in extras)


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_systemd_units(unit, tmp_path):
    text = unit.read_text()
    command = re.search(r"^ExecStart=\S+/wardround (.*)$", text, re.M)[1]
    assert parses(shlex.split(command)) in unit.stem
    assert re.search(r"^SuccessExitStatus=130$", text, re.M)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the unit's commands were checked, its keys were not")
    # The program is not installed under /srv here; everything else is checked as it stands.
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
