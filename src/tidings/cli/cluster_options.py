"""How a command finds its cluster: --url or --dir, then TIDINGS_URL or TIDINGS_DIR, then the default.

The default is the cluster in ./.tidings if there is one, else tidings://127.0.0.1:7400. A directory gives the addresses
of all replicas. A URL of one address is completed with the replicas that this address has named at an earlier contact.
Commands of the supervisor (down, fault, replica) need the directory: the supervisor's run file is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from tidings.cli.arguments import is_utf8, parse_text

if TYPE_CHECKING:
    from tidings.client.connection import Connection
    from tidings.server.cluster_queries import ClusterTarget
    from tidings.server.paths import ClusterPaths, Process

T = TypeVar("T")

DIRECTORY = Path(".tidings")
"""Where a cluster is, unless told otherwise; ours, because it is as hidden as it is easy to remove."""

URL_VARIABLE = "TIDINGS_URL"
DIR_VARIABLE = "TIDINGS_DIR"
STARTING = (
    10.0  # seconds for which a cluster whose supervisor runs is given time to listen; ours: it takes two or three
)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        callback=parse_text,
        metavar="URL",
        show_default=False,
        help=f"The cluster's addresses: tidings://HOST:PORT,HOST:PORT. Or set {URL_VARIABLE}.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        file_okay=False,
        metavar="DIR",
        show_default=False,
        help=f"The cluster's directory; default {DIRECTORY}. Or set {DIR_VARIABLE}.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="TIDINGS_TOKEN", callback=parse_text, help="For clusters that ask for one."),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", help="A cluster file, for clusters on several hosts.", metavar="CLUSTER.toml", dir_okay=False
    ),
]


class FoundCluster(NamedTuple):
    """The cluster that a command is to talk to."""

    addresses: tuple[str, ...]
    name: str = "tidings"
    directory: Path | None = None  # where its files are, if it was found by them
    file: Path | None = None  # the cluster file, if that was named
    only: str = ""  # the one address of the URL; the other addresses were learned from it

    @property
    def url(self) -> str:
        """The URL of all its addresses."""
        from tidings.client.url import make_url

        return make_url(self.addresses)


# --- finding ----------------------------------------------------------------------------------------------


def find_cluster(url: str | None, directory: Path | None, config: Path | None = None) -> FoundCluster:
    """The cluster that is named by options, else by the environment, else the default; `BadInput` if it is unknown."""
    if config is not None:
        if url is not None:
            raise typer.BadParameter("give -c or --url: each of them names a cluster")
        return _of_file(directory, config)
    url, directory = named(url, directory)
    if url is not None:
        return _of_url(url)
    if directory is not None:
        return _of_directory(directory)
    if has_cluster(DIRECTORY):
        return _of_directory(DIRECTORY)
    from tidings.client.url import DEFAULT

    return _of_url(DEFAULT)


def named(url: str | None, directory: Path | None) -> tuple[str | None, Path | None]:
    """The URL or the directory that the options name, else the environment; neither of them if nothing does."""
    if url is not None and directory is not None:
        raise typer.BadParameter("give --url or --dir: each of them names a cluster")
    if url is not None or directory is not None:
        return url, directory
    if found := os.environ.get(URL_VARIABLE):
        if not is_utf8(found):
            raise typer.BadParameter(f"{URL_VARIABLE}: {found[:80]!r} is not UTF-8")
        return found, None
    found = os.environ.get(DIR_VARIABLE)
    return None, Path(found) if found else None


def _of_url(url: str) -> FoundCluster:
    from tidings.cli.learned_addresses import recall
    from tidings.client.url import addresses_of

    given = addresses_of(url)
    if len(given) > 1:
        return FoundCluster(given)
    return FoundCluster(tuple(dict.fromkeys([*given, *recall(given[0])])), only=given[0])


def _of_directory(directory: Path) -> FoundCluster:
    from tidings.client.url import addresses_of
    from tidings.core.errors import BadInput
    from tidings.server.cluster_addresses import cluster_addresses
    from tidings.server.paths import SUPERVISOR, ClusterPaths

    files = ClusterPaths(directory)
    if files.config_file.exists():
        name, addresses = cluster_addresses(files)
        return FoundCluster(tuple(addresses), name, directory)
    running = files.process(SUPERVISOR)
    if running is not None and running.alive and running.url:  # somebody has moved the cluster file away
        return FoundCluster(addresses_of(running.url), directory=directory)
    raise BadInput(
        f"{directory} has no cluster: name another with --dir or --url, or start one with "
        f"`tidings up --dir {directory} --detach`"
    )


def _of_file(directory: Path | None, file: Path) -> FoundCluster:
    from tidings.server.cluster_addresses import cluster_addresses
    from tidings.server.paths import ClusterPaths

    home = directory or DIRECTORY
    name, addresses = cluster_addresses(ClusterPaths(home), file)
    return FoundCluster(tuple(addresses), name, home, file)


def has_cluster(directory: Path) -> bool:
    """Whether a directory is a cluster's: it has a cluster file, or a supervisor has started there."""
    from tidings.server.paths import SUPERVISOR, ClusterPaths

    files = ClusterPaths(directory)
    return files.config_file.exists() or files.process(SUPERVISOR) is not None


