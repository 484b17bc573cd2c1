"""Opening a model file into an engine: device, weights, cache, tokenizer, and its checkpoints' identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from webkv.cache import CacheConfig, LayerGroup, PagedKVCache, RopeConfig
from webkv.checkpoint import Group, Identity
from webkv.engine import Engine
from webkv.errors import CacheError, PromptError
from webkv.gpu import Device, open_device
from webkv.kernels.matmul import FEATURES
from webkv.layout import layout_id
from webkv.models.architectures import read_config
from webkv.models.chat import ChatTemplate
from webkv.models.config import ModelConfig
from webkv.models.gemma3 import Gemma3
from webkv.models.gguf import GgufFile, Source, open_gguf
from webkv.models.llama import Llama
from webkv.models.tokenizer import Tokenizer

PAGE_TOKENS = 16
# More context than this is taken only when asked for: its pages would be most of the memory.
DEFAULT_CONTEXT = 8192

StepProgress = Callable[[str, str], Callable[[int, int], None]]


@dataclass(frozen=True)
class Loaded:
    """A model ready to generate, and the identity that its checkpoints carry."""

    name: str
    config: ModelConfig
    engine: Engine
    chat: ChatTemplate
    identity: Identity


def cache_config(
    config: ModelConfig,
    *,
    context: int,
    sequences: int,
    page_dtype: str,
    chunk: int,
    page_tokens: int = PAGE_TOKENS,
) -> CacheConfig:
    """The cache of a model: one layer group per life cycle, room for `sequences` full contexts."""
    groups = []
    for spec in config.groups:
        rope = RopeConfig(
            mode="normal", theta=spec.rope_theta, scale=spec.rope_scale, rotary_dim=config.rope_dims,
            pairing=config.rope_pairing,
        )  # fmt: skip
        group = LayerGroup(
            spec.name, spec.layers, spec.kv_heads, spec.heads, spec.head_dim, window=spec.window, rope=rope
        )
        groups.append(group)
    return CacheConfig(
        groups=tuple(groups), max_total_len=context * sequences, page_tokens=page_tokens,
        reserved_num_seqs=sequences, prefill_chunk_size=chunk, page_dtype=page_dtype,
    )  # fmt: skip


def identity_of(cache: CacheConfig, weights: str, tokenizer: str, namespace: str) -> Identity:
    """What checkpoints of this cache belong to; `weights` and `tokenizer` are digests."""
    rope = json.dumps([asdict(group.rope) for group in cache.groups], sort_keys=True, default=list)
    groups = []
    for group in cache.groups:
        layout = cache.layout(group)
        groups.append(Group(group.name, layout_id(layout), layout.page_bytes, group.window))
    return Identity(
        weights=weights,
        tokenizer=tokenizer,
        rope=hashlib.sha256(rope.encode()).hexdigest(),
        groups=tuple(groups),
        page_tokens=cache.page_tokens,
        quantizer="absmax" if cache.page_dtype == "int8" else "",
        namespace=namespace,
    )


async def load(
    source: Source,
    *,
    device: Device | None = None,
    device_name: str | None = None,
    page_dtype: str = "f16",
    page_tokens: int = PAGE_TOKENS,
    context: int | None = None,
    default_context: int = DEFAULT_CONTEXT,
    sequences: int = 1,
    chunk: int = 256,
    namespace: str = "",
    progress: StepProgress | None = None,
) -> Loaded:
    """Open a GGUF file (a path, its parts, or bytes) for `sequences` conversations of `context` tokens each.

    `page_tokens`: tokens of a KV page.  `default_context`: the most that is taken when `context` is not
    given.  `chunk`: tokens of a prompt that are computed at a time.
    `progress(step, unit)` gives a callback `(done, total)` for each slow step.  Raises `ModelError` for a
    file that is damaged or not supported, `DeviceError` or `CacheError` for a device that cannot hold it.
    """

    def step(name: str) -> Callable[[int, int], None] | None:
        return progress(name, "bytes") if progress is not None else None

    for name, value in (("sequences", sequences), ("chunk", chunk)):
        if value < 1:
            raise CacheError(f"{name} is {value}, expected at least 1")
    chunk = max(chunk, sequences)  # a decode step has a row for each
    file = open_gguf(source)
    config = read_config(file)
    if context is not None and not (type(context) is int and 0 < context <= config.context):
        raise PromptError(f"context is {context!r}, expected 1 to {config.context} for {config.name}")
    context = context or min(config.context, default_context)
    tokenizer = Tokenizer.from_gguf(file)
    weights = file.digest(step("checking the model"))
    device = device or await open_device(device_name, features=FEATURES)
    settings = cache_config(
        config, context=context, sequences=sequences, page_dtype=page_dtype, chunk=chunk,
        page_tokens=page_tokens,
    )  # fmt: skip
    model = make_model(device, config, file, chunk, sequences, step("loading the model"))
    engine = Engine(model, PagedKVCache(device, settings), tokenizer, context)
    identity = identity_of(settings, weights, tokenizer.identity, namespace)
    return Loaded(config.name, config, engine, ChatTemplate.from_gguf(file), identity)


def make_model(
    device: Device,
    config: ModelConfig,
    file: GgufFile,
    chunk: int,
    sequences: int,
    progress: Callable[[int, int], None] | None,
) -> Llama | Gemma3:
    """The forward pass of the model's architecture, for `chunk` rows of `sequences` sequences at a time."""
    makers: Mapping[str, type[Llama] | type[Gemma3]] = {"llama": Llama, "gemma3": Gemma3}
    make = makers[config.architecture]
    return make(device, config, file, max_rows=chunk, sequences=sequences, progress=progress)
