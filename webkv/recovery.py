"""Opening a stored conversation: which of its KV may be used, and what bringing it back took."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from webkv.checkpoint import Options, Session, Store
from webkv.checkpoint.relayout import Layouts, facts_of, open_relaid
from webkv.conversation import Conversation
from webkv.errors import IdentityError
from webkv.load import Loaded
from webkv.sampling import SamplerState

STATE = struct.Struct("<QQ")  # a token row's sampler state: seed, counter


@dataclass(frozen=True)
class Recovery:
    """What a resume did.  `how` is `kv`, `kv+replay(n)`, `replay(n)` or `new`; see `checkpoint.Plan`.

    A branch whose pages are shared on the GPU is a `fork`.
    `differs` is the field of the identity in which the stored KV was another: its pages were converted if
    that is exact (`pages` is more than 0 then), else nothing of it was used.
    `elsewhere` is the device that the conversation began on, if it is another: arithmetic rounds differently
    there, so the tokens that follow may be others than they would have been.
    """

    how: str
    tokens: int
    pages: int
    nbytes: int
    seconds: float
    damage: str = ""
    differs: str = ""
    elsewhere: str = ""

    @property
    def note(self) -> str:
        """What was done about KV of another identity, in words; empty if there was no need."""
        if not self.differs:
            return ""
        done = "converted exactly" if self.pages else "computed anew"
        return f"{done}, the stored KV being of another {self.differs}"

    @property
    def moved(self) -> str:
        """What a change of device means, in words; empty if there was none."""
        return f"it began on {self.elsewhere}: what follows may differ from there" if self.elsewhere else ""

    def __str__(self) -> str:
        parts = [f"{self.how}: {self.tokens} tokens, {self.pages} pages", self.note, self.moved]
        return "; ".join(part for part in parts if part)


def layout_facts(loaded: Loaded) -> dict[str, Any]:
    """What a session says of its pages' layouts, so that another layout can convert them."""
    return facts_of(_layouts(loaded))


def begun_elsewhere(loaded: Loaded, session: Session) -> str:
    """The device that a stored conversation began on, if it is another one."""
    device = session.transcript.facts.get("device", "")
    return "" if device == loaded.engine.device.facts.name else str(device)


def _layouts(loaded: Loaded) -> Layouts:
    return {group.name: loaded.engine.cache.layout(group.name) for group in loaded.identity.groups}


async def opened(
    loaded: Loaded, store: Store, id: str, recompute: bool, options: Options | None
) -> tuple[Session, str]:
    """The stored session `id`, its pages in this cache's layout, and the identity's field that differed.

    Pages of another layout are converted where that is exact.  Raises as `Chat.resume` does.
    """
    identity = loaded.identity
    try:
        return await Session.open(store, id, identity, options=options), ""
    except IdentityError as error:
        differs = error.field
    try:
        return await open_relaid(store, id, identity, _layouts(loaded), options=options), differs
    except IdentityError:
        if not recompute:
            raise
    facts = layout_facts(loaded)
    session = await Session.open(store, id, identity, recompute=True, facts=facts, options=options)
    return session, differs


def mark_pending(session: Session, conversation: Conversation) -> None:
    """Say which tokens not computed yet go through prefill: all, or none if only the last drawn is left."""
    transcript = session.transcript
    pending = range(conversation.cached, len(transcript.tokens))
    # More than one drawn token is pending only if KV of another identity was left: it is computed in chunks.
    chunks = len(pending) > 1 or any(at not in transcript.sampled for at in pending)
    conversation.prompted = len(transcript.tokens) if chunks else 0
    # The last drawn token's, though a later turn's tokens were given since: a turn goes on with the stream.
    drawn = transcript.sampled[max(transcript.sampled)].state if transcript.sampled else b""
    conversation.state = SamplerState(*STATE.unpack(drawn)) if drawn else None
