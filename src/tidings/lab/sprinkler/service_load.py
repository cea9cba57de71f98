"""SP3's fabric with a scenario's default processors, and with processors as measured; judged in `extensions`.

The defaults of a scenario stand for machines that are no bottleneck. `tidings.sim.measured` has what a message costs a
real replica. Here every node takes that long, the clients too, although they have less to do than a replica. Everything
else is SP3's in the product's reading, and measured in the same way (`region_load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.lab.sprinkler import region_load
from tidings.sim.build import Deployment
from tidings.sim.measured import MEASURED
from tidings.sim.scenario import ServiceTable

if TYPE_CHECKING:
    from tidings.lab.study import Row

SERVICES = {"default": ServiceTable(), "measured": MEASURED}


def measure_service(point: Mapping[str, Any]) -> list[Row]:
    """One run: a row per region of origin, as of `region_load.measure`."""
    steady = region_load.STEADY
    end = steady + point["seconds"]
    plan = region_load.scenario(point["clients"], seconds=end)  # F = 4, 30 ms, fast-uplink
    plan = msgspec.structs.replace(plan, service=SERVICES[point["service"]])
    deployment = Deployment(plan, point["seed"], record=True, check=False, trace=False)
    deployment.world.start()
    meter = region_load.Meter(deployment, plan.publishers[0].batch, int(end / region_load.WINDOW) + 2)
    deployment.world.run(end)
    if deployment.world.failures:
        raise RuntimeError(deployment.world.failures[0].traceback)
    return region_load._rows(meter, steady, end, plan)
