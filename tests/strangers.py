"""Servers that are none of ours, for tests of those who are given a wrong address."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class _WebServer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    missing = 404

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/" else self.missing)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(501)

    def _answer(self, status: int) -> None:
        page = b"<!doctype html><title>It works!</title>"
        self.send_response(status)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        pass


class _Gateway(_WebServer):
    missing = 502


@contextmanager
def web_server(*, gateway: bool = False) -> Iterator[str]:
    """HOST:PORT of one that has a page, and nothing else; or that stands before servers that are away."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Gateway if gateway else _WebServer)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
