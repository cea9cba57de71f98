"""The declarative pipeline where it must say no: runs of their own, that need no session of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark.rig import Cluster, pipeline_process
from tidings import sync
from tidings.spark.pipeline import Project

pytestmark = pytest.mark.check


def test_the_streams_of_a_cluster_that_was_replaced_are_not_mixed(small: Cluster, tmp_path: Path) -> None:
    def prepare(cluster: Cluster, events: int, what: bytes) -> str:
        with cluster.connect() as t:
            for name in ("empty", "s"):
                t.create_stream(name, region="r0")
            for at in range(events):
                t.publish("s", payload=what + b" %d" % at)
        return cluster.url

    folder = tmp_path / "p"
    done = pipeline_process("run", folder, prepare(small, 20, b"old"))
    assert done.returncode == 0, done.stderr
    health = json.loads(done.stdout)["streams"]
    found = {each["stream"]: (each["region"], each["events"], each["end"]) for each in health}
    assert found == {"empty": ("r0", 0, 1), "s": ("r0", 20, 21)}
    other = Cluster(regions=1, replicas=1, dir=tmp_path / "other")
    try:
        url = prepare(other, 40, b"new")
        done = pipeline_process("run", folder, url)
        (said,) = done.stderr.splitlines()[-1:]
        assert done.returncode == 1, done.stdout
        assert " is another one in region r0 than in" in said and "--full-refresh begins anew" in said
        done = pipeline_process("run", folder, url, "--full-refresh")
        assert done.returncode == 0, done.stderr
        assert {each["stream"]: each["events"] for each in json.loads(done.stdout)["streams"]} == {"empty": 0, "s": 40}
    finally:
        other.stop()


WRONG = """
from pyspark import pipelines as dp

@dp.materialized_view
def mine():
    return spark.read.table("events").select("nothing_of_that_name")
"""


def test_an_error_in_a_definition_is_to_be_mended_not_run_again(small: Cluster, tmp_path: Path) -> None:
    with sync.connect(small.local.url("r0")) as t:
        t.create_stream("prices", region="r0")
    project = Project(tmp_path / "p").make()
    (project.root / "transformations" / "mine.py").write_text(WRONG)
    done = pipeline_process("dry-run", project.root, small.local.url("r0"))
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1, done.stdout
    assert "nothing_of_that_name" in said and said.endswith("; mend the definition; what is committed stays")
