"""README.md, followed in order: the first audit proves what every subscriber was handed."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

from server.rig import tidings, tidings_json
from spark.rig import Cluster

README = (Path(__file__).parents[2] / "README.md").read_text()


def commands(section: str) -> list[list[str]]:
    """The `tidings` commands of a section, without their comments."""
    text = README.partition(f"## {section}")[2].partition("\n## ")[0]
    return [shlex.split(line, comments=True)[1:] for line in re.findall(r"^    (tidings .*)$", text, re.MULTILINE)]


def program() -> str:
    """The Python program of the README."""
    text = README.partition("    import asyncio\n")[2].partition("\nSeveral hosts")[0]
    return re.sub(r"^    ", "", "    import asyncio\n" + text, flags=re.MULTILINE)


def test_the_readme_in_order_proves_every_subscription(spark: Any, small: Cluster, tmp_path: Path) -> None:
    here = [each for each in commands("A cluster on this machine") if each[0] in ("stream", "pub", "sub")]
    lake = commands("The streams in Spark")
    audits = [at for at, each in enumerate(lake) if each[0] == "audit"]
    assert here and len(audits) == 1
    moved = {"/tmp/lake": str(tmp_path / "lake")}

    def run(command: list[str]) -> None:
        where = () if command[0] == "audit" else ("--url", small.url)
        tidings(*[moved.get(word, word) for word in command], *where)

    for command in here:
        run(command)
    own: dict[str, Any] = {"__name__": "readme"}
    source = re.sub(r'"tidings://[^"]*"', f'"{small.url}"', program()).replace("asyncio.run(main())", "")
    exec(compile(source, "README.md", "exec"), own)
    asyncio.run(own["main"]())
    for command in lake[: audits[0]]:
        run(command)
    found = tidings_json("audit", "--lake", tmp_path / "lake")
    assert (found["proved"], found["found"], found["unverifiable"], found["doubts"]) == (3, 0, 0, [])
    run(lake[audits[0]])
    after = [each for each in lake[audits[0] + 1 :] if each[0] == "why"]
    for command in after:
        told = tidings_json(*[moved.get(word, word) for word in command], "--url", small.url)
        assert (told["state"], told["by"]) == ("collected", 3)
    assert after
