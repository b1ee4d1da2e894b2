"""The report as a page that follows running training, on this machine only."""

import hashlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from eigenbatch.errors import ParameterError
from eigenbatch.report.build import render
from eigenbatch.report.runs import find_folders, stamp

HOST = "127.0.0.1"


def serve(
    paths: Sequence[Path],
    *,
    port: int = 0,
    interval: float = 5.0,
    ready: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C; an open one renews itself when files of a run have changed.

    Paths need not exist yet, and may vanish: the page shows what is there.

    Args:
        paths: run directories, or folders that hold some.
        port: 0 takes any free one.
        interval: seconds between two looks at the files.
        ready: called with the address once it answers.

    Examples:
        >>> from eigenbatch.report.serve import serve
        >>> def stop(address):  # a real one prints the address, or opens a browser
        ...     raise KeyboardInterrupt
        >>> serve([tmp_path], ready=stop)
    """
    try:
        running = server(paths, port=port, interval=interval)
    except OSError as reason:
        raise ParameterError(
            f"port {port} cannot be used: {reason.strerror}. Choose another, or 0 for a free one"
        ) from reason
    try:
        with running:
            ready(f"http://{HOST}:{running.server_port}/")
            running.serve_forever()
    except KeyboardInterrupt:
        return


def server(paths: Sequence[Path], *, port: int, interval: float) -> ThreadingHTTPServer:
    """The server, bound but not yet serving."""
    page = _Page(paths, interval)

    class Handler(BaseHTTPRequestHandler):
        """Answers `/` with the page and `/version` with what it is now."""

        def do_GET(self) -> None:
            assert isinstance(self.server, ThreadingHTTPServer)
            port = self.server.server_port
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"only for this machine\n")
            elif self.path not in ("/", "/version"):
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"only / is here\n")
            else:
                self._answer_page()

        def _answer_page(self) -> None:
            """The page or its version; files that change while being read are tried again later."""
            try:
                if self.path == "/":
                    self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page.content())
                else:
                    self._answer(HTTPStatus.OK, "text/plain", page.version().encode())
            except (OSError, ValueError) as reason:
                message = f"cannot read the runs just now: {reason}\n"
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", message.encode())

        def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Keep the terminal quiet."""

    return ThreadingHTTPServer((HOST, port), Handler)


class _Page:
    """The page of the newest version; rebuilt only when files have changed."""

    def __init__(self, paths: Sequence[Path], interval: float) -> None:
        self.paths, self.interval = paths, interval
        self._built: tuple[str, bytes] | None = None
        self._lock = Lock()

    def version(self) -> str:
        """A digest of names, times and sizes of all files of all runs."""
        seen = [(str(folder), stamp(folder)) for folder in self._folders()]
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def content(self) -> bytes:
        with self._lock:
            version = self.version()
            if self._built is None or self._built[0] != version:
                page = render(self._folders(), version=version, interval=self.interval)
                self._built = version, page
            return self._built[1]

    def _folders(self) -> list[Path]:
        return find_folders([path for path in self.paths if path.exists()])
