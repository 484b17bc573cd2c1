"""The store over object storage, in memory and on a real S3 server (moto's)."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.toy import ToyEngine, identity, prompt
from webkv.checkpoint import Session, delete, sessions, verify
from webkv.checkpoint import objectstore as module
from webkv.checkpoint.objectlog import Elsewhere, pack, unpack
from webkv.checkpoint.objectstore import ObjectStore
from webkv.checkpoint.stores import items
from webkv.errors import DamageError, StoreBusyError, StoreError

obstore = pytest.importorskip("obstore.store", reason="needs the extra object-store")
MODEL = identity(None, 5)
ROOT = Path(__file__).parents[2]
CHILD = """
import asyncio, sys
from tests.checkpoint.test_objectstore import ObjectStore, run, settings

class Printed(dict):
    def __setitem__(self, position, token):
        print(position, token, flush=True)

store = ObjectStore.open_url("s3://killed/webkv", lease=1.0, **settings(sys.argv[1]))
asyncio.run(run(store, "a", 1, 40, Printed()))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


def bucket(server: str, name: str) -> Any:
    urllib.request.urlopen(urllib.request.Request(f"{server}/{name}", method="PUT")).close()
    return obstore.S3Store(name, prefix="webkv", **settings(server))


def settings(server: str) -> dict[str, Any]:
    """How to reach the server's buckets."""
    access = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    return {"endpoint": server, **access, "client_options": {"allow_http": True}}


async def run(
    store: ObjectStore, id: str, seed: int, count: int, shown: dict[int, int] | None = None
) -> ToyEngine:
    engine = ToyEngine(await Session.create(store, MODEL, id=id))
    engine.shown = {} if shown is None else shown
    engine.session.request({})
    engine.session.prompt(prompt(seed, 9))
    await engine.restore()
    await engine.generate(count)
    return engine


async def test_a_session_begun_on_one_host_resumes_on_another(server: str) -> None:
    objects = bucket(server, "resume")
    here = ObjectStore(objects)
    engine = await run(here, "a", 1, 9)
    await engine.session.close()
    there = ObjectStore(objects)
    again = ToyEngine(await Session.open(there, "a", MODEL))
    assert (await again.restore()).report == "kv+replay(1)"
    assert again.cache.image() == engine.cache.image()
    await again.turn([4, 5, 6], 5)
    await again.session.close()
    back = ToyEngine(await Session.open(here, "a", MODEL))
    await back.restore()
    assert back.tokens == again.tokens
    assert back.cache.image() == again.cache.image()
    await back.session.close()
    assert (await verify(here, "a")).problems == ()
    await delete(here, "a")
    assert await sessions(ObjectStore(objects)) == []


async def test_a_session_of_a_killed_process_goes_on_in_another(server: str) -> None:
    bucket(server, "killed")
    child = [sys.executable, "-c", CHILD, server]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(12)]
        process.kill()
        lines += process.stdout.readlines()
    shown = {int(at): int(token) for at, token in (line.split() for line in lines if line.endswith("\n"))}
    store = ObjectStore.open_url("s3://killed/webkv", lease=1.0, **settings(server))
    with pytest.raises(StoreBusyError, match=f"session 'a' is in use by process {process.pid} on"):
        await Session.open(store, "a", MODEL)
    await asyncio.sleep(1.2)
    again = ToyEngine(await Session.open(store, "a", MODEL))
    assert {at: again.tokens[at] for at in shown} == shown
    assert (await again.restore()).imported > 0
    await again.generate(40)
    whole = await run(ObjectStore(obstore.MemoryStore()), "a", 1, 40)
    assert (again.tokens, again.cache.image()) == (whole.tokens, whole.cache.image())
    assert (await again.session.close()).state == "durable"


async def test_two_hosts_on_one_session_and_on_one_log(server: str) -> None:
    objects = bucket(server, "two")
    one, two = ObjectStore(objects), ObjectStore(objects)
    await asyncio.gather(*(
        store.commit({f"{name}/{at}": f"{name}{at}".encode()})
        for at in range(10) for name, store in (("x", one), ("y", two))
    ))  # fmt: skip
    assert len(await items(ObjectStore(objects), "")) == 20
    async with one.lock("s/a"):
        with pytest.raises(StoreBusyError, match="s/a is in use by process"):
            async with two.lock("s/a"):
                raise AssertionError("two holders")
    async with two.lock("s/a"):
        pass


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 200_000])
async def test_values_of_every_size_come_back(size: int) -> None:
    objects = obstore.MemoryStore()
    await ObjectStore(objects).commit({"a": bytes(size), "b": b"x"})
    store = ObjectStore(objects)
    assert await items(store, "") == [("a", bytes(size)), ("b", b"x")]
    assert await store.estimate() == (size + 3, None)


