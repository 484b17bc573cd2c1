"""llama.cpp on the CPU as a whole-model peer: its server, inside this process, from the package xllamacpp.

The server's names are llama.cpp's: a prompt's tokens are computed in batches, a slot's state goes to a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "llama.cpp"
SLOT = "slot.bin"


class LlamaCpp:
    """One slot of a model on `threads` threads, keys and values in f16; `folder` gets the slot's file."""

    def __init__(self, file: Path, context: int, threads: int, folder: Path) -> None:
        # OpenMP reads it when it is loaded.  Its default, to spin at barriers, costs many times the CPU time
        # of the work as soon as another program wants a core.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import xllamacpp

        settings = xllamacpp.CommonParams()
        settings.model.path, settings.n_ctx, settings.n_parallel = str(file), context, 1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        settings.slot_save_path, settings.endpoint_slots = f"{folder}/", True
        settings.verbosity, settings.cache_ram_mib, settings.port = -1, 0, 0
        self._server = xllamacpp.Server(settings)

    def compute(self, tokens: Sequence[int], new: int, *, cached: bool) -> None:
        """Compute `tokens`, only the last one where the slot holds them, then draw `new` tokens greedily."""
        wanted = {"prompt": list(tokens), "n_predict": new, "cache_prompt": cached, "ignore_eos": True}
        made = self._server.handle_completions({**wanted, "samplers": ["top_k"], "top_k": 1})
        counted = made["timings"]
        expected = (1 if cached else len(tokens), new)
        assert (counted["prompt_n"], counted["predicted_n"]) == expected, counted

    def save(self) -> int:
        """Write the slot's state to its file; how many bytes."""
        return int(self._slot("save")["n_written"])

    def restore(self) -> None:
        """Read the state back from the file."""
        self._slot("restore")

    def _slot(self, action: str) -> dict[str, Any]:
        url = f"{self._server.listening_address}/slots/0?action={action}"
        body = json.dumps({"filename": SLOT}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def llamacpp(file: Path, context: int, threads: int, folder: Path) -> LlamaCpp | None:
    """The peer, or None if it is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        return None
    return LlamaCpp(file, context, threads, folder)
