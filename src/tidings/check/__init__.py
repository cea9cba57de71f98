"""The invariants of every run, and the trace tables that they judge."""

from tidings.check.invariants import (
    ALL_INVARIANTS,
    FaultKind,
    Invariant,
    Violation,
    acknowledged,
    bounded,
    chain_prefix,
    completeness,
    convergence,
    finality,
    integrity,
    judge,
    no_duplication,
    order,
)
from tidings.check.tables import ALIVE, DELIVERED, GAUGE, LOG, PUBLISHED, LogEvent, Trace, table

__all__ = [
    "ALIVE",
    "ALL_INVARIANTS",
    "DELIVERED",
    "GAUGE",
    "LOG",
    "PUBLISHED",
    "FaultKind",
    "Invariant",
    "LogEvent",
    "Trace",
    "Violation",
    "acknowledged",
    "bounded",
    "chain_prefix",
    "completeness",
    "convergence",
    "finality",
    "integrity",
    "judge",
    "no_duplication",
    "order",
    "table",
]
