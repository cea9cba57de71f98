"""What a message costs a real replica's processor: the service times that `tidings lab run calibration` measured.

The defaults of a scenario's [service] table stand for a machine that is no bottleneck. These stand for real replicas:
use them where processors matter (in a file: the table in ``service.toml``, which every calibration writes). On another
machine they are right to a factor of 1.5.
"""

from __future__ import annotations

from tidings.sim.scenario import ServiceTable

MEASURED = ServiceTable(per_batch=130e-6, per_event=4.3e-9, per_wake=193e-6)
"""A single replica in memory on a machine of two cores, Python 3.11, while others used less than a tenth of one:
least squares over published batches of 256 to 16,384 events with four under way, and what a batch takes more with one
under way and a pause; medians of three runs after a warm-up. What a message without events costs was not measured and
has its default."""

HOP = 0.0
"""Seconds from one process of that machine to another, one way: half of the part of a round trip that is nobody's work.
None could be told from the noise: processor times overlap, and their sum is longer than the round trip."""
