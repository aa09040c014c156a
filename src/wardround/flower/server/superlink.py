"""What `wardround serve` asks of its SuperLink: the Control interface, which the gateway does not let through."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from wardround.errors import WardroundError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["SuperLinkControl"]

FINISHED, COMPLETED = "finished", "completed"


class SuperLinkControl:
    """A connection to the Control interface of a SuperLink on this machine."""

    def __init__(self, address: str, authority: Path | None) -> None:
        self._client = ControlHttpClient.from_server_address(
            address,
            insecure=authority is None,
            root_certificates=None if authority is None else authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="wardround")],
        )

    def stop_stale_runs(self) -> None:
        """Stop the runs that a killed server left running."""
        for number, run in self._client.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != FINISHED:
                self._client.StopRun(StopRunRequest(run_id=number))

    def register_only(self, keys: Mapping[str, EllipticCurvePublicKey]) -> None:
        """Register exactly these public keys (name → key); remove all others."""
        wanted = {public_key_to_bytes(key): name for name, key in keys.items()}
        known = {
            node.public_key: node.node_id for node in self._client.ListNodes(ListNodesRequest()).nodes_info
        }
        for key, node in known.items():
            if key not in wanted:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))
        for key, name in wanted.items():
            if key not in known:
                self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def start_run(self, app: Path, options: Mapping[str, str]) -> int:
        """Start the app in a folder and return the number of its run."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        response = self._client.StartRun(
            StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(options)))
        )
        if not response.HasField("run_id"):
            raise WardroundError("the SuperLink did not start the run")
        return int(response.run_id)

    def outcome(self, run: int) -> str | None:
        """Return None while it runs, "" if it was completed, else what went wrong."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status != FINISHED:
            return None
        return "" if status.sub_status == COMPLETED else status.details or status.sub_status

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
