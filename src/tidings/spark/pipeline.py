"""The declarative pipeline: a Spark Declarative Pipelines project in a directory, and a run of it.

    DIR/
      spark-pipeline.yml             the project; the first run writes it, later runs leave it alone
      transformations/tidings.py     defines the tables (spark/tables.py); files beside it may define more
      warehouse/<table>/             the tables, as Parquet
      storage/                       how far each flow has got
      metastore/                     which tables there are (Derby, embedded)
      failure.txt                    all that Spark said about the last run that failed

Pipelines run over Spark Connect. Its server runs inside the Spark driver, on loopback, at a free port and behind a
token that only this process knows, and ends with the driver. The catalog is Hive's with an embedded metastore: one in
memory would not know the tables when the next run finds their directories. One run at a time works in a directory.

A run holds leases on all streams from before its first question, and leaves them for the next run. So rows are read as
of a number that is no later than the end of the run: the last event of a key is never missing because an event that the
run does not read has collected it. Rows that are collected between two runs are still there for the second, for as long
as a lease lasts.

Before a run takes anything in, it compares one event of each stream with its tables: the last one taken in that the
cluster still has. A cluster that was replaced has another event at that number.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tidings import sync
from tidings.client.url import SCHEME
from tidings.core.errors import BadInput, TidingsError
from tidings.core.ids import MARK, is_internal, stream_name
from tidings.spark.session import DEFAULT_MASTER, NoSpark, require_java, spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.spark.archive import Source

Progress: TypeAlias = Callable[[int, int, str], None]

SPEC = "spark-pipeline.yml"
PROJECT = """\
name: tidings
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
DEFINITIONS = '''\
"""The tables of Tidings. Files beside this one may define more; they read these with spark.read.table(...)."""

from tidings.spark.tables import define

define(spark)  # noqa: F821, which Spark puts here
'''
PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
AUTHENTICATE, REMOTE = "SPARK_CONNECT_AUTHENTICATE_TOKEN", "SPARK_CONNECT_MODE_ENABLED"
AGAIN = "what is committed stays, run it again"
MEND = "mend the definition; what is committed stays"
OVER = ("COMPLETED", "FAILED", "SKIPPED", "EXCLUDED", "IDLE", "STOPPED")


class PipelineFailed(TidingsError):
    """A run has failed. What its flows had committed stays, and the next run goes on from there."""


class Replaced(TidingsError):
    """The tables are of another cluster."""


class PipelineBusy(TidingsError):
    """Another run works in the same directory."""


class Project:
    """A pipeline in a directory."""

    def __init__(self, directory: str | Path) -> None:
        self.root = Path(directory).absolute()
        self.spec = self.root / SPEC
        self.storage = self.root / "storage"
        self.warehouse = self.root / "warehouse"
        self.metastore = self.root / "metastore"
        self.failure = self.root / "failure.txt"

    def make(self) -> Project:
        """Write what is not there yet; returns itself."""
        definitions = self.root / "transformations" / "tidings.py"
        definitions.parent.mkdir(parents=True, exist_ok=True)
        if not self.spec.exists():
            definitions.write_text(DEFINITIONS)
            self.spec.write_text(PROJECT.format(storage=self.storage.as_uri()))
        return self

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only run in this directory; raises `PipelineBusy`."""
        with open(self.root / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PipelineBusy(
                    f"a pipeline already runs in {self.root}: wait for it, or use another --dir"
                ) from None
            yield

    def conf(self) -> dict[str, str]:
        """What a session needs to run it, besides what all of ours do."""
        derby = f"jdbc:derby:;databaseName={self.metastore};create=true"
        return {
            "spark.plugins": PLUGIN,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(self.warehouse),
            "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
            "spark.hadoop.hive.exec.scratchdir": str(self.root / ".scratch"),
            "spark.hadoop.hive.exec.local.scratchdir": str(self.root / ".scratch"),
        }


def run(
    directory: str | Path,
    settings: Mapping[str, str],
    *,
    master: str = DEFAULT_MASTER,
    dry: bool = False,
    full_refresh: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the pipeline of a directory, or only check it; ``settings`` as in spark/tables.py. What came of it."""
    from tidings.spark.tables import HELD, TOKEN, URL, look

    began = time.monotonic()
    os.environ.setdefault("SPARK_CONNECT_LOG_LEVEL", "critical")  # what goes wrong is said once, and by us
    _needed()
    look(settings[URL], settings.get(TOKEN, ""))  # before anything is made or started
    project = Project(directory).make()
    os.environ.setdefault(AUTHENTICATE, secrets.token_hex(16))
    with ExitStack() as stack:
        stack.enter_context(project.alone())
        sources = stack.enter_context(_held(project, settings))
        session = stack.enter_context(spark(master, "tidings pipeline", project.conf()))
        session.sparkContext.setLogLevel("OFF")
        _quiet_derby(session)
        if not full_refresh:
            _recognize(session, project, sources)
        with _connected(session) as remote:
            held = {name: lease.asof for source in sources for name, lease in source.leases.items()}
            for name, value in {**settings, HELD: json.dumps(held)}.items():
                remote.conf.set(name, value)
            flows = _flow(project, remote, dry=dry, full_refresh=full_refresh, progress=progress)
        result: dict[str, Any] = {"dir": str(project.root), "dry": dry, "flows": flows}
        if not dry:
            result |= _told(session, project)
            for source in sources:
                source.move({each["stream"]: each["end"] for each in result["streams"]})
    return result | {"seconds": round(time.monotonic() - began, 3)}


