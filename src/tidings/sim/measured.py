"""What a message costs a real replica's processor: the service times that `tidings lab run calibration` measured.

The defaults of a scenario's [service] table stand for a machine that is no bottleneck. These stand for the replicas
that exist: use them (in a file: the table in ``service.toml``, which every calibration writes) where what a processor
can do is the question. They are processor times on a machine that others used, too: good to a factor of 1.5.
"""

from __future__ import annotations

from tidings.sim.scenario import Service

MEASURED = Service(per_batch=218e-6, per_event=6.8e-9, per_wake=228e-6)
"""A single replica in memory on a machine of two cores, Python 3.11: least squares over published batches of 256 to
16,384 events with four under way, and what a batch takes more with one under way and a pause. Medians of three runs of
the command, while others used up to 1.6 processors: 212 to 220 us, 5.1 to 10.8 ns, 220 to 232 us. What a message
without events costs was not measured and has its default."""

HOP = 194e-6
"""Seconds from one process of that machine to another, one way: half of the part of a round trip that is nobody's work;
the same three runs: 9 to 394 us."""