async def test_large_values_that_are_replaced_or_deleted_leave_no_object() -> None:
    objects = obstore.MemoryStore()
    store = ObjectStore(objects)
    await store.commit({"a": bytes(100_000), "b": bytes(100_000)})
    await store.commit({"a": bytes(70_000)}, ["b"])
    assert [item["size"] for item in objects.list("value/").collect()] == [70_000]


async def test_a_snapshot_shortens_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOG_PER_SNAPSHOT", 8)
    objects = obstore.MemoryStore()
    store = ObjectStore(objects)
    for at in range(50):
        await store.commit({f"k/{at % 20}": b"%d" % at})
    assert len(objects.list("log/").collect()) <= 2 * 8
    assert len(objects.list("snapshot/").collect()) <= 2
    assert await items(ObjectStore(objects), "") == await items(store, "")
    assert await store.get("k/9") == b"49"


async def test_a_dead_holders_lease_runs_out_and_it_can_write_no_more() -> None:
    objects = obstore.MemoryStore()
    dead, next_one = ObjectStore(objects, lease=0.3), ObjectStore(objects, lease=30)
    held = dead.lock("s/a")
    await held.__aenter__()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # a dead process renews nothing
    with pytest.raises(StoreBusyError):
        async with next_one.lock("s/a"):
            raise AssertionError("two holders")
    await asyncio.sleep(0.4)
    async with next_one.lock("s/a"):
        await next_one.commit({"s/a/j/0": b"new"})
        with pytest.raises(StoreBusyError, match="lost"):
            await dead.commit({"s/a/j/0": b"old"})
        await dead.commit({"other": b"fine"})
        assert await ObjectStore(objects).get("s/a/j/0") == b"new"


async def test_a_held_lease_is_renewed() -> None:
    objects = obstore.MemoryStore()
    one, two = ObjectStore(objects, lease=0.3), ObjectStore(objects)
    async with one.lock("s/a"):
        await asyncio.sleep(0.7)
        with pytest.raises(StoreBusyError):
            async with two.lock("s/a"):
                raise AssertionError("two holders")
        await one.commit({"s/a/j/0": b"still mine"})


async def test_a_commit_whose_answer_was_lost_may_be_repeated() -> None:
    objects = obstore.MemoryStore()
    store = ObjectStore(objects)
    async with store.lock("s/a"):
        await store.commit({"s/a/j/0": b"row"})
        store._next -= 1
        await store.commit({"s/a/j/0": b"row"})
        await store.commit({"s/a/j/1": b"row"})
    assert len(await ObjectStore(objects).keys("s/a/")) == 2


async def test_a_server_that_ignores_conditions_is_refused() -> None:
    class Careless:
        def __init__(self) -> None:
            self.objects = obstore.MemoryStore()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.objects, name)

        async def put_async(self, path: str, data: bytes, mode: object = None) -> Any:
            return await self.objects.put_async(path, data)

    with pytest.raises(StoreError, match="ignores conditional writes"):
        await ObjectStore(Careless()).commit({"a": b"1"})


async def test_a_damaged_commit_is_named() -> None:
    objects = obstore.MemoryStore()
    await ObjectStore(objects).commit({"a": b"1"})
    path = objects.list("log/").collect()[0]["path"]
    data = bytearray(objects.get(path).bytes())
    data[-1] ^= 1
    objects.put(path, bytes(data))
    with pytest.raises(StoreError, match="damaged: log/0"):
        await ObjectStore(objects).get("a")


async def test_a_server_that_is_not_there_is_a_named_error() -> None:
    objects = obstore.S3Store(
        "none", endpoint="http://127.0.0.1:9", access_key_id="a", secret_access_key="b", region="us-east-1",
        client_options={"allow_http": True}, retry_config={"max_retries": 0},
    )  # fmt: skip
    with pytest.raises(StoreError):
        await ObjectStore(objects).get("a")
    session = await Session.create(ObjectStore(objects), MODEL)
    await session.durable(session.request({}))
    assert session.status.state == "degraded"
    await session.close()


def test_every_flipped_bit_of_a_commit_is_detected() -> None:
    data = pack({"a": b"1", "b": Elsewhere("value/x", 5)}, ["c"])
    assert unpack(data, "log") == ({"a": b"1", "b": Elsewhere("value/x", 5)}, ["c"])
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(DamageError):
            unpack(bytes(damaged), "log")
