"""docs/guide/deploy.md: three directories, started separately with `tidings serve`, form one cluster."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from server.rig import Writer, tidings, tidings_json, until
from tidings.server.cluster_config import free_port
from tidings.server.rpc import RpcClient

HOSTS = {
    "a": ("config east/config", "replica east/p0"),
    "b": ("replica east/p1",),
    "c": ("config west/config", "replica west/p0"),
}


def plan(addresses: list[str]) -> str:
    """The file of the guide, with these addresses."""
    guide = (Path(__file__).parents[2] / "docs/guide/deploy.md").read_text()
    text = guide.partition("```toml\n")[2].partition("```")[0]
    for address in addresses:
        old = text.partition('"10.')[2].partition('"')[0]
        text = text.replace(f"10.{old}", address, 1)
    assert '"10.' not in text
    return text


class Host:
    """A directory, and the processes that were started in it."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.file = folder / "cluster.toml"
        self.file.write_text(text)
        self.processes: list[subprocess.Popen[bytes]] = []

    def serve(self, what: str) -> None:
        kind, name = what.split()
        command = [sys.executable, "-m", "tidings.cli.app", "serve", kind, "-c", str(self.file), "--id", name]
        self.processes.append(subprocess.Popen(command))

    def stop(self) -> list[int]:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(20) for process in self.processes]


def test_three_directories_started_separately_form_one_cluster(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    text = plan(addresses)
    hosts = {name: Host(tmp_path / name, text) for name in HOSTS}
    file = hosts["c"].file

    async def chains() -> dict[str, list[tuple[str, str]]]:
        status: dict[str, Any] = await asyncio.to_thread(tidings_json, "status", "-c", file)
        return {
            region["name"]: sorted((each["role"], each["id"]) for each in region["replicas"] if each["alive"])
            for region in status["regions"]
        }

    async def complete() -> bool:
        found = await chains()
        return {name: len(replicas) for name, replicas in found.items()} == {"east": 2, "west": 1} and all(
            role in ("head", "tail") for replicas in found.values() for role, _ in replicas
        )

    async def main() -> None:
        await until(complete, "two replicas in the east and one in the west", 40)
        await asyncio.to_thread(tidings, "stream", "create", "s", "--region", "east", "-c", file)
        async with RpcClient("test", cluster="prices") as asker:
            east = addresses[1:3]
            await Writer(asker, east).publish("s", [b"x", b"y"])

            async def spread() -> bool:
                [stream] = (await asyncio.to_thread(tidings_json, "status", "-c", file))["streams"]
                return bool(stream["horizon"] == {"east": 3, "west": 3})

            await until(spread, "the west has what the east has published")

    try:
        for name, what in HOSTS.items():
            for each in what:
                hosts[name].serve(each)
        asyncio.run(main())
    finally:
        codes = [code for host in hosts.values() for code in host.stop()]
    assert codes == [0] * 5
    assert (hosts["b"].folder / "data/east/p1/log").is_dir()
    assert not list(tmp_path.glob("*/run/*.json"))
