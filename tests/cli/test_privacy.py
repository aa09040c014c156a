import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from wardround import aggregators
from wardround.cli.privacy import mount
from wardround.errors import ConfigError, ParameterError
from wardround.privacy.explain import PARTIES, TABLE
from wardround.privacy.params import MODES, rules_for


@pytest.fixture(scope="module")
def app():
    app = typer.Typer()
    app.callback()(lambda: None)
    mount(app)
    return app


def ask(app, *arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_every_mode_is_explained_for_every_party(app):
    assert set(TABLE) == set(MODES)
    for mode in MODES:
        result = ask(app, "privacy", "explain", mode)
        assert all(f"  {party}: " in result for party in PARTIES)
        assert "trust: " in result
    rules = [aggregators.registry.get(name) for name in aggregators.available()]
    for mode in MODES[1:]:
        assert any(rule in TABLE[mode]["what it is"] for rule in rules_for(mode, rules))
    with pytest.raises(ParameterError, match="did you mean 'encrypted-caac'"):
        ask(app, "privacy", "explain", "encrypted-cac")


def test_a_steward_says_what_is_wrong_with_its_options(app, tmp_path):
    with pytest.raises(ConfigError, match="no steward's folder"):
        ask(app, "steward", tmp_path / "none")
    with pytest.raises(ConfigError, match="max_share"):
        ask(app, "steward", tmp_path / "new", "--clients", "3", "--max-share", "2")
    with pytest.raises(ConfigError, match="at least two"):
        ask(app, "steward", tmp_path / "new", "--clients", "alone")
    assert not (tmp_path / "new").exists()


def test_the_commands_are_light_to_import():
    code = (
        "import sys; import wardround.cli.privacy; "
        "print({'torch', 'numpy', 'tenseal', 'opacus'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
