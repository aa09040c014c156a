"""`wardround steward` and `wardround privacy explain`. Light to import."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from wardround.errors import ConfigError

__all__ = ["mount", "privacy_app", "steward"]

privacy_app = typer.Typer(help="Show what the privacy modes protect, and from whom.", no_args_is_help=True)


class ModeName(StrEnum):
    """The privacy mode that a steward's keys are for."""

    FEDMED = "encrypted-fedmed"
    CAAC = "encrypted-caac"


class CipherName(StrEnum):
    """The encryption scheme of a steward's keys."""

    CKKS = "ckks"
    PAILLIER = "paillier"


def mount(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command("steward")(steward)
    app.add_typer(privacy_app, name="privacy")


def steward(
    folder: Annotated[Path, typer.Argument(help="Folder of its keys, progress and log: for one run.")],
    clients: Annotated[
        str | None,
        typer.Option(help="Create the folder for these clients: ids with commas between, or how many."),
    ] = None,
    mode: Annotated[ModeName, typer.Option(help="Used when the folder is created.")] = ModeName.FEDMED,
    cipher: Annotated[CipherName, typer.Option(help="Used when the folder is created.")] = CipherName.CKKS,
    min_cohort: Annotated[int, typer.Option(min=2, help="Fewest clients in an opened sum.")] = 3,
    max_share: Annotated[float, typer.Option(help="Largest share of one client in it.")] = 0.5,
    max_mixtures: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sets of coefficients it uses in a run; 1 fits rules with fixed weights. None: any."
        ),
    ] = None,
    profile_epsilon: Annotated[
        float | None, typer.Option(help="Noise on norms and cosines: ε per client and round.")
    ] = None,
    profile_clip: Annotated[
        float, typer.Option(help="Largest norm that is revealed, with that noise.")
    ] = 1.0,
    host: Annotated[str, typer.Option(help="Any address but loopback needs --certificate.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8471,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
) -> None:
    """Hold the secret key of an encrypted federation, decrypt sums and scalars by a policy, and log it all."""
    from pydantic import ValidationError

    from wardround.privacy.encryption.steward import Policy
    from wardround.privacy.encryption.steward_service import StewardService
    from wardround.privacy.encryption.vault import Vault, server_key
    from wardround.privacy.params import ProfileNoiseParams
    from wardround.registry import explain

    vault = Vault(folder)
    if clients is not None:
        try:
            policy = Policy(min_cohort=min_cohort, max_share=max_share, max_mixtures=max_mixtures)
            noise = (
                None
                if profile_epsilon is None
                else ProfileNoiseParams(epsilon=profile_epsilon, clip=profile_clip)
            )
        except ValidationError as error:
            raise ConfigError(f"steward: {explain(error, Policy)}") from None
        vault.make(_ids(clients), mode.value, cipher.value, policy, noise)
    service = StewardService(
        vault.steward(), server_key(vault.keys), host, port, certificate, certificate_key
    )
    print(f"steward: {service.address}, keys for the server and clients in {vault.keys}", flush=True)
    print(f"steward: openings are logged in {vault.log_path}", flush=True)
    with service:
        service.serve_forever()


@privacy_app.command("explain")
def explain_command(
    mode: Annotated[
        str, typer.Argument(help="plaintext, encrypted-fedmed, encrypted-caac, secure-aggregation")
    ],
) -> None:
    """Explain who sees what in a mode, and who has to be trusted."""
    from wardround.privacy.explain import explain_mode

    print(explain_mode(mode))


def _ids(clients: str) -> list[str]:
    if clients.isdigit():
        digits = max(2, len(str(int(clients) - 1)))
        return [f"hospital-{i:0{digits}d}" for i in range(int(clients))]
    return [client.strip() for client in clients.split(",") if client.strip()]
