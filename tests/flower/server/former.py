"""Run folders as earlier versions left them, made of one that this version wrote."""

import json

import torch
import yaml

from wardround.runs.folder import RunFolder
from wardround.runs.integrity import HASH


def make_former(folder, schema, legacy_path=None):
    """Bring a stopped run into the form of schema 1 (version 0.1) or 2: without hashes, with the keys of its time.

    Compared with folders that those versions really wrote: `record`, `dropped`, `told` and the place of the roster.
    """
    config = yaml.safe_load(folder.config_path.read_text())
    for key in (HASH, *(["schema"] if schema == 1 else [])):
        config["record"].pop(key, None)
    config["record"] |= {"schema": 2} if schema == 2 else {}
    folder.config_path.write_text(yaml.safe_dump(config, sort_keys=False))
    state = folder.read_checkpoint()
    for key in ("schema", "wardround", "files", "inputs", "best"):
        state.pop(key)
    own = state["federation"]
    own.pop("server_optimizer", None)
    roster = own["clients"]["roster"]
    roster.pop("versions")
    if schema == 1:
        roster["told"] = roster.pop("descriptions")
        roster.pop("replaced")
        own["roster"] = own.pop("clients")["roster"]
    torch.save(state, folder.checkpoint_path)
    lines = [json.loads(line) for line in folder.clients_path.read_text().splitlines()]
    if schema == 1:
        for line in lines:
            status, reason = line.pop("status"), line.pop("reason")
            line["dropped"] = f"quarantined: {reason}" if status == "quarantined" else reason
    folder.clients_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("summary.json", "deliveries.json"):
        (folder.path / name).unlink(missing_ok=True)
    if legacy_path is not None:
        folder.path.rename(legacy_path)
        return RunFolder(legacy_path)
    return folder
