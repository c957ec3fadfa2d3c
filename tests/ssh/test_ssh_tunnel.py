"""HTTP through the connection of a host."""

import os
import threading
import time
from pathlib import Path

import httpx
import pytest

from dsv4ctl.hosts.ssh import SshHost
from tests.sshd import SshNet, free_port, processes
from tests.web import EVENTS, Web


def local_ports(pid: int) -> set[int]:
    """The local ports of the TCP connections of a process, from /proc (proc(5)); none of one that has just ended."""
    try:
        links = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {int(row[1].split(":")[1], 16) for row in rows if f"socket:[{row[9]}]" in links}


def test_the_host_connects_and_no_port_is_opened_here(remote: SshHost, net: SshNet, web: Web) -> None:
    with remote.http(timeout_s=10) as client:
        assert client.get(f"{web.url}/").text == "hello"
        (_, port), *others = web.connections
        assert others == []
        # The process at the other end of the server's connection is sshd's.
        owners = [pid for pid in processes("sshd") if port in local_ports(pid)]
        assert owners
        assert set(owners) <= set(net.target.connections())
        assert port not in local_ports(os.getpid())


def test_events_stream_as_they_come(remote: SshHost, web: Web) -> None:
    with remote.http(timeout_s=10) as client, client.stream("GET", f"{web.url}/events") as response:
        events = response.iter_lines()
        assert next(events) == "data: 0"
        web.go.set()
        assert [line for line in events if line] == [f"data: {number}" for number in range(1, EVENTS)]
    assert len(web.connections) == 1


def test_leaving_a_stream_early_frees_it(remote: SshHost, web: Web) -> None:
    with remote.http(timeout_s=10) as client:
        with client.stream("GET", f"{web.url}/events") as response:
            assert next(response.iter_lines()) == "data: 0"
        assert client.get(f"{web.url}/").text == "hello"


def test_an_answer_that_does_not_come(remote: SshHost, web: Web) -> None:
    with remote.http(timeout_s=0.5) as client:
        started = time.monotonic()
        with pytest.raises(httpx.ReadTimeout):
            client.get(f"{web.url}/never")
        assert time.monotonic() - started < 3


def test_a_port_nobody_listens_on(remote: SshHost) -> None:
    port = free_port()
    with remote.http(timeout_s=5) as client, pytest.raises(httpx.ConnectError, match=f"127.0.0.1:{port}"):
        client.get(f"http://127.0.0.1:{port}/")


def test_a_server_that_closes_between_requests(remote: SshHost, web: Web) -> None:
    with remote.http(timeout_s=5) as client:
        for _ in range(5):
            assert client.get(f"{web.url}/bye").text == "hello"
            # A request that crosses the end on its way fails, as it does without SSH.
            threading.Event().wait(0.2)
            assert client.get(f"{web.url}/").text == "hello"


def test_https_is_refused_in_words(remote: SshHost, web: Web) -> None:
    with remote.http(timeout_s=5) as client, pytest.raises(httpx.UnsupportedProtocol, match="https"):
        client.get(f"https://127.0.0.1:{web.port}/")


def test_a_lost_connection_is_a_transport_error_and_the_next_request_works(
    remote: SshHost, net: SshNet, web: Web
) -> None:
    with remote.http(timeout_s=10) as client:
        with client.stream("GET", f"{web.url}/events") as response:
            events = response.iter_lines()
            assert next(events) == "data: 0"
            net.target.cut()
            with pytest.raises(httpx.TransportError, match="direct"):
                list(events)
        assert client.get(f"{web.url}/").text == "hello"


def test_an_unreachable_host_is_a_transport_error(net: SshNet, tmp_path: object) -> None:
    config = net.write_config(f"Host shut\n  Port {free_port()}\n", name="config-shut")
    host = SshHost("shut", config_file=str(config))
    with host.http(timeout_s=5) as client, pytest.raises(httpx.ConnectError, match="shut"):
        client.get("http://127.0.0.1:80/")
    host.close()
