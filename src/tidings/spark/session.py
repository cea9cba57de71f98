"""A Spark session for Tidings' own jobs: quiet, on loopback, with the Python that runs this process.

Settings of users (`spark-submit --conf`, `SPARK_CONF_DIR`) stay theirs; this is for jobs that a `tidings` command
starts. A session that exists already is used as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.core.errors import BadInput, TidingsError
from tidings.spark.home import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[2]"
ANSWER = 10.0  # seconds in which a master accepts a connection
JAVA = 17  # the oldest that PySpark 4.3 runs on
MASTERS = r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]|spark://.+|k8s://.+|yarn"
NEED = "install a JDK or JRE, e.g. apt-get install openjdk-17-jre-headless, or set JAVA_HOME"


class NoSpark(TidingsError):
    """Spark cannot run here: the package or Java is missing; the text says what to install."""


def require_java() -> str:
    """The java that Spark will start; a clear error where there is none, or an old one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java on the PATH"
        raise NoSpark(f"Spark needs Java {JAVA} or newer and there is {where}: {NEED}")
    try:
        said = subprocess.run([java, "-version"], check=True, capture_output=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise NoSpark(f"Spark needs Java {JAVA} or newer and {java} does not run ({error}): {NEED}") from error
    version = re.search(rb'version "(\d+)[^"]*"', said)
    if version is None or int(version[1]) < JAVA:  # Java 8 calls itself 1.8
        found = version[0].decode(errors="replace") if version else "of no version"
        raise NoSpark(f"Spark needs Java {JAVA} or newer and {java} is {found}: {NEED}")
    return java


@contextmanager
def spark(
    master: str = DEFAULT_MASTER, name: str = "tidings", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session, stopped at the end if it was made here. On a terminal stderr shows that it starts."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NoSpark("pyspark is not installed: pip install 'tidings[spark]'") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with _shown(f"starting Spark at {master} ..."):
        session = _start(master, name, conf or {})
    try:
        yield session
    except KeyboardInterrupt:  # the user stopped it and need not read stack traces of its tasks
        with suppress(Py4JError, OSError):
            session.sparkContext.setLogLevel("OFF")
        raise
    finally:
        with suppress(Py4JError, OSError):  # its JVM may have died; what that led to says more
            session.stop()


def _start(master: str, name: str, conf: Mapping[str, str]) -> SparkSession:
    """Start a session; raises `BadInput` or `NoSpark`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _refuse_strange(master)
    _refuse_silent(master)
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settle()
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (_conf(master) | dict(conf)).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise BadInput(f"no Spark session at master {master!r}: {said_of(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _shown(text: str) -> Iterator[None]:
    """Show a text on stderr meanwhile, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.file_proxy import FileProxy

    if isinstance(sys.stderr, FileProxy):  # a progress bar is shown there already: the text goes above it
        print(text, file=sys.stderr)
        yield
        return
    with Console(stderr=True).status(text):
        yield


def _refuse_strange(master: str) -> None:
    """Spark itself would say so in a hundred lines."""
    if not re.fullmatch(MASTERS, master):
        raise BadInput(
            f"{master!r} is no Spark master: local[2], local-cluster[2,1,1024] (executors, cores, MiB), "
            "spark://host:7077, k8s://... or yarn"
        )


def _refuse_silent(master: str) -> None:
    """Spark itself would try for a minute."""
    if not master.startswith("spark://"):
        return
    problem: Exception | None = None
    for place in master.removeprefix("spark://").split(","):  # several, of which one leads
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            problem = error
    raise BadInput(
        f"no Spark master answers at {master} ({problem}): start one (sbin/start-master.sh), or name another, "
        f"e.g. --master '{DEFAULT_MASTER}'"
    )


def said_of(error: BaseException) -> str:
    """What went wrong in Java, without the frames."""
    lines = str(error).splitlines()
    return next(
        (line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else "no reason"
    )


def _here(master: str) -> bool:
    """Whether executors run on this machine."""
    return master.startswith(("local", "spark://127."))


def _conf(master: str) -> dict[str, str]:
    """Quiet, no web page, few shuffle partitions; executors import the same tidings as the driver."""
    conf = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.reuse": "true",
        "spark.python.authenticate.socketTimeout": "120s",  # 15 are too few where others use the machine as well
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if _here(master):
        paths = os.pathsep.join(path for path in sys.path if path)
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": paths,
        }
    if master.startswith("local"):
        conf["spark.executorEnv.SPARK_LOCAL_IP"] = "127.0.0.1"
        if not master.startswith("local-cluster"):  # one process, which may be suspended for hours
            conf["spark.network.timeout"] = "1d"
    return conf
