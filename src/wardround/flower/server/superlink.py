"""What `wardround serve` asks of its SuperLink, through the interface that the gate keeps from everybody else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

__all__ = ["Control"]

FINISHED, COMPLETED = "finished", "completed"


class Control:
    """A connection to a SuperLink on this machine."""

    def __init__(self, address: str, authority: Path | None) -> None:
        self._client = ControlHttpClient.from_server_address(
            address,
            insecure=authority is None,
            root_certificates=None if authority is None else authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="wardround")],
        )

    def settle(self, keys: Mapping[str, Any] | None) -> None:
        """Let exactly these keys in, and end what a killed server left running."""
        for number, run in self._client.ListRuns(ListRunsRequest()).run_dict.items():
            if run.status.status != FINISHED:
                self._client.StopRun(StopRunRequest(run_id=number))
        if keys is None:
            return
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
        """Start the app in a folder; gives the run's number."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        answer = self._client.StartRun(
            StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(options)))
        )
        if not answer.HasField("run_id"):
            raise WardroundError("the SuperLink did not start the run")
        return int(answer.run_id)

    def how_ended(self, run: int) -> str | None:
        """None while it runs; "" when it went well; else what went wrong."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        if status.status != FINISHED:
            return None
        return "" if status.sub_status == COMPLETED else status.details or status.sub_status

    def close(self) -> None:
        """Hang up."""
        self._client.close()
