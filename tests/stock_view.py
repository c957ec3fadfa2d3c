"""A prefill worker as a stock or an older engine would show itself: a proxy that leaves out what those do not say."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

LOOPBACK = "127.0.0.1"


def without_ours(path: str, body: bytes) -> bytes:
    """The answer without the figures that the patched engine adds."""
    if path.startswith("/v1/loads"):
        document = json.loads(body)
        for load in document["loads"]:
            load.pop("dsv4", None)
        return json.dumps(document).encode()
    if path.startswith("/metrics"):
        lines = body.decode().splitlines(keepends=True)
        return "".join(line for line in lines if "dsv4_" not in line).encode()
    return body


@contextlib.contextmanager
def stock_view(url: str, *, loads: bool = True) -> Iterator[int]:
    """The port of a proxy to the engine at `url`; without `loads` it has no /v1/loads, as the engines before it."""
    upstream = httpx.Client(base_url=url, timeout=10)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not loads and self.path.startswith("/v1/loads"):
                self._answer(404, b"{}")
                return
            try:
                reply = upstream.get(self.path)
            except httpx.HTTPError:
                # As far as whoever asks can tell, the engine is not there.
                self.close_connection = True
                return
            self._answer(reply.status_code, without_ours(self.path, reply.content))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with upstream, ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
