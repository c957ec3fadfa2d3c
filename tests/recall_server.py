"""A server of chat completions for tests: it finds the code that a prompt asks for, or answers badly as told."""

import contextlib
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_QUESTION = re.compile(r"Code (\d+):$")


@dataclass
class Recall:
    """A running server, and how it answers.

    Attributes:
        spoil: changes an answer's text.
        error_event: a stream ends with an error in place of a finish reason.
        done: a stream ends with [DONE].
        think_s: how long it says nothing before each answer.
        silent: it answers nothing at all, and not its health either, until it is set to False.
        bodies, headers: what was asked.
    """

    port: int = 0
    spoil: Callable[[str], str] = lambda text: text
    reason: str = "stop"
    status: int = 200
    done: bool = True
    error_event: bool = False
    think_s: float = 0.0
    silent: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def recall(messages: list[dict[str, str]]) -> str:
    """The right answer."""
    asked = _QUESTION.search(messages[-1]["content"])
    assert asked is not None, messages[-1]
    found = re.search(rf"^Code {asked[1]}: (\S+)$", messages[-1]["content"], re.MULTILINE)
    assert found is not None
    return found[1]


@contextlib.contextmanager
def recall_server(keep_alive_s: float = 60.0) -> Iterator[Recall]:
    """A server that closes idle connections after `keep_alive_s`, for the length of a block."""
    state = Recall()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = keep_alive_s

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.bodies.append(body)
            state.headers.append(dict(self.headers))
            time.sleep(state.think_s)
            self.be_silent()
            if state.status != 200:
                self.answer(state.status, b'{"error": {"message": "no worker is available"}}')
            elif body["stream"]:
                self.events(state.spoil(recall(body["messages"])))
            else:
                message = {"role": "assistant", "content": state.spoil(recall(body["messages"]))}
                choice = {"index": 0, "message": message, "finish_reason": state.reason}
                moments = {"forward_entry_time": 100.5, "prefill_finished_time": 101.5, "request_finished_ts": 103.5}
                choice["meta_info"] = {"e2e_latency": 4.0, "queue_time": 0.5, "id": "x", **moments}
                self.answer(200, json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7}}).encode())

        def do_GET(self) -> None:
            self.be_silent()
            self.answer(200, b"")

        def be_silent(self) -> None:
            end = time.monotonic() + 30
            while state.silent and time.monotonic() < end:
                time.sleep(0.02)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def events(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(text), 4):
                self.event({"choices": [{"index": 0, "delta": {"content": text[at : at + 4]}, "finish_reason": None}]})
            if state.error_event:
                self.event({"error": {"message": "the transfer failed", "code": 500}})
            elif state.done:
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": state.reason}]})
                self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
            if state.done:
                self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")

        def event(self, document: object) -> None:
            self.chunk(f"data: {json.dumps(document)}\n\n".encode())

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that leaves is what is tested."""

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