@contextmanager
def _held(project: Project, settings: Mapping[str, str]) -> Iterator[list[Source]]:
    """A connection to every region, and a lease on each of its streams, which is left to the next run."""
    from tidings.spark.archive import Source, regions_of
    from tidings.spark.lake import Lake
    from tidings.spark.tables import LEASE, LEASE_SECONDS, TIMEOUT, TOKEN, URL

    how: dict[str, Any] = {"token": settings.get(TOKEN) or None, "timeout": TIMEOUT}
    sources: list[Source] = []
    with ExitStack() as stack:
        first = stack.enter_context(sync.connect(settings[URL], **how))
        for region, servers in regions_of(first).items():
            connection = stack.enter_context(sync.connect(f"{SCHEME}{servers}", **how))
            sources.append(source := Source(region, servers, connection))
            source.look()
            source.streams = {name: each for name, each in source.streams.items() if not is_internal(name)}
            source.hold(Lake(project.root), {}, float(settings.get(LEASE, LEASE_SECONDS)))
        try:
            yield sources
        finally:
            for source in sources:
                source.leave()


def _recognize(session: SparkSession, project: Project, sources: Sequence[Source]) -> None:
    """Raise `Replaced` unless the last event that a region still has of what was taken in is the one in the tables."""
    from tidings.spark.archive import IDENTITY
    from tidings.spark.tables import intake_of, is_event

    for source in sources:
        name = intake_of(source.region)
        if not session.catalog.tableExists(name):
            continue
        table = session.table(name)
        covered = table.where(f"NOT ({is_event()})").groupBy("stream").agg({"before": "max"}).collect()
        named = {stream.name: stream for stream in source.streams.values()}
        for stream, _ in covered:
            now = named.get(stream_name(stream))
            if now is not None and now.id != stream and stream.partition(MARK)[2] not in now.past:
                raise Replaced(
                    f"stream {now.name!r} is another one in region {source.region} than in {project.warehouse}: these "
                    "are the tables of another cluster; --full-refresh begins anew, with what there is"
                )
        ends = {stream: end for stream, end in covered if stream in source.streams}
        batches = [source.newest(stream, end) for stream, end in sorted(ends.items())]
        here = [event for batch in batches if batch is not None for event in batch.to_pylist()]
        if not here:
            continue
        wanted = session.createDataFrame([(each["stream"], each["seq"]) for each in here], "stream string, seq bigint")
        events = table.where(is_event()).join(wanted, ["stream", "seq"]).select(*IDENTITY.names)
        held = {each["stream"]: each for each in events.toArrow().to_pylist()}
        for each in here:
            if held.get(each["stream"]) != each:
                raise Replaced(
                    f"event {each['seq']} of {each['stream']!r} is another one in region {source.region} than in "
                    f"{project.warehouse}: these are the tables of another cluster; --full-refresh begins anew, "
                    "with what there is"
                )


def _needed() -> None:
    """Say what is missing before anything is made."""
    try:
        import pyspark.pipelines.cli  # noqa: F401, whatever it needs is what we need
    except ImportError as error:
        raise NoSpark(f"pipelines need {error.name}: pip install 'tidings[spark]'") from error
    require_java()


def _quiet_derby(session: SparkSession) -> None:
    """The metastore keeps a log, in the directory that somebody stands in unless told otherwise."""
    jvm: Any = session._jvm
    jvm.System.setProperty("derby.stream.error.file", os.devnull)


