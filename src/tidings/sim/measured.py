"""What a message costs a real replica's processor: the service times that `tidings lab run calibration` measured.

The defaults of a scenario's [service] table stand for a machine that is no bottleneck. These stand for the replicas
that exist: put them into a scenario (or the file ``service.toml`` that every calibration writes) where what a
processor can do is the question.
"""

from __future__ import annotations

from tidings.sim.scenario import Service

MEASURED = Service(per_batch=200e-6, per_event=8e-9)
"""Processor time of a single replica in memory, with several batches under way."""

HOP = 200e-6
"""Seconds from one process of this machine to another, one way."""