# --- reaching ---------------------------------------------------------------------------------------------


def with_client(
    found: FoundCluster,
    token: str | None,
    work: Callable[[Connection], Coroutine[Any, Any, T]],
    *,
    awaiting: str = "",
) -> T:
    """Connect, do the work, disconnect. While ``awaiting`` something takes long, a terminal is told so."""
    from tidings.cli.waiting import show_waiting

    check_listening(found)
    spare_pandas()
    from contextlib import AsyncExitStack

    from tidings.client.connection import connect
    from tidings.client.errors import UnknownStream
    from tidings.net.loop import run

    async def main() -> T:
        async with AsyncExitStack() as stack:
            with show_waiting(f"waiting for an answer of {_some(found.addresses)}"):
                t = await stack.enter_async_context(connect(found.url, token=token, cluster=found.name))
            _learn(found, t.addresses)
            with show_waiting(awaiting):
                return await work(t)

    try:
        return run(main())
    except UnknownStream as error:
        if why := _lost_regions(found):
            raise UnknownStream(f"{str(error).partition(';')[0]}: {why}", error.stream) from error
        raise


def _lost_regions(found: FoundCluster) -> str:
    """Which regions have lost their streams with their memory, as the supervisor of a directory knows; else nothing."""
    if not _supervised(found):
        return ""
    from tidings.cli.status import lost_regions

    return "; ".join(lost_regions(cluster_status(found)))


def check_listening(found: FoundCluster) -> None:
    """Raise `Unreachable` at once if all addresses are of this machine and refuse connections.

    A cluster whose supervisor runs is starting, and is given time. Other machines are the client's business, which
    tries them again and again.
    """
    import time

    from tidings.cli.waiting import show_waiting

    if not all(_is_local(address) for address in found.addresses):
        return
    end = time.monotonic() + STARTING
    with show_waiting(f"waiting for a replica of {_some(found.addresses)} to listen"):
        while (open_one := next(filter(_listens, found.addresses), None)) is None:
            if not _supervised(found) or time.monotonic() > end:
                raise _refused(found)
            time.sleep(0.1)
    if found.only and open_one != found.only:
        text = f"tidings: {found.only} refuses connections: using {open_one}, which it has named before"
        typer.echo(text, err=True)


def _is_local(address: str) -> bool:
    import ipaddress

    from tidings.net.names import parse_address

    host = parse_address(address)[0]
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listens(address: str) -> bool:
    import socket

    from tidings.net.names import parse_address

    try:
        socket.create_connection(parse_address(address), timeout=2.0).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # not closed: let the client find out
    return True


def _supervised(found: FoundCluster) -> bool:
    from tidings.server.paths import SUPERVISOR, ClusterPaths

    if found.directory is None:
        return False
    supervisor = ClusterPaths(found.directory).process(SUPERVISOR)
    return supervisor is not None and supervisor.alive


def _refused(found: FoundCluster) -> Exception:
    from tidings.client.errors import Unreachable

    text = f"{_some(found.addresses)}: connection refused"
    if found.file is not None:
        return Unreachable(f"{text}: no replica of {found.file} runs on this machine")
    if _supervised(found):
        return Unreachable(
            f"{text}: the supervisor in {found.directory} runs, but no replica does; see `tidings status --dir "
            f"{found.directory}` and {found.directory}/logs"
        )
    if found.directory is not None:
        return Unreachable(
            f"{text}: the cluster in {found.directory} does not run; start it with "
            f"`tidings up --dir {found.directory} --detach`"
        )
    return Unreachable(
        f"{text}: no cluster listens there; start one with `tidings up --detach`, or name another with --url or --dir"
    )


def _some(addresses: tuple[str, ...]) -> str:
    """Addresses as a line has room for."""
    return addresses[0] + (f" and {len(addresses) - 1} more" if len(addresses) > 1 else "")


