"""A small web server for the page, on this machine only: right MIME types, isolation headers, byte ranges."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from webkv.errors import SiteError
from webkv.site import Site

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".whl": "application/zip",
    ".zip": "application/zip",
}
_CHUNK = 1 << 20
# Cross-origin isolation gives the page 5 us timers; nothing else here needs it.
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Accept-Ranges": "bytes",
    "X-Content-Type-Options": "nosniff",
}


class Joined:
    """Part files read as if they were one; what `find` gives for anything on disk."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._sizes = [file.stat().st_size for file in self.files]
        self.size = sum(self._sizes)

    @property
    def tag(self) -> str:
        """Changes when a file does."""
        return f"{max(file.stat().st_mtime_ns for file in self.files):x}-{self.size:x}"

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to `end`, some at a time."""
        for file, size in zip(self.files, self._sizes, strict=True):
            if begin < size and end > 0:
                with file.open("rb") as opened:
                    opened.seek(max(begin, 0))
                    left = min(end, size) - max(begin, 0)
                    while left > 0 and (chunk := opened.read(min(left, _CHUNK))):
                        left -= len(chunk)
                        yield chunk
            begin, end = begin - size, end - size


class Pages:
    """What is served under which path: a `Site`, models (a file or its parts), more folders and bytes."""

    def __init__(self, site: Site, models: Mapping[str, Sequence[Path]] | None = None) -> None:
        self.site = site
        self.folders: dict[str, Path] = {"": site.web}
        if site.pyodide is not None:
            self.folders["pyodide"] = site.pyodide
        self.files = {f"wheels/{wheel.name}": Joined([wheel]) for wheel in site.wheels}
        manifest = {**site.manifest(), "models": [self._model(*each) for each in (models or {}).items()]}
        self.made: dict[str, bytes] = {"manifest.json": json.dumps(manifest).encode()}

    def _model(self, name: str, files: Sequence[Path]) -> dict[str, Any]:
        missing = [str(file) for file in files if not file.is_file()]
        if missing:
            raise SiteError(f"no such model file: {', '.join(missing)}")
        self.files[f"models/{name}"] = found = Joined(files)
        sha = hashlib.sha256()
        for chunk in found.chunks(0, found.size):
            sha.update(chunk)
        return {"name": name, "file": f"models/{name}", "size": found.size, "sha256": sha.hexdigest()}

    def find(self, path: str) -> Joined | bytes | None:
        """The file or bytes of a URL path, None if there is none.  Nothing outside the folders is reached."""
        name = unquote(urlsplit(path).path).lstrip("/") or "index.html"
        found = self.made.get(name) or self.files.get(name)
        if found is not None:
            return found
        first, _, rest = name.partition("/")
        folder, inside = (self.folders[first], rest) if first in self.folders else (self.folders[""], name)
        file = (folder / inside).resolve()
        return Joined([file]) if file.is_relative_to(folder.resolve()) and file.is_file() else None


def _size_and_tag(found: Joined | bytes) -> tuple[int, str]:
    """Size in bytes and HTTP entity tag: with one, a browser keeps its compiled form of the WebAssembly."""
    if isinstance(found, bytes):
        return len(found), f'"{hashlib.sha256(found).hexdigest()[:16]}"'
    return found.size, f'"{found.tag}"'


class Handler(BaseHTTPRequestHandler):
    """Sends what `Pages.find` finds, whole or one range of it."""

    protocol_version = "HTTP/1.1"
    quiet = True

    def __init__(self, pages: Pages, *arguments: Any) -> None:
        self._pages = pages
        super().__init__(*arguments)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        if not self.quiet:
            super().log_message(format, *arguments)

    def do_GET(self) -> None:
        body = self._head()
        try:
            for chunk in body:
                self.wfile.write(chunk)
        except (BrokenPipeError, ConnectionResetError):  # the page was closed
            self.close_connection = True

    def do_HEAD(self) -> None:
        self._head()

    def _head(self) -> Iterable[bytes]:
        """Send status and headers; what is to follow them."""
        found = self._pages.find(self.path)
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return ()
        size, tag = _size_and_tag(found)
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
            return ()
        begin, end = self._wanted(size)
        if begin >= end and size:
            self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return ()
        part = end - begin != size
        self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
        suffix = Path(urlsplit(self.path).path).suffix or ".html"
        self.send_header("Content-Type", _TYPES.get(suffix, "application/octet-stream"))
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", tag)
        if part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        return [found[begin:end]] if isinstance(found, bytes) else found.chunks(begin, end)

    def _wanted(self, size: int) -> tuple[int, int]:
        """The half-open range asked for; the whole file without a (single, absolute) range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return 0, size
        return int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)


def open_server(pages: Pages, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server that is listening; the caller runs `serve_forever`.  `SiteError` if the port is taken."""
    try:
        server = ThreadingHTTPServer((host, port), partial(Handler, pages))
    except OSError as error:
        raise SiteError(f"cannot listen on {host}:{port}: {error.strerror}; try --port") from error
    server.daemon_threads = True
    return server
