"""What survives: sessions, their journal and pages, and the stores that keep them.

::

    async with SqliteStore() as store:
        session = await Session.create(store, identity, facts={"title": "a poem", "model": "smollm2"})
        session.request({"messages": [...], "params": {...}})          # each call returns a ticket at once
        session.prompt(ids)
        plan = await session.restore(target)                           # other sessions' equal prefix, if any
        session.attach(source)                                         # full pages are stored from now on
        ...                                                            # prefill a chunk that ends at `stop`
        await session.durable(session.computed(stop))
        ...                                                            # sample a token
        ticket = session.token(id, state, text)                        # and start the next step meanwhile
        await session.durable(ticket)                                  # now the token may be shown
        session.end("stop")
        await session.close()

    session = await Session.open(store, "1f0c...", identity)           # IdentityError names what differs
    session.transcript                                                 # .tokens, .sampler, .requests, .end
    plan = await session.restore(target)                               # imports what verifies
    print(plan.report)                                                 # kv+replay(7)
    for step in plan.replay: ...                                       # compute step.start .. step.stop again
    session.attach(source)                                             # and go on with what is pending

`target` and `source` are a sequence of a cache (`transfer.py`), or anything with those few methods.
"""

from __future__ import annotations

from webkv.checkpoint.archive import export_session, import_session
from webkv.checkpoint.catalog import Summary, Verdict, collect, delete, evict, sessions, unlisted, verify
from webkv.checkpoint.identity import Group, Identity
from webkv.checkpoint.journal import walk
from webkv.checkpoint.pages import PageSource
from webkv.checkpoint.record import Mode
from webkv.checkpoint.recover import PageTarget, Plan, Step
from webkv.checkpoint.session import Session
from webkv.checkpoint.sqlite import SqliteStore
from webkv.checkpoint.status import Options, Status
from webkv.checkpoint.stores import MemoryStore, Store, default_path
from webkv.checkpoint.transcript import Transcript

__all__ = [
    "Group",
    "Identity",
    "MemoryStore",
    "Mode",
    "Options",
    "PageSource",
    "PageTarget",
    "Plan",
    "Session",
    "SqliteStore",
    "Status",
    "Step",
    "Store",
    "Summary",
    "Transcript",
    "Verdict",
    "collect",
    "default_path",
    "delete",
    "evict",
    "export_session",
    "import_session",
    "sessions",
    "unlisted",
    "verify",
    "walk",
]
