"""Spark is the data pipeline: source, sink, archive, audit, sweeps."""
