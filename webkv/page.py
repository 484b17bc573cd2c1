"""The chat page's Python, in a worker: commands come in as JSON, events go out as JSON.

`web/worker.js` calls `Page.handle` with what `web/page.js` asks for and posts every event back.  One
command runs at a time; `stop` is the only one that does not wait for its turn.  No named error leaves
`handle`: each becomes an event that says what was refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from webkv.checkpoint import Options, Status, Store, delete, sessions
from webkv.checkpoint.archive import export_session, import_session
from webkv.engine import TokenEvent
from webkv.errors import ModelError, PromptError, WebkvError
from webkv.gpu import Device, open_device
from webkv.load import Loaded, load
from webkv.page_table import page_table
from webkv.resume import Chat
from webkv.sampling import SamplingParams

# Tokens of one conversation, and conversations whose pages fit at the same time: a page shares its memory.
_CONTEXT = 4096
_SEQUENCES = 2
_PICTURE_SECONDS = 0.2

Tell = Callable[[str], None]


class Page:
    """One page's device, model and open chats.  `tell` posts an event, a JSON object with a `type`."""

    def __init__(self, tell: Tell, store: Store) -> None:
        self._post = tell
        self._store = store
        self._device: Device | None = None
        self._loaded: Loaded | None = None
        self._file: bytearray | None = None
        self._name = ""
        self._chats: list[Chat] = []  # the last one is shown; the others still hold pages
        self._turn = asyncio.Lock()
        self._stop = False
        self._relaxed = False
        self._pictured = 0.0

    def _tell(self, type: str, **fields: Any) -> None:
        self._post(json.dumps({"type": type, **fields}))

    async def handle(self, text: str) -> None:
        """Run one command: a JSON object whose `do` names a method `do_...` and whose rest are arguments."""
        command = json.loads(text)
        name = command.pop("do")
        if name == "stop":
            self._stop = True
            return
        async with self._turn:
            try:
                await getattr(self, f"do_{name}")(**command)
            except WebkvError as error:
                self._tell("error", during=name, kind=type(error).__name__, text=str(error))
            except MemoryError:
                text = "this page ran out of memory: close other tabs, or take a smaller model"
                self._tell("error", during=name, kind="MemoryError", text=text)
            self._tell("done", during=name)

    def room_for(self, size: int) -> bytearray | None:
        """Memory for a model file of `size` bytes, which the worker fills before it asks to `load`.

        None if there is not so much: WebAssembly has 4 GB in all, 2 GB for one object.
        """
        self._file = None  # the old one first: both may not fit
        try:
            self._file = bytearray(size)
        except (MemoryError, OverflowError):
            return None
        return self._file

    async def do_start(self) -> None:
        """Open the device, and tell what is stored."""
        self._device = await open_device()
        facts = self._device.facts
        limits = {name: facts.limits[name] for name in ("max-buffer-size", "max-storage-buffer-binding-size")}
        self._tell("device", name=facts.name, kind=facts.adapter_type, backend=facts.backend, limits=limits)
        await self._tell_sessions()

    async def do_load(self, name: str, sha256: str = "") -> None:
        """Load the model whose bytes the worker has put into `room_for`'s memory."""
        if self._chats:
            await self._close_all()
            self._tell("closed")
        self._loaded = None
        file, self._file = self._file, None
        assert file is not None

        def step(what: str, unit: str) -> Callable[[int, int], None]:
            return lambda done, total: self._tell("step", what=what, done=done, total=total, unit=unit)

        begun = time.monotonic()
        found = await load(
            file, device=self._device, default_context=_CONTEXT, sequences=_SEQUENCES, progress=step
        )
        if sha256 and found.identity.weights != sha256:
            raise ModelError(f"{name} is damaged: digest {found.identity.weights}, expected {sha256}")
        self._loaded, self._name = found, name
        context, layers = found.engine.context, len(found.config.groups)
        took = time.monotonic() - begun
        self._tell("model", name=name, title=found.name, context=context, groups=layers, seconds=took)
        await self._tell_storage()
        self._picture(force=True)

    async def do_durability(self, relaxed: bool) -> None:
        """Whether chats opened from now on may lose their last few tokens in a crash (faster)."""
        self._relaxed = relaxed

    async def do_new(self) -> None:
        """Close the open chats; the next `say` begins one."""
        await self._close_all()
        self._tell("closed")
        await self._tell_sessions()

    async def do_open(self, session: str) -> None:
        """Take a stored chat up where it was, and go on with an answer that a crash cut off."""
        loaded = self._model()
        chat = next((chat for chat in self._chats if chat.id == session), None)
        if chat is not None:  # it holds its pages still
            self._chats.remove(chat)
            self._show(chat, again=True)
        else:
            await self._close_all()
            chat = await Chat.resume(loaded, self._store, session, options=self._options())
            self._show(chat)
        if chat.finished is None and chat.remaining():
            await self._answer(chat)
        await self._tell_sessions()

    async def do_say(
        self, text: str, max_tokens: int = 512, temperature: float = 0.0, seed: int = 0, system: str = ""
    ) -> None:
        """The user's next turn, in the open chat or a new one, and its answer."""
        loaded = self._model()
        params = SamplingParams(temperature=temperature, seed=seed)
        if self._chats:
            chat = self._chats[-1]
            await chat.say(text, params=params, max_tokens=max_tokens)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            chat = await Chat.begin(
                loaded, self._store, messages=[*messages, {"role": "user", "content": text}], params=params,
                max_tokens=max_tokens, facts={"file": self._name}, options=self._options(),
            )  # fmt: skip
            self._show(chat)
        await self._tell_sessions()
        await self._answer(chat)
        await self._tell_sessions()

    async def do_more(self) -> None:
        """Go on with an answer that was stopped."""
        await self._answer(self._open_chat())
        await self._tell_sessions()

    async def do_fork(self) -> None:
        """A second chat with the same past; both share its pages."""
        chat = self._open_chat()
        if len(self._chats) == _SEQUENCES:
            await self._chats.pop(0).close()
        self._show(await chat.branch(len(chat.conversation.tokens)))
        await self._tell_sessions()

    async def do_delete(self, session: str) -> None:
        """Remove a stored chat, and the pages that no other one uses."""
        for chat in [chat for chat in self._chats if chat.id == session]:
            self._chats.remove(chat)
            await chat.close()
            self._tell("closed")
        await delete(self._store, session)
        await self._tell_sessions()

    async def do_save(self, session: str, path: str) -> None:
        """Write a stored chat, with its pages, to a file that `bring` or the command line can take up."""
        for chat in self._chats:
            if chat.id == session:
                await chat.session.flush()
        await export_session(self._store, session, Path(path))

    async def do_bring(self, path: str) -> None:
        """Add the chat in a file to the stored ones."""
        found = await import_session(self._store, Path(path))
        await self._tell_sessions()
        self._tell("brought", session=found)

    async def do_digests(self) -> None:
        """Tell the open chat's token ids and the digest of each page's bytes, to compare with another run."""
        chat = self._open_chat()
        self._tell("digests", tokens=chat.conversation.tokens, pages=await chat.page_digests())

    async def do_lose(self) -> None:
        """Destroy the GPU device, as a driver's reset would; for trying what follows."""
        if self._device is not None:
            self._device.raw.destroy()

    async def do_storage(self) -> None:
        """Tell how much is stored."""
        await self._tell_storage()

    def _model(self) -> Loaded:
        if self._loaded is None:
            raise PromptError("no model is loaded yet")
        return self._loaded

    def _open_chat(self) -> Chat:
        if not self._chats:
            raise PromptError("no chat is open")
        return self._chats[-1]

    def _options(self) -> Options:
        return Options(relaxed=self._relaxed, on_status=self._tell_status)

    def _tell_status(self, status: Status) -> None:
        self._tell("status", state=status.state, text=str(status))

    async def _close_all(self) -> None:
        while self._chats:
            await self._chats.pop().close()
        self._picture(force=True)

    def _show(self, chat: Chat, again: bool = False) -> None:
        """Make `chat` the shown one and tell all of it: turns, the answer so far, and unless it was open
        all the time, what was resumed."""
        self._chats.append(chat)
        tokenizer = chat.loaded.engine.tokenizer
        answer = tokenizer.decode([t for t in chat.answer if t not in tokenizer.eos_ids])
        done = replace(chat.recovery, tokens=0) if again else chat.recovery
        messages = list(chat.request["messages"])
        self._tell("opened", session=chat.id, messages=messages, answer=answer, finished=chat.finished,
                   note=done.note, moved=done.moved, **asdict(done))  # fmt: skip
        self._tell_status(chat.status)
        self._picture(force=True)

    async def _answer(self, chat: Chat) -> None:
        """Stream the answer until it ends or `stop` was asked for; what was told is stored."""
        self._stop = False
        begun, made, finish = time.monotonic(), 0, None
        self._tell("answering", session=chat.id)
        events = chat.generate(progress=lambda done, total: self._tell("prefill", done=done, total=total))
        try:
            async for event in events:
                made, finish = made + 1, event.finish
                self._token(chat, event)
                if self._stop:
                    break
        finally:
            await events.aclose()
        if finish is None:
            finish = "cancelled"
            await chat.session.durable(chat.session.end(finish))
        self._tell("answered", finish=finish, tokens=made, seconds=time.monotonic() - begun)
        self._tell_status(chat.status)
        self._picture(force=True)
        await self._tell_storage()

    def _token(self, chat: Chat, event: TokenEvent) -> None:
        self._tell("token", text=event.text, token=event.token, position=event.position)
        if event.position % 8 == 0:
            self._tell_status(chat.status)
        self._picture()

    def _picture(self, force: bool = False) -> None:
        """Tell what every page is used for, a few times a second at most."""
        now = time.monotonic()
        if self._loaded is None or (not force and now - self._pictured < _PICTURE_SECONDS):
            return
        self._pictured = now
        self._tell("pages", groups=page_table(self._loaded, self._chats))

    async def _tell_sessions(self) -> None:
        shown = self._chats[-1].id if self._chats else None
        listed = [
            {
                "id": s.id, "title": s.facts.get("title", ""), "file": s.facts.get("file", ""),
                "forked": "parent" in s.facts,
                "used": s.used, "tokens": s.tokens, "nbytes": s.page_bytes, "end": s.end, "damage": s.damage,
            }
            for s in await sessions(self._store)
        ]  # fmt: skip
        self._tell("sessions", sessions=listed, shown=shown)
        await self._tell_storage()

    async def _tell_storage(self) -> None:
        used, quota = await self._store.estimate()
        self._tell("storage", used=used, quota=quota)
