"""Commands on a session in object storage: begun by one process, gone on with by another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.test_objectstore import server
from tests.models.tiny import Kind, write_tiny_llama

__all__ = ["server"]  # the fixture

PROMPT = "the quick brown fox jumps over the lazy dog"
URL = "s3://sessions/webkv"


def run(server: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    access = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    settings = {**access, "AWS_ENDPOINT_URL": server, "AWS_ALLOW_HTTP": "true"}
    command = [sys.executable, "-m", "webkv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings})


def events(server: str, *arguments: object) -> list[dict[str, Any]]:
    ran = run(server, *arguments, "--json", "--store", URL)
    assert (ran.returncode, ran.stderr) == (0, "")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_session_begun_by_one_process_is_gone_on_with_by_another(server: str, tmp_path: Path) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{server}/sessions", method="PUT")).close()
    model = tmp_path / "tiny.gguf"
    write_tiny_llama(model, d_ff=96, kind=Kind.Q8_0)
    begin = "generate", "--model", model, PROMPT
    first = events(server, *begin, "--max-tokens", 20, "--session", "s")
    assert first[-1]["status"] == "durable"
    assert [told["session"] for told in events(server, "sessions", "--verify")] == ["s"]
    more = events(server, "resume", "s", "--max-tokens", 40)
    assert more[1]["how"].startswith("kv+replay(")
    whole = events(server, *begin, "--max-tokens", 40, "--session", "whole")
    assert more[-1]["tokens"] == whole[-1]["tokens"]
    deleted = events(server, "delete", "s", "whole")
    assert [told["session"] for told in deleted] == ["s", "whole"]
    assert events(server, "sessions") == []


@pytest.mark.parametrize("url", ["s3://", "nowhere://a/b", "s3://none/webkv"])
def test_a_place_that_is_not_there_is_named(url: str, server: str) -> None:
    refused = run(server, "sessions", "--store", url)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("webkv: ")
    assert refused.stderr.count("\n") == 1
