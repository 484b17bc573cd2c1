"""A small web server for the page, on this machine only: right MIME types, isolation headers, byte ranges."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from webkv.errors import SiteError
from webkv.site import Site, file_digest

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
# Cross-origin isolation gives the page 5 us timers; nothing else here needs it.
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Accept-Ranges": "bytes",
    "X-Content-Type-Options": "nosniff",
}


class Pages:
    """What is served under which path: a `Site`, model files, and extra folders or bytes."""

    def __init__(self, site: Site, models: Mapping[str, Path] | None = None) -> None:
        self.site = site
        self.models = dict(models or {})
        self.folders: dict[str, Path] = {"": site.web}
        if site.pyodide is not None:
            self.folders["pyodide"] = site.pyodide
        self.files = {f"wheels/{wheel.name}": wheel for wheel in site.wheels}
        self.files |= {f"models/{name}": file for name, file in self.models.items()}
        self.made: dict[str, bytes] = {"manifest.json": self._manifest()}

    def _manifest(self) -> bytes:
        models = []
        for name, file in self.models.items():
            if not file.is_file():
                raise SiteError(f"no such model file: {file}")
            facts = {"name": name, "size": file.stat().st_size, "sha256": file_digest(file)}
            models.append({**facts, "file": f"models/{name}"})
        return json.dumps({**self.site.manifest(), "models": models}).encode()

    def find(self, path: str) -> Path | bytes | None:
        """The file or bytes of a URL path, None if there is none.  Nothing outside the folders is reached."""
        name = unquote(urlsplit(path).path).lstrip("/") or "index.html"
        found = self.made.get(name) or self.files.get(name)
        if found is not None:
            return found
        first, _, rest = name.partition("/")
        folder, inside = (self.folders[first], rest) if first in self.folders else (self.folders[""], name)
        file = (folder / inside).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None


def _size_and_tag(found: Path | bytes) -> tuple[int, str]:
    """Size in bytes and HTTP entity tag: with one, a browser keeps its compiled form of the WebAssembly."""
    if isinstance(found, bytes):
        return len(found), f'"{hashlib.sha256(found).hexdigest()[:16]}"'
    facts = found.stat()
    return facts.st_size, f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'


class Handler(SimpleHTTPRequestHandler):
    """Sends what `Pages.find` finds, whole or one range of it."""

    protocol_version = "HTTP/1.1"
    quiet = True

    def __init__(self, pages: Pages, *arguments: Any) -> None:
        self._pages = pages
        self._left = 0
        super().__init__(*arguments)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        if not self.quiet:
            super().log_message(format, *arguments)

    def send_head(self) -> BinaryIO | None:
        found = self._pages.find(self.path)
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND, f"no such file: {self.path}")
            return None
        size, tag = _size_and_tag(found)
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
            return None
        begin, end = self._wanted(size)
        if begin >= end and size:
            self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        part = end - begin != size
        self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
        suffix = Path(urlsplit(self.path).path).suffix or ".html"
        self.send_header("Content-Type", _TYPES.get(suffix, "application/octet-stream"))
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", tag)
        if part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        self._left = end - begin
        opened: BinaryIO = BytesIO(found) if isinstance(found, bytes) else found.open("rb")
        opened.seek(begin)
        return opened

    def _wanted(self, size: int) -> tuple[int, int]:
        """The half-open range asked for; the whole file without a (single, absolute) range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return 0, size
        return int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while self._left and (chunk := source.read(min(self._left, 1 << 20))):
            try:
                outputfile.write(chunk)
            except (BrokenPipeError, ConnectionResetError):  # the page was closed
                self.close_connection = True
                return
            self._left -= len(chunk)


def open_server(pages: Pages, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server that is listening; the caller runs `serve_forever`.  `SiteError` if the port is taken."""
    try:
        server = ThreadingHTTPServer((host, port), partial(Handler, pages))
    except OSError as error:
        raise SiteError(f"cannot listen on {host}:{port}: {error.strerror}; try --port") from error
    server.daemon_threads = True
    return server