@contextmanager
def _connected(session: SparkSession) -> Iterator[SparkSession]:
    """A Spark Connect session with the server inside a session's driver."""
    from pyspark.sql.connect.session import SparkSession as Remote

    jvm: Any = session._jvm
    port = getattr(getattr(jvm, SERVICE), "MODULE$").localPort()
    remote: Any = Remote.builder.remote(f"sc://localhost:{port}").create()
    os.environ[REMOTE] = "1"  # so that functions and the active session of definitions are those of Connect
    try:
        yield remote
    finally:
        del os.environ[REMOTE]
        remote.stop()


def _flow(project: Project, remote: Any, *, dry: bool, full_refresh: bool, progress: Progress | None) -> dict[str, str]:
    """Define the graph and run it; the last state of every flow."""
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    failures: list[str] = []
    flows: dict[str, str] = {}
    try:
        spec = load_pipeline_spec(project.spec)
        for name, value in spec.configuration.items():
            remote.conf.set(name, value)
        graph = create_dataflow_graph(remote, spec.catalog, spec.database, spec.configuration)
        registry = SparkConnectGraphElementRegistry(remote, graph)
        try:
            with redirect_stdout(io.StringIO()):
                register_definitions(project.spec, registry, spec, remote, graph)
        except (TidingsError, PySparkException):
            raise
        except Exception as error:  # in a definition that somebody has added
            raise PipelineFailed(_why(project, [f"{type(error).__name__}: {error}"], MEND)) from error
        for said in start_run(remote, graph, [], full_refresh, [], dry, spec.storage):
            if "pipeline_event_result" in said:
                _follow(said["pipeline_event_result"].event.message, flows, failures, progress)
    except PySparkException as error:
        hint = MEND if dry or isinstance(error, AnalysisException) else AGAIN
        raise PipelineFailed(_why(project, [*failures, str(error)], hint)) from error
    return flows


def _follow(text: str, flows: dict[str, str], failures: list[str], progress: Progress | None) -> None:
    """Take in an event of the run, such as `Flow spark_catalog.default.events is RUNNING.`"""
    words = text.split()
    if words[:1] == ["Flow"] and len(words) > 3:
        name, state = words[1].replace("`", "").rpartition(".")[2], words[3].rstrip(".:")
        flows[name] = state.lower()
        if progress is not None:
            done = [each for each in flows.values() if each.upper() in OVER]
            progress(len(done), len(flows), f"{name} {state.lower()}")
    if "FAILED" in text or "Error" in text:
        failures.append(text)


def _why(project: Project, said: list[str], hint: str) -> str:
    """Of all that Spark says of a failure what a person wants to know; the rest is written down."""
    project.failure.write_text("\n".join([*said, ""]))
    lines = [line.strip() for text in said for line in text.partition("JVM stacktrace")[0].splitlines()]
    ours = [line for line in lines if line.startswith("tidings.") and ": " in line]
    python = [line for line in lines if re.match(r"\w*(Error|Exception): ", line)]
    text = next(iter([*ours, *python[-1:], *[line for line in lines if line]]), "Spark does not say why")
    anew = "DataLoss" in text or "LeaseExpired" in text
    hint = "--full-refresh begins anew, with what there is" if anew else hint
    text = text.removeprefix("Error: ")[:600]
    return f"the pipeline has failed: {text} (more in {project.failure}); {hint}"


# --- what came of it -------------------------------------------------------------------------------------------


def _told(session: SparkSession, project: Project) -> dict[str, Any]:
    from tidings.spark.audit import summary

    names = sorted([each.name for each in session.catalog.listTables() if not each.isTemporary])
    counts = {name: session.table(name).count() for name in names}
    tables = [{"name": name, "rows": rows, "path": str(project.warehouse / name)} for name, rows in counts.items()]
    streams = session.table("health").orderBy("stream").toArrow().to_pylist()
    return {"tables": tables, "streams": streams, "audit": summary(session.table("audit").toArrow())}


def read(session: SparkSession, directory: str | Path, table: str) -> Any:
    """A table of a pipeline as a data frame, in any session that sees its directory."""
    path = Project(directory).warehouse / table
    if not path.is_dir():
        raise BadInput(f"{path} is not there: tidings pipeline run makes the tables, or is {table!r} none of them?")
    return session.read.parquet(str(path))
