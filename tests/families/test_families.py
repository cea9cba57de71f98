"""A family of protocols is a few files and one registration: proved with a toy that nothing below src/ knows."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from client.rig import take
from net.rig import until
from tidings.campaign import runner
from tidings.campaign.targets import BUILTIN, target_of, targets
from tidings.check import judge
from tidings.client.commands import Open
from tidings.client.connection import Connection, connect
from tidings.client.machine import ClientMachine, MachineSettings
from tidings.core.errors import BadInput
from tidings.net.loop import run
from tidings.protocols.brokers.messages import Follow
from tidings.protocols.fabrics.family import (
    PROMISED,
    FabricChoice,
    Family,
    Place,
    choose,
    families,
    family_of,
    names,
    register,
)
from tidings.protocols.kernel import Command, Message, Received, Report, Send, Timer, below
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.services.catalog import Description, StreamDef, StreamState
from tidings.results import code_hash
from tidings.server.local import LocalCluster
from tidings.sim.build import Deployment
from tidings.sim.run import failures, simulate
from tidings.sim.scenario import load

SCENARIO = Path(__file__).with_name("flooding.toml")


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings.cli.app", *[str(each) for each in arguments]]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# --- in the simulator ---------------------------------------------------------------------------------------


def test_it_runs_in_the_simulator_under_loss_complete_and_in_order(flooding: Any) -> None:
    deployment = Deployment(load(SCENARIO), 1)
    world = deployment.world
    world.at(0.5, lambda: world.impair("east", "east", loss=0.1))
    world.at(6.0, lambda: world.impair("east", "east", loss=None))
    simulate(deployment)
    trace = deployment.recorder.trace()
    assert failures(deployment) + judge(trace, flooding.FLOODING.invariants) == []
    assert world.fault_counts["loss"] > 100 and world.reports["flood_lacks"], "replicas fill what was lost"
    members = [deployment.client(node).fabric for node in deployment.members()]
    end = deployment.proxy(deployment.resolve("east/head")).log.histories["prices"].horizon
    assert {type(each) for each in members} == {flooding.FloodingMember} and end > 1000
    assert {each.horizon("prices") for each in members} == {end}
    assert all(each.streams["prices"].passed_on > 100 for each in members), "members pass on what they receive"


def test_an_option_that_the_family_does_not_have_is_refused_where_it_stands(flooding: Any, tmp_path: Path) -> None:
    text = SCENARIO.read_text().replace("fanout = 1", "fan = 2")
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(BadInput, match=r"x\.toml:13: fabric\.fan = 2: unknown key; .*fanout, period, kept_rows"):
        load(tmp_path / "x.toml")


# --- in a campaign ------------------------------------------------------------------------------------------


def test_its_campaign_is_a_target_of_the_command_line_and_of_the_processes_that_run_seeds(
    flooding: Any, tmp_path: Path
) -> None:
    done = process("check", "flooding", "--seeds", "0..6", "--jobs", 2, "--ledger-dir", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["target"], found["violations"]) == ("flooding", [])
    assert found["faults"]["loss"] > 50 and found["hours_simulated"] > 0.01
    assert runner.totals(tmp_path)["by_target"]["flooding"]["seeds"] == 6
    assert "flooding   a simulation of the fabric flooding; seeds 0..100" in process("check", "--help").stdout


def test_its_own_invariant_catches_a_bug_that_is_planted_in_it(
    flooding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = flooding.FloodingMember._pass_on

    def twice(*arguments: Any) -> list[Any]:
        return [*once(*arguments), *once(*arguments)]

    monkeypatch.setattr(flooding.FloodingMember, "_pass_on", twice)
    found = runner.run("flooding", range(2), folder=tmp_path)["violations"]
    assert {each["invariant"] for each in found} == {"floods_end"}
    assert {each["replay"] for each in found} == {
        f"tidings check flooding --seeds {seed}..{seed + 1}" for seed in (0, 1)
    }


def test_the_invariants_of_every_run_catch_a_bug_that_is_planted_in_it(
    flooding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flooding.FloodingMember, "_want", lambda self, name: [])
    found = runner.run("flooding", range(1), folder=tmp_path)["violations"]
    assert {each["invariant"] for each in found} == {"acknowledged", "convergence"}, "what was lost is never asked for"


def test_what_its_seeds_showed_is_kept_under_a_hash_of_its_own_code(flooding: Any) -> None:
    target = target_of("flooding")
    hashed = {path.name for path in code_hash.sources(target.module, *target.tested)}
    assert {"flooding.py", "flooding_campaign.py", "simulated.py", "family.py", "replica.py"} <= hashed
    assert "test_families.py" not in hashed and "conftest.py" not in hashed
    assert runner.code_of("flooding") == code_hash.code_on_disk(target.module, *target.tested)


def test_its_experiments_are_listed(flooding: Any) -> None:
    listed = json.loads(process("lab", "list", "--json").stdout)["experiments"]
    assert {"id": "flooded", "paper": "flooding", "title": "what floods miss", "claims": ["FL1"]} in listed


# --- in a cluster of real processes -------------------------------------------------------------------------


def member(peer: Connection) -> Any:
    fabric = peer._session.machine.fabric
    assert fabric is not None
    return fabric.client.fabric


def test_it_runs_in_a_cluster_of_real_processes_and_in_the_replay_of_their_journals(
    flooding: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        fabric = choose("flooding", fanout=2, period=0.1)
        async with LocalCluster(1, 2, tmp_path / "cluster", fabric=fabric, journal=tmp_path / "journals") as cluster:
            assert cluster.config.fabric == fabric
            url = cluster.url("r0")
            async with (
                connect(url) as t,
                connect(url, client_id="one", peer=True) as one,
                connect(url, client_id="two", peer=True) as two,
            ):
                s = (await t.create_stream("s")).id
                await t.publish("s", payload=b"0")
                peers = (one, two)
                subs = [await peer.subscribe("s", start="earliest").open() for peer in peers]
                await until(lambda: all(member(peer).horizon(s) and member(peer).company for peer in peers), "company")
                for at in range(1, 60):
                    await t.publish("s", payload=b"%d" % at)
                for sub in subs:
                    assert [event.payload for event in await take(sub, 60)] == [b"%d" % at for at in range(60)]
                assert all(not peer._session.machine.subscribers for peer in peers), "the fabric feeds them"
                assert all(member(peer).streams[s].passed_on for peer in peers), "they flood each other"

    run(asyncio.wait_for(main(), 60))
    journals = sorted((tmp_path / "journals").glob("r0-p*.journal"))
    assert len(journals) == 2
    for journal in journals:
        done = process("sim", "--journal", journal, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["violations"] == []


def test_a_peer_that_does_not_know_its_regions_fabric_is_fed_by_replicas() -> None:
    chain = ChainConfig("r0", 1, ("r0/a@h:1", "r0/b@h:2"))
    states = {"s": StreamState(5, 4, 0)}
    for fabric in (FabricChoice("unheard-of"), FabricChoice("pull", {"option_of_tomorrow": 1})):
        client = ClientMachine("c", "web", ("@h:1",), MachineSettings(), random.Random(3), peer=True)
        (ask,) = [effect.message for effect in client.start(0.0) if isinstance(effect, Send)]
        told = Description(ask.nonce, "r0", (chain,), (StreamDef("s", "r0"),), states, fabric=fabric)
        assert Report("fabric_unknown") in client.handle(0.1, Received(chain.head, told))
        opened = client.handle(0.2, Open(1, "s", 1, "", None, 3))
        assert [type(effect.message) for effect in opened if isinstance(effect, Send)] == [Follow]


# --- the registry -------------------------------------------------------------------------------------------


def test_what_is_unknown_is_an_error_that_lists_what_there_is(flooding: Any) -> None:
    with pytest.raises(BadInput, match=r"^fabric 'nope' is unknown: must be one of flooding, pull$"):
        family_of("nope")
    for name in PROMISED:
        with pytest.raises(BadInput, match=rf"^fabric '{name}' is not built yet: must be one of flooding, pull$"):
            family_of(name)
    listed = "must be one of sprinkler, gryphon, cluster, spark, sink, flooding"
    with pytest.raises(BadInput, match=rf"^there is no target 'nope': {listed}$"):
        runner.run("nope", range(1))
    for command, words in (
        ("check nope", listed),
        ("bench nope", "must be one of gc, sim, throughput, latency, store, spark, filter, fanout, peers"),
    ):
        done = process(*command.split())
        assert done.returncode == 2 and words in " ".join(done.stderr.split())
    done = process("lab", "run", "nope")
    assert done.returncode == 1 and "must be one of SP3, SP4, " in done.stderr and "flooded" in done.stderr
    assert "the experiments of qsm are not built yet: must be one of SP3, " in process("lab", "run", "qsm").stderr


def test_no_name_is_given_twice(flooding: Any) -> None:
    with pytest.raises(BadInput, match="fabric 'flooding' is registered twice"):
        register(Family("flooding", flooding.FloodingOptions, flooding.FloodingSource, flooding.FloodingMember))
    assert "flooding" in names() and target_of("flooding") in targets()
    flooding_as_sink = Family("sink", *_parts(flooding), campaign="families.flooding_campaign")
    register(flooding_as_sink)
    try:
        with pytest.raises(BadInput, match="fabric 'sink' brings a campaign, but a target has that name"):
            targets()
    finally:
        from tidings.protocols.fabrics import family

        del family._FAMILIES["sink"]


def _parts(flooding: Any) -> tuple[Any, Any, Any]:
    return flooding.FloodingOptions, flooding.FloodingSource, flooding.FloodingMember


def test_two_messages_of_one_name_are_refused_when_a_family_registers_not_when_they_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        made.TwoRumours = type(Message)("TwoRumours", (Message,), {"__module__": name}, frozen=True)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def source(*arguments: Any) -> Any: ...

    module("first_fabric")
    mine = module("second_fabric")
    source.__module__ = mine.__name__
    with pytest.raises(
        BadInput, match=r"'gossip': TwoRumours is a class of first_fabric and second_fabric; rename one"
    ):
        register(Family("gossip", dict, source, source))
    assert "gossip" not in names()


def test_no_two_classes_of_this_tree_share_a_tag() -> None:
    families()
    for base in (Message, Timer, Command):
        found = [each for each in below(base) if each.__module__.startswith("tidings.")]
        assert len({each.__name__ for each in found}) == len(found)


def test_every_family_of_this_tree_with_a_campaign_is_a_target() -> None:
    modules = {each.module for each in BUILTIN}
    assert [each.name for each in families() if each.campaign and each.campaign not in modules] == []


def test_both_ends_of_every_family_have_the_interface(flooding: Any) -> None:
    place = Place("r0/c", "r0", ChainConfig("r0", 1, ("r0/p0",)))
    for each in families():
        choice = FabricChoice(each.name)
        source, member = choice.source(place, {}, random.Random(1)), choice.member(place, {}, random.Random(1))
        assert source.handles and member.handles
        for end, protocol in ((source, "FabricSource"), (member, "FabricMember")):
            from tidings.protocols.fabrics import family

            wanted = {name for name in vars(getattr(family, protocol)) if not name.startswith("_")}
            assert sorted(wanted - set(dir(end))) == []
        fitted = each.fit({}, 5000)
        assert choose(each.name, **fitted).options == dict(fitted)


def test_help_does_not_wait_for_the_heavy_libraries() -> None:
    code = (
        "import sys; from tidings.campaign.targets import targets; targets();"
        "print([m for m in ('pyarrow', 'numpy', 'numba', 'rich', 'pyspark') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
