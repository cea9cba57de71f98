"""A standalone Spark cluster on this machine, out of the pip package: a master, and workers that count as other hosts.

Spark never tries a task twice on one host, so a task that is run twice at once (speculation) needs two: each worker has
an address of its own in the loopback network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tidings.core.errors import TidingsError
from tidings.spark.session import require_java

PATIENCE = 120.0  # seconds for a Java process to come up on a busy machine
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 1, memory: str = "1g") -> Iterator[str]:
    """The cluster's address, spark://...; each worker has one core. At the end everything of it is stopped."""
    import pyspark

    require_java()
    home = Path(os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__))
    folder.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, address: str, *command: str) -> Path:
        log = folder / f"{name}.log"
        env = {**os.environ, "SPARK_LOCAL_IP": address, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        with log.open("wb") as out:
            command = (str(home / "bin" / "spark-class"), *command)
            started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=env))
        return log

    def until(log: Path, said: str) -> None:
        end = time.monotonic() + PATIENCE
        while said not in log.read_text(errors="replace"):
            if started[-1].poll() is not None or time.monotonic() > end:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
                raise TidingsError(f"{log.stem} of the standalone Spark did not say {said!r} in {PATIENCE:g} s: {tail}")
            time.sleep(0.1)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        until(start("master", "127.0.0.1", MASTER, *master), "I have been elected leader")
        for number in range(1, workers + 1):
            address = f"127.0.0.{number}"
            place = ("--host", address, "--webui-port", "0", "--work-dir", str(folder / f"work-{number}"))
            size = ("--cores", "1", "--memory", memory)
            log = start(f"worker-{number}", address, WORKER, *place, *size, f"spark://127.0.0.1:{port}")
            until(log, "Successfully registered with master")
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
