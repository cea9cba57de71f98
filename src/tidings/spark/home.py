"""A home for Spark without the zipped copy of PySpark that its Python workers would import.

The pip package keeps a zip of itself for clusters and puts it first on the path of every Python process that Spark
starts. Nothing imported from a zip is cached as bytecode, so each such process compiles PySpark anew: the runner of a
streaming source takes 1.1 s of CPU to import that way and 0.3 s from the installed package (time.process_time around
the import). On this machine workers can import the installed one, so they get a home with everything else in it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

ZIPPED = "python"  # the folder of the package that holds the zip


def settle() -> None:
    """Let Spark's own processes on this machine import the installed PySpark; a SPARK_HOME that is set stays."""
    if "SPARK_HOME" in os.environ:
        return
    import pyspark

    package = Path(pyspark.__file__).parent
    if not (package / "jars").is_dir():
        return  # not the pip package: it knows its home
    home = Path(tempfile.mkdtemp(prefix="tidings-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for each in package.iterdir():
        if each.name != ZIPPED:
            (home / each.name).symlink_to(each)
    os.environ["SPARK_HOME"] = str(home)
