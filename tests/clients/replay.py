"""A provider that says again what real providers said: the recorded streams, chosen by the request's model name.

A stream is sent as it was recorded, one payload a `data:` line, then `[DONE]`; the bytes are cut at odd places, as a
network does. Like a real provider it sends the frame that holds nothing but usage only to whoever asked for it.
Runs in threads of its own, so that synchronous clients and child processes can read it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PIECE = 611
"""Bytes per write: no divisor of anything, so that frames, lines and UTF-8 sequences are cut."""


class Recording(NamedTuple):
    """What one model name answers. `done`: the stream ends with `[DONE]`. `status` other than 200: `payloads[0]` is
    the whole JSON body. `body`: what whoever does not stream is given, where that was recorded too."""

    payloads: Sequence[bytes]
    done: bool = True
    status: int = 200
    body: bytes = b""


class Provider(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, recordings: Mapping[str, Recording]) -> None:
        self.recordings = recordings
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def provider(recordings: Mapping[str, Recording]) -> Iterator[Provider]:
    """A provider that serves while the block runs."""
    with Provider(recordings) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


def events(recording: Recording, *, usage: bool) -> Iterator[bytes]:
    """The SSE events of a recording, for a client that did or did not ask for usage."""
    for payload in recording.payloads:
        if usage or not _usage_alone(payload):
            yield b"data: " + payload + b"\n\n"
    if recording.done:
        yield b"data: [DONE]\n\n"


def _usage_alone(payload: bytes) -> bool:
    frame = json.loads(payload)
    return frame.get("choices") == [] and bool(frame.get("usage"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: Provider

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # a client may leave whenever it likes
            self.close_connection = True

    def do_GET(self) -> None:
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "replay"} for name in self.server.recordings
        ]
        self._json(200, json.dumps({"object": "list", "data": models}).encode())

    def do_POST(self) -> None:
        request: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        recording = self.server.recordings.get(request.get("model", ""))
        if recording is None:
            self._json(404, b'{"error":{"message":"no such model","type":"invalid_request_error","code":"not_found"}}')
        elif recording.status != 200:
            self._json(recording.status, recording.payloads[0])
        elif request.get("stream"):
            usage = bool((request.get("stream_options") or {}).get("include_usage"))
            self._stream(b"".join(events(recording, usage=usage)))
        else:
            self._json(200, recording.body or whole(recording))

    def _json(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def whole(recording: Recording) -> bytes:
    """The same answer as one JSON body: for clients that do not stream."""
    text, usage, last = "", None, {}
    for payload in recording.payloads:
        last = json.loads(payload)
        usage = last.get("usage") or usage
        text += "".join((choice.get("delta") or {}).get("content") or "" for choice in last["choices"])
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-replay", "object": "chat.completion", "created": 0, "model": last.get("model", "replay")}
    return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
