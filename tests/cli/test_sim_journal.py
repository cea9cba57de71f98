"""`tidings sim --journal`: what happened to a replica happens again."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tidings.cli.app import app
from tidings.core.rows import data_rows
from tidings.net.journal import Journal, started
from tidings.protocols.kernel import Received
from tidings.protocols.nodes.replica import ReplicaSettings
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import Current
from tidings.protocols.services.publishing import OpenSession, Publish
from tidings.server.replica import Recipe


def written(path: Path) -> str:
    """The journal of a head that takes a batch; returns the hash of its effects."""
    me = "r0/p0@127.0.0.1:7400"
    service = "r0/config@127.0.0.1:7401"
    recipe = Recipe(me, "r0", service, {}, ReplicaSettings(), "seed")
    journal = Journal(path, msgspec.msgpack.encode(recipe))
    machine = recipe.make([])
    journal.start(1.0, me, [])
    journal.add(1.0, started([]), machine.start(1.0))
    rows = data_rows(1, None, [b"x"])
    messages = [
        Current(ChainConfig("r0", 1, (me,)), machine.chain.nonce),
        OpenSession("p", 7),
        Publish("s", "p", 1, 1, rows),
    ]
    for at, message in enumerate(messages):
        now, input = 1.1 + at, Received("c" if at else service, message)
        journal.take(now, input)
        journal.add(now, input, machine.handle(now, input))
    found = journal.hash
    journal.close()
    return found


def test_a_journal_replays_with_the_same_effects(tmp_path: Path) -> None:
    found = written(tmp_path / "j")
    result = CliRunner().invoke(app, ["sim", "--journal", str(tmp_path / "j"), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["trace_hash"] == found and said["violations"] == [] and said["protocol_events"] == 4
    assert said["seed"] is None, "all that was random is in the journal"


def test_a_journal_whose_hash_differs_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "j")
    made = Recipe.make
    monkeypatch.setattr(
        Recipe, "make", lambda self, entries: made(msgspec.structs.replace(self, node="r0/other"), entries)
    )
    result = CliRunner().invoke(app, ["sim", "--journal", str(tmp_path / "j"), "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["violations"][0]["invariant"] == "replay"
