"""The job that `tidings check spark` breaks: copies a stream in small batches, as a process of its own.

    python -m tidings.campaign.spark.copy_job '{"servers": ..., "stream": ..., "folder": ..., "master": ..., ...}'

Each task says which worker it runs in, and takes a while over every record batch, so that there is something to hit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from tidings.spark.session import spark


class CopyJob(msgspec.Struct, frozen=True):
    """What to copy, and how."""

    servers: str
    stream: str
    folder: str
    master: str = "local[2,4]"  # a task may fail three times
    limit: int = 2000  # numbers in a batch
    pause: float = 0.2  # seconds over a record batch
    to: str = ""  # the stream to copy to; Parquet files if there is none


def main(job: CopyJob) -> None:
    """Read everything that is there when it starts, then end."""
    workers = Path(job.folder) / "workers"
    workers.mkdir(parents=True, exist_ok=True)
    where, pause = str(workers), job.pause  # tasks get a copy: plain values travel best

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            Path(where, str(os.getpid())).touch()
            time.sleep(pause)
            yield batch

    with spark(job.master, "tidings check spark") as session:
        options = {"servers": job.servers, "subscribe": job.stream, "startingOffsets": "earliest"}
        options |= {"maxOffsetsPerTrigger": str(job.limit), "minPartitions": "2"}
        df = session.readStream.format("tidings").options(**options).load()
        out = df.select("key", "payload") if job.to else df.select("seq", "key", "payload")
        writing = out.mapInArrow(slowly, out.schema).writeStream
        if job.to:
            writing = writing.format("tidings").options(servers=job.servers, stream=job.to, writerId="copier")
        else:
            writing = writing.format("parquet").option("path", f"{job.folder}/out")
        writing = writing.option("checkpointLocation", f"{job.folder}/checkpoint")
        writing.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=CopyJob))
