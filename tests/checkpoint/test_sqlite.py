from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from webkv.checkpoint.sqlite import LARGE, SqliteStore
from webkv.errors import StoreBusyError, StoreError, StoreFullError

sqlite3 = pytest.importorskip("sqlite3", reason="SQLite files are native")

HOLD = """
import asyncio, sys
from webkv.checkpoint.sqlite import SqliteStore

async def main():
    async with SqliteStore(sys.argv[1]) as store, store.lock("s/1"):
        print("held", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def start(code: str, path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


async def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    process = start(HOLD, path)
    try:
        async with SqliteStore(path) as store:
            with pytest.raises(StoreBusyError, match=f"in use by process {process.pid}$"):
                async with store.lock("s/1"):
                    raise AssertionError("two holders")
            process.send_signal(signal.SIGKILL)
            process.wait()
            async with store.lock("s/1"):
                pass
    finally:
        process.kill()
        process.wait()
    assert list((tmp_path / "sessions.db.locks").iterdir()) == []


async def test_the_file_is_private_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sessions.db"
    async with SqliteStore(path) as store:
        await store.commit({"a": b"1", "b": bytes(LARGE)})
        modes = {stat.S_IMODE(p.stat().st_mode) for p in path.parent.rglob("*") if not p.is_dir()}
        assert stat.S_IMODE(store.files.folder.stat().st_mode) == 0o700
    assert modes == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_entries_outlive_the_store(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        await store.commit({"a": b"1"})
    async with SqliteStore(path) as store:
        assert await store.get("a") == b"1"


async def test_strict_commits_sync_and_relaxed_ones_do_not(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        levels = []
        for durability in ("strict", "relaxed", "strict"):
            await store.commit({"a": b"1"}, durability=durability)
            assert store._db is not None
            levels.append(store._db.execute("PRAGMA synchronous").fetchone()[0])
            assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert levels == [2, 1, 2]


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(StoreError, match=r"sessions\.db is damaged"):
        await SqliteStore(path).get("a")
    assert path.read_bytes() == b"not a database, " * 100


async def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        await store.commit({f"{i:05}": b"x" * 100 for i in range(1000)})
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match=r"sessions\.db is damaged"):
            await store.get("00001")


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (a)")
    db.close()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(path).commit({"a": b"1"})


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        await store.commit({"a": b"1"})
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(StoreError, match="has format 2, this program reads 1"):
        await SqliteStore(path).get("a")


async def test_a_read_only_database_is_named(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db") as store:
        assert store._db is not None
        store._db.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match="read-only"):
            await store.commit({"a": b"1"})
        store._db.execute("PRAGMA query_only = 0")
        await store.commit({"a": b"1"})


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot open"):
        await SqliteStore(tmp_path / "file" / "sessions.db").get("a")


async def test_two_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    code = (
        "import asyncio, sys\n"
        "from webkv.checkpoint.sqlite import SqliteStore\n"
        "async def main():\n"
        "    async with SqliteStore(sys.argv[1]) as store:\n"
        "        for i in range(40): await store.commit({f'{sys.argv[2]}/{i}': b'x'}, durability='relaxed')\n"
        "asyncio.run(main())\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(path), who]) for who in "ab"]
    assert [process.wait() for process in both] == [0, 0]
    async with SqliteStore(path) as store:
        assert len(await store.keys("a/")) == len(await store.keys("b/")) == 40


async def test_compact_gives_room_back(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with SqliteStore(path) as store:
        await store.commit({"a": os.urandom(1_000_000)})
        await store.commit({}, ["a"])
        await store.compact()
        assert path.stat().st_size < 100_000


async def test_large_values_that_are_replaced_or_deleted_leave_no_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db", large=10) as store:
        await store.commit({"a": bytes(10), "b": bytes(11), "c": b"small"})
        await store.commit({"a": b"small now", "c": bytes(12)}, ["b"])
        assert [file.stat().st_size for file in store.files.folder.iterdir()] == [12]
        assert await store.items("") == [("a", b"small now"), ("c", bytes(12))]
        await store.commit({}, ["a", "c"])
        assert list(store.files.folder.iterdir()) == []


async def test_a_file_that_no_commit_names_is_removed_in_time(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with SqliteStore(path, large=10) as store:
        await store.commit({"a": bytes(10)})
        (store.files.folder / "left").write_bytes(b"by a killed process")
    async with SqliteStore(path, large=10) as store:
        await store.commit({"b": bytes(10)})
        assert len(list(store.files.folder.iterdir())) == 2
        (store.files.folder / "left").write_bytes(b"by another")
        await store.compact()
        assert await store.keys("") == ["a", "b"]
        assert len(list(store.files.folder.iterdir())) == 2


async def test_a_commit_that_fails_leaves_no_file(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db", large=10, quota=60_000) as store:
        await store.commit({"a": bytes(10_000)})
        before = list(store.files.folder.iterdir())
        with pytest.raises(StoreFullError):
            await store.commit({"b": bytes(80_000), "a": bytes(20_000)})
        assert list(store.files.folder.iterdir()) == before
        assert await store.get("a") == bytes(10_000)


@pytest.mark.parametrize("damage", ["gone", "cut"])
async def test_a_value_whose_file_is_not_whole_reads_as_missing(damage: str, tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "sessions.db", large=10) as store:
        await store.commit({"a": bytes(10), "b": b"x"})
        (file,) = store.files.folder.iterdir()
        file.unlink() if damage == "gone" else file.write_bytes(bytes(9))
        assert await store.get("a") is None
        assert await store.items("") == [("b", b"x")]
        await store.commit({"a": bytes(10)})
        assert await store.get("a") == bytes(10)


async def test_a_page_is_written_to_the_disk_once(tmp_path: Path) -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("needs a system that counts what is written")

    def written() -> int:
        return int(Path("/proc/self/io").read_text().split("wchar: ")[1].split()[0])

    async with SqliteStore(tmp_path / "sessions.db") as store:
        await store.commit({"first": b""})
        before = written()
        for at in range(20):
            await store.commit({f"p/{at}": os.urandom(368_640)}, durability="relaxed")
        await store.compact()
        assert written() - before < 1.02 * 20 * 368_640


async def test_a_store_made_without_files_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE entries (key TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)")
    db.execute("INSERT INTO entries VALUES ('a', x'31')")
    db.execute(f"PRAGMA application_id = {0x776B7631}")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    async with SqliteStore(path) as store:
        await store.commit({"b": bytes(LARGE)})
        assert await store.items("") == [("a", b"1"), ("b", bytes(LARGE))]


async def test_a_disk_without_room_for_a_large_value_is_said(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    async with SqliteStore(tmp_path / "sessions.db") as store:
        await store.commit({"a": b"kept"})
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(StoreFullError, match="no room in") as refused:
                await store.commit({"b": bytes(200_000)}, ["a"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert refused.value.needed == 200_001
        assert list(store.files.folder.iterdir()) == []
        assert await store.items("") == [("a", b"kept")]


FILL = """
import asyncio, sys
from webkv.checkpoint import SqliteStore
from webkv.errors import StoreFullError

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        try:
            for at in range(0, 100_000, 100):
                await store.commit({f"s/a/j/{at + row:010}": bytes(90) for row in range(100)})
        except StoreFullError as error:
            print(error)
    async with SqliteStore(sys.argv[1]) as store:
        await store.commit({}, await store.keys("s/"))
        await store.compact()
        await store.commit({"again": bytes(90)})
        print(await store.keys(""))

asyncio.run(main())
"""


def test_a_full_disk_has_room_for_deleting(tmp_path: Path) -> None:
    mount = "unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m none "$0" && exec "$@"', str(tmp_path)
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    line = [*mount, sys.executable, "-c", FILL, str(tmp_path / "sessions.db")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"no room in {tmp_path / 'sessions.db'}: the disk is full", "['again']",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a b?c#d%41.db", "ünï 🙂.db", os.fsdecode(b"not-utf8-\xff.db")])
async def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / name) as store:
        await store.commit({"a": b"1", "b": bytes(LARGE)})
    async with SqliteStore(tmp_path / name) as store:
        assert await store.items("") == [("a", b"1"), ("b", bytes(LARGE))]
    assert (tmp_path / name).stat().st_size


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_path_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="is not the name of a file"):
        SqliteStore(name)


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        await SqliteStore(tmp_path).keys("")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StoreError, match="pipe is not a file"):
            await SqliteStore(tmp_path / "pipe").keys("")
