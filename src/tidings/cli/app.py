"""The command `tidings`: one module per command, and the four exit codes users script against.

0 good; 1 error, one line on stderr that says what, with which value, and what to do; 2 wrong usage;
3 ran well, but a claim, audit or invariant does not hold. Command modules import what they run inside the
function that runs it, so that `--help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from tidings.cli import (
    archive,
    audit,
    bench,
    check,
    collect,
    config,
    demo,
    down,
    fault,
    lab,
    pipeline,
    pub,
    replay,
    replica,
    serve,
    sim,
    status,
    stream,
    sub,
    top,
    up,
    version,
    why,
)
from tidings.cli.arguments import is_utf8
from tidings.core.errors import TidingsError

EXTRAS = {
    "matplotlib": "lab",
    "pyspark": "spark",
    **dict.fromkeys(("lmdb", "numba", "prometheus_client", "starlette", "structlog", "uvicorn"), "server"),
}

app = typer.Typer(
    name="tidings",
    help="Reliable event broadcast across regions: run clusters, simulate, inject faults, check, measure.",
    epilog="Example: tidings sim scenarios/sprinkler-link-cut.toml --seed 7",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", epilog=demo.EXAMPLE)(demo.demo)
app.command("up", epilog=up.EXAMPLE)(up.up)
app.command("down", epilog=down.EXAMPLE)(down.down)
app.command("status", epilog=status.EXAMPLE)(status.status)
app.command("top", epilog=top.EXAMPLE)(top.top)
app.command("serve", epilog=serve.EXAMPLE)(serve.serve)
app.add_typer(config.app, name="config")
app.add_typer(stream.app, name="stream")
app.add_typer(replica.app, name="replica")
app.command("pub", epilog=pub.EXAMPLE)(pub.pub)
app.command("sub", epilog=sub.EXAMPLE)(sub.sub)
app.command("collect", epilog=collect.EXAMPLE)(collect.collect)
app.command("why", epilog=why.EXAMPLE)(why.why)
app.add_typer(fault.app, name="fault")
app.add_typer(archive.app, name="archive")
app.command("replay", epilog=replay.EXAMPLE)(replay.replay)
app.command("audit", epilog=audit.EXAMPLE)(audit.audit)
app.add_typer(pipeline.app, name="pipeline")
app.command("sim", epilog=sim.EXAMPLE)(sim.sim)
app.command("check", cls=check.CheckCommand, epilog=check.EXAMPLE)(check.check)
app.add_typer(lab.app, name="lab")
app.add_typer(bench.app, name="bench")
app.command("version", epilog=version.EXAMPLE)(version.version)


def main() -> None:
    """Run the command line; an error becomes one line on stderr and exit code 1."""
    for each in sys.argv[1:] if sys.argv[1:2] != ["pub"] else ():  # a payload may be any bytes
        if not is_utf8(each):
            fail(f"{each[:80]!r} is not UTF-8: only the key and the payload of `tidings pub` may be other bytes")
    try:
        app()
    except (TidingsError, OSError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        fail(f"this command needs {error.name}: pip install 'tidings[{EXTRAS[error.name]}]'")


def fail(text: str) -> None:
    """Say on one line of stderr what went wrong, and leave with exit code 1."""
    print("tidings: " + " ".join(text.split()), file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
