"""A small HTTP server for tests: it keeps connections open, streams, is slow when asked, and counts who connects."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

EVENTS = 3


@dataclass
class Web:
    """`connections` are the client addresses seen, one for each TCP connection; `go` lets held answers go on."""

    port: int = 0
    connections: list[tuple[str, int]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serve_web() -> Iterator[Web]:
    """`/` answers "hello"; POST answers with the body; `/events` sends three events, the later ones after `go`;
    `/never` answers after `go`; `/bye` answers and closes the connection."""
    web = Web()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            web.connections.append(self.client_address)
            super().setup()

        def do_GET(self) -> None:
            if self.path == "/events":
                self.events()
                return
            if self.path == "/never":
                web.go.wait(30)
            if self.path == "/bye":
                self.close_connection = True
            self.answer(b"hello")

        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])))

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def events(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(EVENTS):
                if number:
                    web.go.wait(30)
                event = f"data: {number}\n\n".encode()
                self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.go.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
