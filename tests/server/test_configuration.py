"""The configuration service: compare-and-set, watch, sealing, and what it forgives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import lmdb
import pytest

from server.rig import until
from tidings.net.host import MachineFailed
from tidings.net.names import seed_of
from tidings.protocols.kernel import Expired, Persist, Persisted, Received, Send
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.protocols.replication.configuration import (
    Beat,
    Change,
    Configuration,
    ConfigurationSettings,
    Current,
    SweepTick,
)
from tidings.server.cluster_config import ClusterConfig, generate
from tidings.server.configuration import Conflict, EmbeddedConfiguration
from tidings.server.rpc import RpcClient
from tidings.store import Store, disk
from tidings.store.files import put_back_image

THREE = ChainConfig("r0", 4, ("a", "b", "c"))


def decided(machine: Configuration, effects: object) -> ChainConfig | None:
    """What the machine has just decided, once it is on the disk."""
    for effect in effects:  # type: ignore[attr-defined]
        if isinstance(effect, Persist):
            machine.handle(0.0, Persisted(effect.token))
            return machine.membership
    return None


# --- the machine ------------------------------------------------------------------------------------------


def test_a_change_of_the_epoch_in_force_takes_a_replica_out() -> None:
    machine = Configuration(THREE, ConfigurationSettings(), [])
    assert decided(machine, machine.handle(1.0, Change(4, "b"))) == ChainConfig("r0", 5, ("a", "c"))


@pytest.mark.parametrize("change", [Change(3, "b"), Change(5, "b")])
def test_a_change_of_another_epoch_is_refused(change: Change) -> None:
    machine = Configuration(THREE, ConfigurationSettings(), [])
    assert decided(machine, machine.handle(1.0, change)) is None


def test_the_last_replica_stays() -> None:
    machine = Configuration(ChainConfig("r0", 4, ("a",)), ConfigurationSettings(), [])
    assert decided(machine, machine.handle(1.0, Change(4, "a"))) is None


def test_who_was_taken_out_does_not_join_again() -> None:
    machine = Configuration(THREE, ConfigurationSettings(), [])
    decided(machine, machine.handle(1.0, Change(4, "b")))
    effects = machine.handle(1.1, Received("b", Beat(5, 1, join=True)))
    assert effects == [Send("b", Current(machine.membership, 1))]
    assert decided(machine, machine.handle(1.1, Received("d", Beat(5, 1, join=True)))) is not None


def test_after_a_full_stop_the_first_to_come_does_not_outlive_the_others_by_that() -> None:
    machine = Configuration(THREE, ConfigurationSettings(silence=1.5), [])
    machine.start(0.0)
    now = 0.0
    while now < 10.0:  # nobody speaks
        now += 0.25
        machine.handle(now, Expired(SweepTick()))
    first = now
    machine.handle(now, Received("b", Beat(4, 1)))
    left: ChainConfig | None = None
    while left is None:
        now += 0.25
        left = decided(machine, machine.handle(now, Expired(SweepTick())))
        machine.handle(now, Received("a", Beat(4, 1)))
        machine.handle(now, Received("b", Beat(4, 1)))
    assert left == ChainConfig("r0", 5, ("a", "b"))
    assert now - first >= 1.5


# --- the service ------------------------------------------------------------------------------------------


async def initial_replicas_speak(service: EmbeddedConfiguration, plan: ClusterConfig) -> None:
    """Let the service hear of every initial replica once."""
    for node in plan.regions[0].initial_chain(1).replicas:
        service.host.tell(node, Beat(1, 1))


def test_a_region_is_sealed_once_every_founder_was_heard_of(tmp_path: Path) -> None:
    plan = generate(1, 2, port=0)

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        assert service.current == plan.regions[0].initial_chain(1)
        await initial_replicas_speak(service, plan)
        watching = service.watch()
        seen = [await anext(watching)]
        while seen[-1].epoch < 2:
            seen.append(await anext(watching))
        assert seen[-1].replicas == seen[0].replicas
        await service.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_decisions_outlive_the_service_and_a_stale_change_is_a_conflict(tmp_path: Path) -> None:
    plan = generate(1, 2, port=0)
    first, second = plan.regions[0].initial_chain(1).replicas

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        assert await service.change(1, first) == ChainConfig("r0", 2, (second,))
        with pytest.raises(Conflict):
            await service.change(1, second)
        await service.stop()
        again = EmbeddedConfiguration(plan, "r0", tmp_path)
        await again.start()
        assert again.current == ChainConfig("r0", 2, (second,))
        async with RpcClient("node?", cluster="tidings", role="node") as asker:
            assert await asker.membership(seed_of(plan.regions[0].config), 10) == again.current
        await again.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_decision_that_a_crash_left_unsynced_is_not_undone_by_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = generate(1, 2, port=0)
    first, second = plan.regions[0].initial_chain(1).replicas
    monkeypatch.setenv(disk.IMAGES, "1")

    def die(self: disk.LogDisk) -> None:
        raise lmdb.Error("planted")

    async def membership() -> ChainConfig:
        monkeypatch.setattr(Store, "start", lambda *arguments: None)  # the power is cut before it writes anything
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        found = service.current
        await service.stop()
        return found

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        watching = service.watch()
        service.host.command(Change(1))
        while (await anext(watching)).epoch < 2:
            pass
        with monkeypatch.context() as patch:
            patch.setattr(disk.LogDisk, "_sync", die)
            service.host.command(Change(2, first))
            with pytest.raises(MachineFailed):
                await service.host.failed
        assert service.current.epoch == 2, "nobody was told"
        await service.stop()
        assert await membership() == ChainConfig("r0", 3, (second,))
        put_back_image(tmp_path / "log")
        assert await membership() == ChainConfig("r0", 3, (second,)), "whom it has told of it would be ahead of it"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_region_bootstrapped_again_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    plan = generate(1, 2, port=0)

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        await service.change(1, plan.regions[0].initial_chain(1).head)
        await service.stop()
        again = EmbeddedConfiguration(plan, "r0", tmp_path)
        again.bootstrap_again(plan.regions[0].initial_chain(0).replicas)
        await again.start()
        assert again.current == plan.regions[0].initial_chain(3)
        await again.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_service_tells_how_long_a_replica_has_been_silent(tmp_path: Path) -> None:
    plan = generate(1, 1, port=0)
    [node] = plan.regions[0].initial_chain(1).replicas

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        await initial_replicas_speak(service, plan)

        async def heard() -> bool:
            silence = service.silence(node)
            return silence is not None and silence < 1.0

        await until(heard, "the replica is heard of")
        assert service.silence("nobody") is None
        await service.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


# --- asking -----------------------------------------------------------------------------------------------


def test_who_stops_asking_while_a_dial_is_under_way_stops_at_once(tmp_path: Path) -> None:
    plan = generate(1, 1, port=0)

    async def main() -> None:
        service = EmbeddedConfiguration(plan, "r0", tmp_path)
        await service.start()
        for turns in range(60):
            asker = RpcClient(f"asker-{turns}", cluster="tidings", role="node")
            await asker.__aenter__()
            asking = asyncio.ensure_future(asker.membership(seed_of(plan.regions[0].config), 5))
            for _ in range(turns % 12):
                await asyncio.sleep(0)
            asking.cancel()
            async with asyncio.timeout(5):
                await asker.__aexit__(None, None, None)
        await service.stop()

    from tidings.net.loop import run

    run(asyncio.wait_for(main(), 30))
