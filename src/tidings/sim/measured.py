"""What a message costs a real replica's processor: the service times that `tidings lab run calibration` measured.

The defaults of a scenario's [service] table stand for a machine that is no bottleneck. These stand for the replicas
that exist: use them (in a file: the table in ``service.toml``, which every calibration writes) where what a processor
can do is the question. They are processor times on a machine that others used, too: good to a factor of 1.5.
"""

from __future__ import annotations

from tidings.sim.scenario import Service

MEASURED = Service(per_batch=220e-6, per_event=5.1e-9, per_wake=220e-6)
"""A single replica in memory: 220 us + 5.1 ns per event of a published batch with four batches under way (least squares
over batches of 256 to 16,384 events, every size within 7 %), 220 us more with one under way and a pause. Two cores,
Python 3.11. What a message without events costs was not measured and has its default."""

HOP = 390e-6
"""Seconds from one process of that machine to another, one way: half of the round trip that is nobody's work."""
