"""Under which name a replica comes back: its own with its disk, another one without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidings.net.names import name_of
from tidings.protocols.replication.chain_config import ChainConfig
from tidings.server.identity import ReplicaSlot

ADDRESS = "127.0.0.1:7400"
FIRST = f"r0/p0@{ADDRESS}"


def come(
    folder: Path, epoch: int = 1, chain: tuple[str, ...] = (FIRST,), joining: str | None = None, **how: bool
) -> str:
    """Take the place while this membership is in force, and leave it; the name that was used."""

    async def look_up() -> ChainConfig:
        return ChainConfig("r0", epoch, chain, joining)

    async def main() -> str:
        durable = how.pop("durable", True)
        node, store = await ReplicaSlot("r0/p0", ADDRESS, folder, durable=durable).take(look_up, **how)
        store.close()
        return name_of(node)

    return asyncio.run(main())


def test_a_founder_has_the_plain_name(tmp_path: Path) -> None:
    assert come(tmp_path) == "r0/p0"


def test_with_its_disk_a_replica_is_the_one_it_was(tmp_path: Path) -> None:
    come(tmp_path)
    assert come(tmp_path, epoch=7) == "r0/p0"


def test_a_lost_directory_in_a_sealed_region_means_another_name(tmp_path: Path) -> None:
    assert come(tmp_path, epoch=2) == "r0/p0~3"


def test_a_slot_that_is_not_in_the_chain_joins_under_its_plain_name(tmp_path: Path) -> None:
    others = ("r0/p1@127.0.0.1:7401",)
    assert come(tmp_path, epoch=5, chain=others) == "r0/p0"


def test_a_joining_namesake_is_not_impersonated(tmp_path: Path) -> None:
    others = ("r0/p1@127.0.0.1:7401",)
    assert come(tmp_path, epoch=5, chain=others, joining=FIRST) == "r0/p0~6"


def test_a_store_that_is_gone_means_another_name_even_at_the_bootstrap(tmp_path: Path) -> None:
    come(tmp_path)
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    assert come(tmp_path) == "r0/p0~2"
    assert come(tmp_path, epoch=9) == "r0/p0~2"


def test_a_damaged_store_is_put_aside_and_means_another_name(tmp_path: Path) -> None:
    come(tmp_path)
    data = tmp_path / "log" / "data.mdb"
    data.write_bytes(data.read_bytes()[:100])
    assert come(tmp_path, epoch=4) == "r0/p0~5"
    assert (tmp_path / "log.damaged-1").is_dir()


def test_a_store_without_its_name_is_put_aside(tmp_path: Path) -> None:
    come(tmp_path)
    (tmp_path / "life.json").unlink()
    assert come(tmp_path, epoch=4) == "r0/p0~5"
    assert (tmp_path / "log.damaged-1").is_dir()


@pytest.mark.parametrize("epoch", [1, 2, 8])
def test_memory_means_another_name_each_time_but_the_first(tmp_path: Path, epoch: int) -> None:
    assert come(tmp_path, durable=False) == "r0/p0"
    assert come(tmp_path, epoch=epoch, durable=False) == f"r0/p0~{epoch + 1}"


def test_a_region_founded_anew_in_memory_begins_with_plain_names(tmp_path: Path) -> None:
    come(tmp_path, durable=False)
    assert come(tmp_path, epoch=12, durable=False, bootstrapping=True) == "r0/p0"