def _learn(found: FoundCluster, addresses: Iterable[str]) -> None:
    """Keep the replicas that the one address of a URL has named."""
    if found.only:
        from tidings.cli.learned_addresses import remember

        remember(found.only, addresses)


def spare_pandas() -> None:
    """Let pyarrow take pandas for missing: it imports pandas, for half a second, with the first array it makes.

    Only where pyarrow is not loaded yet, so in a process that serves one command which converts nothing to pandas.
    """
    import sys

    if "pyarrow" in sys.modules or "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _WithoutPandas)
    try:
        import pyarrow as pa

        pa.array([0])  # it looks for pandas once
    finally:
        sys.meta_path.remove(_WithoutPandas)


class _WithoutPandas:
    """A finder that knows one module, and knows it to be missing."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def query_target(found: FoundCluster) -> ClusterTarget:
    """What questions about definitions and status are put to."""
    from tidings.cli.waiting import show_waiting

    check_listening(found)
    spare_pandas()
    from tidings.server.cluster_queries import ClusterTarget

    if found.directory is not None:
        return ClusterTarget(found.directory, found.file)
    with show_waiting(f"waiting for an answer of {_some(found.addresses)}"):
        target = ClusterTarget(None, addresses=found.addresses)
    _learn(found, target.slots.values())
    return target


def cluster_status(found: FoundCluster) -> dict[str, Any]:
    """The answer of `tidings status`. A directory tells of a cluster that does not run, too; a URL cannot."""
    if found.directory is None:
        check_listening(found)
    spare_pandas()
    from tidings.server.cluster_queries import look

    return look(found.directory, found.file, found.addresses)


# --- the supervisor ---------------------------------------------------------------------------------------


def supervised_directory(url: str | None, directory: Path | None) -> Path:
    """The directory of the cluster whose supervisor is meant; `BadInput` if only a URL is known."""
    from tidings.client.url import addresses_of
    from tidings.core.errors import BadInput

    url, directory = named(url, directory)
    if url is None:
        return directory or DIRECTORY
    near = Path(os.environ.get(DIR_VARIABLE) or DIRECTORY)
    if has_cluster(near) and not set(addresses_of(url)).isdisjoint(_of_directory(near).addresses):
        return near
    raise BadInput(
        f"{url} does not lead to the supervisor, and {near} is not the directory of that cluster: name the directory "
        f"with --dir or {DIR_VARIABLE}"
    )


def supervisor_of(directory: Path) -> Process:
    """The supervisor that runs in a directory; raises `BadInput` if there is none."""
    from tidings.core.errors import BadInput
    from tidings.server.paths import SUPERVISOR, ClusterPaths, Process, read

    files = ClusterPaths(directory)
    found = files.process(SUPERVISOR)
    if found is not None and found.alive:
        return found
    others = [process for path in files.run.glob("*.json") if (process := read(path, Process)) and process.alive]
    start = f"`tidings up --dir {directory} --detach`"
    if others:
        raise BadInput(f"{directory}: {len(others)} replicas run, but no supervisor: {start} starts one for them")
    raise BadInput(f"no cluster runs in {directory}: start one with {start}, or name another with --dir")


def supervise(directory: Path, path: str, body: Any = None) -> Any:
    """Call the supervisor of a directory."""
    from tidings.cli.waiting import show_waiting
    from tidings.server.http_client import call

    found = supervisor_of(directory)
    with show_waiting(f"waiting for the supervisor in {directory}"):
        return call(found.http_port, path, body, token=found.token)


# --- cluster files ----------------------------------------------------------------------------------------


def take_plan(files: ClusterPaths, config: Path) -> Path:
    """Make a cluster file that of a directory, where other commands find it; `BadInput` if that has another one."""
    from tidings.core.errors import BadInput
    from tidings.server.cluster_config import load

    given = load(config)
    if not files.config_file.exists():
        return write_plan(files, config.read_bytes())
    if load(files.config_file) != given:
        raise BadInput(f"{files.config_file} is another plan than {config}: take another --dir, or edit that file")
    return files.config_file


def write_plan(files: ClusterPaths, plan: bytes) -> Path:
    """Write the cluster file of a directory that has none, unless a cluster runs there all the same."""
    from tidings.core.errors import BadInput
    from tidings.server.paths import write_bytes

    lock = files.make().lock()
    try:
        if files.config_file.exists():
            raise BadInput(f"{files.config_file} has just been written by another command: try again")
        write_bytes(files.config_file, plan)
    finally:
        os.close(lock)
    return files.config_file
