"""Power cuts: all processes of a cluster die at once, and every disk is as it was at its last completed sync.

The stores keep that image themselves (store/disk.py, under an environment variable that only this module sets): right
after a sync has returned, and before any message that depends on it is sent. What was written since is gone, as if the
disk had lost its cache. The clients stay: publishers retry what was not answered, and subscribers continue from their
position. In the end no subscriber, old or new, may miss an acknowledged event.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidings.campaign.cluster.campaign import SETTLE, create, machines
from tidings.campaign.cluster.load import Load, PublisherLoad, Subscribing, Way, WorkerOrder
from tidings.check import judge
from tidings.core.errors import TidingsError
from tidings.net.loop import run as run_loop
from tidings.server.local import LocalCluster
from tidings.sim.run import Progress
from tidings.store.disk import IMAGES
from tidings.store.files import image_of, put_back_image

STREAMS = {"k0": ("r0", "by-key"), "n0": ("r0", "none")}
WAYS: tuple[Way, ...] = ("table", "post", "single")


def run(
    cuts: int,
    seed: int = 0,
    progress: Progress | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    replicas: int = 3,
    patience: float = SETTLE,
) -> dict[str, Any]:
    """Cut the power so many times under one load, and judge.

    ``environment``: of the replicas, for planted bugs; ``patience``: seconds for the last answers, and to settle.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidings-power-") as folder:
        play = _Play(Path(folder), seed, {**(environment or os.environ), IMAGES: "1"}, replicas, patience)
        run_loop(play.run(cuts, progress))
        evidence = play.load.evidence
        violations = [*judge(evidence.trace({name: gc for name, (_, gc) in STREAMS.items()})), *machines(Path(folder))]
    replay = f"tidings check cluster --power-cuts {cuts} --seeds {seed}..{seed + 1}"
    return {
        "target": "cluster",
        "power_cuts": play.cuts,
        "put_back": play.put_back,
        "events": evidence.published,
        "between_cuts": play.between,
        "receipts": len(evidence.receipts),
        "violations": [
            {
                "seed": seed,
                "invariant": each.invariant,
                "detail": f"{dict(each.where)}: {each.detail}",
                "replay": replay,
            }
            for each in violations[:20]
        ],
        "violated": len(violations),
        "seconds": round(time.monotonic() - began, 1),
    }


class _Play:
    """One cluster that is cut off again and again."""

    def __init__(self, folder: Path, seed: int, environment: Mapping[str, str], replicas: int, patience: float) -> None:
        self.patience = patience
        self.rng = random.Random(f"power/{seed}")
        self.cluster = LocalCluster(1, replicas, folder, durability="durable", environment=environment)
        self.load = Load(WorkerOrder())
        self.cuts = 0
        self.put_back = 0  # stores
        self.between: list[int] = []  # events acknowledged before each cut

    async def run(self, cuts: int, progress: Progress | None) -> None:
        """The whole run; what the clients remember is in ``load``."""
        await self.cluster.start()
        try:
            await create(self.cluster, STREAMS)
            self.load = Load(self._order())
            await self.load.open()
            self.load.publish()
            for _ in range(cuts):
                await self._cut()
                if progress is not None:
                    progress(self.cuts, cuts, f"{self.load.progress().acked} events acknowledged")
            await asyncio.sleep(0.5)
            ends = await self.load.stop(self.patience)
            url = self.cluster.url("r0")
            await self.load.join([Subscribing(name="late", url=url, streams=list(STREAMS), witness=True)])
            await self.load.finish(ends, self.patience)
        except TidingsError as error:  # it does not come up again: the judges are told
            self.load.evidence.gauge("cluster", str(error), 1, time.time(), 0)
            await self.load.stop(0.0)
            await self.load.finish(self.load.evidence.ends(), 0.0)
        finally:
            await self.load.close()
            await self.cluster.stop()

    async def _cut(self) -> None:
        """Wait for a moment under load, cut, put all disks back, and start again."""
        before = self.load.progress().acked
        enough = before + self.rng.randrange(1, 60)
        deadline = time.monotonic() + 20.0
        while self.load.progress().acked < enough and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.rng.uniform(0.0, 0.8))
        await self.cluster.kill_everything()
        self.between.append(self.load.progress().acked - before)
        for store in self._stores():
            put_back_image(store)
            self.put_back += 1
        self.cuts += 1
        await self.cluster.start()

    def _stores(self) -> list[Path]:
        """Every store that has an image, the configuration service's among them."""
        stores = sorted(path.parent for path in self.cluster.files.root.glob("data/*/*/log/data.mdb"))
        missing = [str(store) for store in stores if not image_of(store).exists()]
        assert not missing, f"stores without an image: {missing}"
        return stores

    def _order(self) -> WorkerOrder:
        url = self.cluster.url("r0")
        publishers = [
            PublisherLoad(
                name=f"p-{way}-{stream}",
                url=url,
                stream=stream,
                rate=200.0,
                batch=10,
                keys=50,
                way=way,
                by_key=gc == "by-key",
                collect_every=30,
                seed=at,
            )
            for at, way in enumerate(WAYS)
            for stream, (_, gc) in STREAMS.items()
        ]
        names = list(STREAMS)
        subscribers = [
            Subscribing(name="witness", url=url, streams=names, witness=True),
            Subscribing(name="durable", url=url, streams=names, kind="durable"),
            Subscribing(name="cache", url=url, streams=["k0"], kind="cache"),
        ]
        return WorkerOrder(publishers=publishers, subscribers=subscribers)
