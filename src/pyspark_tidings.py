"""Registers the format "tidings" with Spark, which takes the DefaultSource of every module whose name begins so."""

from tidings.spark.format import TidingsFormat as DefaultSource

__all__ = ["DefaultSource"]
