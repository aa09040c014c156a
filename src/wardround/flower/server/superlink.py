"""What `wardround serve` asks of its SuperLink: the Control interface, which the gateway does not let through."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    ListRunsResponse,
    RegisterNodeRequest,
    RegisterNodeResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
    StopRunResponse,
    UnregisterNodeRequest,
    UnregisterNodeResponse,
)

from wardround.errors import WardroundError
from wardround.flower import OFFLINE
from wardround.flower.processes import console_script, last_line
from wardround.flower.wire import CONTROL, Connection, RefusedRequest, key_bytes, version_headers

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["SuperLinkControl", "build_app"]

FINISHED, COMPLETED, UNREGISTERED = "finished", "completed", "unregistered"


class SuperLinkControl:
    """A connection to the Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, authority: Path | None) -> None:
        headers = version_headers("wardround")
        self._connection = Connection(address, authority, lambda: headers)

    def stop_stale_runs(self) -> None:
        """Stop the runs that a killed server left running."""
        runs = self._connection.call(CONTROL + "list-runs", ListRunsRequest(), ListRunsResponse).run_dict
        for number, run in runs.items():
            if run.status.status != FINISHED:
                self._connection.call(CONTROL + "stop-run", StopRunRequest(run_id=number), StopRunResponse)

    def register_only(self, keys: Mapping[str, EllipticCurvePublicKey]) -> None:
        """Register exactly these public keys (name → key); remove all others.

        A node that is removed is offline at once, and who waits for its answer is told so. A SuperLink does not take
        back a key that was removed while it runs.

        Raises:
            WardroundError: Keys that it does not take; the others are registered.
        """
        known, wanted = self._registered(), {key_bytes(key) for key in keys.values()}
        for public, node in known.items():
            if public not in wanted:
                request = UnregisterNodeRequest(node_id=node)
                self._connection.call(CONTROL + "unregister-node", request, UnregisterNodeResponse)
        refused = {}
        for name, key in keys.items():
            if key_bytes(key) not in known:
                entry = RegisterNodeRequest(public_key=key_bytes(key), name=name)
                try:
                    self._connection.call(CONTROL + "register-node", entry, RegisterNodeResponse)
                except RefusedRequest as refusal:
                    refused[name] = str(refusal)
        if refused:
            raise WardroundError("; ".join(f"{name}: {reason}" for name, reason in refused.items()))

    def _registered(self) -> dict[bytes, int]:
        """Public key → node id. The SuperLink's list has nodes that were unregistered earlier, too."""
        request = ListNodesRequest()
        nodes = self._connection.call(CONTROL + "list-nodes", request, ListNodesResponse).nodes_info
        return {node.public_key: node.node_id for node in nodes if node.status != UNREGISTERED}

    def start_run(self, app: Path, options: Mapping[str, str]) -> int:
        """Start the app in a folder and return the number of its run."""
        content = build_app(app)
        request = StartRunRequest()
        request.fab.hash_str, request.fab.content = hashlib.sha256(content).hexdigest(), content
        for key, value in options.items():
            request.override_config[key].string = value
        response = self._connection.call(CONTROL + "start-run", request, StartRunResponse)
        if not response.HasField("run_id"):
            raise WardroundError("the SuperLink did not start the run")
        return int(response.run_id)

    def outcome(self, run: int) -> str | None:
        """Return None while it runs, "" if it was completed, else what went wrong."""
        request = ListRunsRequest(run_id=run)
        status = self._connection.call(CONTROL + "list-runs", request, ListRunsResponse).run_dict[run].status
        if status.status != FINISHED:
            return None
        return "" if status.sub_status == COMPLETED else status.details or status.sub_status

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def build_app(folder: Path) -> bytes:
    """The app in a folder as Flower sends it around (a FAB), made by `flwr build`."""
    with tempfile.TemporaryDirectory(prefix="wardround-") as place:
        done = subprocess.run(
            [console_script("flwr"), "build", "--app", str(folder)],
            cwd=place, env={**os.environ, **OFFLINE, "FLWR_HOME": place}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        built = list(Path(place).glob("*.fab"))
        if done.returncode or len(built) != 1:
            raise WardroundError(f"flwr build: {last_line(done.stderr or done.stdout)}")
        return built[0].read_bytes()
