"""The examples run as they stand, against a cluster of real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.server.local import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.check
def test_a_thousand_alerts_fire_once_each_and_the_tape_has_one_order(tmp_path: Path) -> None:
    async def main() -> str:
        async with LocalCluster(3, 1, tmp_path, edges=1) as cluster:
            command = [sys.executable, str(EXAMPLES / "stock_alerts.py"), cluster.url("r0")]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

    said = asyncio.run(main())
    assert "each once" in said and "one order in both places" in said
