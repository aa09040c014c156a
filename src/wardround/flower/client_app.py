"""A hospital's client app. A SuperNode starts a process for every message: nothing heavy is imported here.

Where `wardround join` keeps a trainer running, the order is handed to it; else the work is done in this process,
for the hospital that the node's configuration names (`hospital="…/hospital.yaml"`) or, in a simulation, for the
part of the server's dataset that is the node's.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp

from wardround.errors import ConfigError, WardroundError
from wardround.flower.hospital.trainer_daemon import ask, trainer_socket
from wardround.flower.messages import Note, from_records, pack, to_records, unpack

if TYPE_CHECKING:
    from wardround.flower.hospital.hospital import Hospital
    from wardround.flower.hospital.state_file import StateFile

__all__ = ["app"]

log = getLogger("flwr").log  # Flower's own log

FAILED = 2  # Flower's code for a client app that could not do its work
MEMORY = "wardround-memory"

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """The reply to an order; an error is one line, without details of the data."""
    try:
        order = from_records(message.content)
        return Message(to_records(_work(order, context)), reply_to=message)
    except WardroundError as error:
        reason = str(error)
    except Exception as error:  # its words may hold what must stay here: they go into this node's log only
        log(ERROR, "%s", traceback.format_exc())
        reason = f"{type(error).__name__}, see the hospital's log"
    return Message(Error(FAILED, reason), reply_to=message)


def _work(order: Note, context: Context) -> Note:
    socket = trainer_socket()
    if socket is not None:
        return unpack(ask(socket, pack(order)))
    if "hospital" in context.node_config:
        with _from_file(str(context.node_config["hospital"])).in_turn() as own:
            return own.reply(order)
    hospital = _simulated_hospital(context)
    kept = context.state.config_records.get(MEMORY)
    hospital.load_state(kept["state"] if kept is not None else b"")  # type: ignore[arg-type]
    reply = hospital.reply(order)
    if memory := hospital.save_state():
        context.state[MEMORY] = ConfigRecord({"state": memory})
    return reply


def _simulated_hospital(context: Context) -> Hospital:
    node = context.node_config
    if "partition-id" not in node:
        raise ConfigError('the node configuration has neither hospital="…/hospital.yaml" nor partition-id')
    run: Any = context.run_config
    return _simulated(str(run.get("config", "")), str(run.get("config-text", "")), int(node["partition-id"]))


@lru_cache(maxsize=64)
def _from_file(path: str) -> StateFile:
    """The hospital of a file. Its memory lies in its own folder: a server can begin Flower runs as it likes."""
    from wardround.flower.config import load_hospital
    from wardround.flower.hospital.hospital import Hospital
    from wardround.flower.hospital.state_file import STATE_FILE, StateFile

    config = load_hospital(Path(path))
    folder = config.state or Path(path).parent / f".{config.name}"
    return StateFile(folder / STATE_FILE, Hospital.from_config(config, folder))


@lru_cache(maxsize=1024)
def _simulated(path: str, text: str, part: int) -> Hospital:
    from wardround.flower.config import from_run_config
    from wardround.flower.hospital.hospital import Hospital

    return Hospital.simulated(from_run_config(path, text), part)
