"""Who holds a port."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from tidings.core.errors import BadInput
from tidings.server.cluster_config import free_port, generate
from tidings.server.ports import describe_holder, holder_of, is_taken


def test_a_port_that_nobody_holds_is_free() -> None:
    port = free_port()
    assert not is_taken("127.0.0.1", port) and holder_of(port) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_a_process_listens_on_is_told_with_the_process_and_its_command(host: str) -> None:
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        assert is_taken("127.0.0.1", port) and holder_of(port) == os.getpid()
        assert describe_holder(port).startswith(f"process {os.getpid()} ({sys.executable[:20]}")


def test_a_cluster_is_not_generated_where_one_of_its_ports_is_taken() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        port = server.getsockname()[1]
        with pytest.raises(BadInput, match=rf"^port {port} is taken by process {os.getpid()} \(.*: --port 0 takes"):
            generate(1, 2, port=port - 1)
