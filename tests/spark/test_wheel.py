"""The package as it is installed: Spark finds the format without being told where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.rig import Cluster, fresh, options


@pytest.mark.check
def test_an_installed_wheel_registers_the_format(small: Cluster, tmp_path: Path) -> None:
    name = fresh(small, "wheel", 10)
    root = Path(__file__).parents[2]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(root)]
    subprocess.run([*pip, *build], check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("tidings-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True)
    given = options(small, subscribe=name, startingOffsets="earliest")
    program = f"""
from pyspark.sql import SparkSession
import tidings
assert tidings.__file__.startswith({str(tmp_path)!r}), tidings.__file__
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.readStream.format("tidings").options(**{given!r}).load()
query = df.writeStream.format("memory").queryName("got").trigger(availableNow=True).start()
query.awaitTermination(100)
print("rows", spark.table("got").count())
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYSPARK_PYTHON": sys.executable}
    call = [sys.executable, "-c", program]
    ran = subprocess.run(call, check=False, env=env, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert "rows 10" in ran.stdout, ran.stderr[-2000:]
