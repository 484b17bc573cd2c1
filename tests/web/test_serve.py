"""The page's server: types, isolation, ranges of one file or of parts, and nothing outside its folders."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from webkv.errors import SiteError
from webkv.serve import Joined, Pages, open_server
from webkv.site import Site

pytestmark = pytest.mark.skipif("sys.platform == 'emscripten'", reason="serves from outside")

from tests.web.chromium import served  # noqa: E402


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    for name, text in {
        "web/index.html": "<p>hi",
        "web/a.js": "1",
        "core/pyodide.mjs": "2",
        "secret": "s",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "part1").write_bytes(b"01234")
    (tmp_path / "part2").write_bytes(b"56789")
    (tmp_path / "w-1-py3-none-any.whl").write_bytes(b"PK")
    site = Site(tmp_path / "web", tmp_path / "core", (tmp_path / "w-1-py3-none-any.whl",))
    return Pages(site, {"m.gguf": [tmp_path / "part1", tmp_path / "part2"]})


def ask(root: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(root.removeprefix("http://").rstrip("/"))
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@pytest.mark.parametrize(
    ("path", "type", "body"),
    [
        ("/", "text/html; charset=utf-8", b"<p>hi"),
        ("/a.js?v=1", "text/javascript; charset=utf-8", b"1"),
        ("/pyodide/pyodide.mjs", "text/javascript; charset=utf-8", b"2"),
        ("/wheels/w-1-py3-none-any.whl", "application/zip", b"PK"),
        ("/models/m.gguf", "application/octet-stream", b"0123456789"),
    ],
)
def test_files_come_with_their_type(pages: Pages, path: str, type: str, body: bytes) -> None:
    with served(pages) as root:
        answer, found = ask(root, path)
    assert (answer.status, answer.headers["Content-Type"], found) == (200, type, body)
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=3-6", 206, b"3456"),
        ("bytes=7-", 206, b"789"),
        ("bytes=5-99", 206, b"56789"),
        ("bytes=10-", 416, b""),
        ("bytes=-3", 200, b"0123456789"),
    ],
)
def test_ranges_go_across_parts(pages: Pages, wanted: str, status: int, body: bytes) -> None:
    with served(pages) as root:
        answer, found = ask(root, "/models/m.gguf", Range=wanted)
    assert (answer.status, found) == (status, body)


def test_an_unchanged_file_is_not_sent_again(pages: Pages) -> None:
    with served(pages) as root:
        tag = ask(root, "/a.js")[0].headers["ETag"]
        assert ask(root, "/a.js", If_None_Match=tag)[0].status == 304
        (pages.site.web / "a.js").write_text("changed")
        assert ask(root, "/a.js", If_None_Match=tag)[1] == b"changed"


@pytest.mark.parametrize(
    "path", ["/../secret", "/%2e%2e/secret", "/pyodide/../../secret", "/none", "/models/"]
)
def test_nothing_outside_the_folders_is_sent(pages: Pages, path: str) -> None:
    with served(pages) as root:
        assert ask(root, path)[0].status == 404


def test_the_manifest_names_every_file_with_its_digest(pages: Pages) -> None:
    with served(pages) as root:
        manifest = json.loads(ask(root, "/manifest.json")[1])
    (model,) = manifest["models"]
    assert (model["name"], model["file"], model["size"]) == ("m.gguf", "models/m.gguf", 10)
    assert model["sha256"] == "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"
    assert manifest["wheels"][0]["file"] == "wheels/w-1-py3-none-any.whl"


def test_a_missing_model_is_named(pages: Pages, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"no such model file: .*gone\.gguf"):
        Pages(pages.site, {"gone.gguf": [tmp_path / "gone.gguf"]})


def test_a_taken_port_is_named(pages: Pages) -> None:
    with (
        open_server(pages) as first,
        pytest.raises(SiteError, match=f"cannot listen on .*:{first.server_port}"),
    ):
        open_server(pages, port=first.server_port)


def test_joined_reads_any_range(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in ("a", "b", "c")]
    for part, data in zip(parts, (b"ab", b"", b"cde"), strict=True):
        part.write_bytes(data)
    joined = Joined(parts)
    for begin in range(6):
        for end in range(begin, 6):
            assert b"".join(joined.chunks(begin, end)) == b"abcde"[begin:end]
