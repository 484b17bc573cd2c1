"""Which variant of an attention kernel runs: decided by the device's facts and the shape, nothing else.

The portable variant stays within WebGPU's defaults.  On a CPU, quad operations keep queries and sums in
registers (`uses_quads`), and pages are read in 64-bit words where the device has "shader-int64", or from
textures where those are faster still (`webkv.kernels.texels`).
"""

from __future__ import annotations

from webkv.gpu import Device
from webkv.kernels.planes import in_textures
from webkv.kernels.shape import STRIDES, AttentionShape

KV_TILE = 512
"""Tokens of a split of decode; they start at absolute multiples of it."""

PREFILL_PART = 49152
"""Tokens of a part of prefill; they start at absolute multiples of it.

llvmpipe ends every loop of an invocation, in silence, after 65535 turns of all its loops together; a walk
over a part takes at most 1.26 for each token.
"""

# Query rows that share the keys a portable workgroup reads: 8 rows x 8 keys fill a GPU lane's registers.
_MAX_ROWS = 8
_MIN_LANES = 32
_TURNED_FLOATS = 1024  # of rotated queries in workgroup memory; see attend_query_turned
_CONSTANTS = (
    *STRIDES, "PAGE_TOKENS", "HEAD_DIM", "V_DIM", "GROUP", "KV_HEADS", "WINDOW", "SM_SCALE", "SOFTCAP",
)  # fmt: skip
_PARTS = ("page_table", "page_strides", "page_place", "attend_row")
_STEPS = ("core", "tile", "walk")


def kv_tiles(first: int, end: int) -> int:
    """How many tiles hold the absolute positions `first` (of the first listed page) `.. end - 1`."""
    return _pieces(first, end, KV_TILE)


def kv_parts(first: int, end: int) -> int:
    """How many parts of prefill hold the absolute positions of `kv_tiles`; at least one."""
    return max(1, _pieces(first, end, PREFILL_PART))


def _pieces(first: int, end: int, size: int) -> int:
    return max(0, -(-end // size) - first // size)


def uses_quads(device: Device, shape: AttentionShape) -> bool:
    """Whether attention of this shape runs with quad operations on this device.

    Only on CPUs: a quad's share of queries and sums is too much for the registers of a GPU's lane.
    """
    whole = _multiples(shape, 32) and shape.page_tokens % 4 == 0
    fits = whole and max(shape.head_dim, shape.v_dim) <= 256
    return fits and device.facts.adapter_type == "CPU" and "subgroup" in device.facts.features


def _multiples(shape: AttentionShape, dims: int) -> bool:
    return shape.head_dim % dims == 0 and shape.v_dim % dims == 0


def _octets(device: Device, shape: AttentionShape) -> bool:
    """Whether two quads can share this shape's dims and slots."""
    return _multiples(shape, 64) and shape.page_tokens % 8 == 0 and device.facts.subgroups_of_8


def decode_share(device: Device, shape: AttentionShape) -> int:
    """How many lanes share dims and slots in decode with quads: a quad, or two where heads are wide."""
    return 8 if _octets(device, shape) and _multiples(shape, 128) else 4


def prefill_share(device: Device, shape: AttentionShape) -> int:
    """How many lanes share dims and slots in prefill with quads: two quads, where subgroups have both."""
    return 8 if _octets(device, shape) else 4


def quad_lanes(device: Device) -> int:
    """Lanes of a workgroup with quads: those that run at once."""
    return 8 if device.facts.subgroups_of_8 else 4


def prefill_teams(device: Device, shape: AttentionShape) -> int:
    """Teams of a workgroup of prefill, each with rows of its own; see quad_core."""
    return quad_lanes(device) // prefill_share(device, shape) if uses_quads(device, shape) else 1


def prefill_rows(device: Device, shape: AttentionShape) -> int:
    """Query rows of a team of prefill."""
    return _most_rows(device, shape, prefill_share(device, shape))


def _most_rows(device: Device, shape: AttentionShape, share: int) -> int:
    if not uses_quads(device, shape):
        return _MAX_ROWS
    # As many as compile in about a second: code grows with rows * dims of a lane.
    dims = max(shape.head_dim, shape.v_dim) // share
    return min(16, 224 // dims) if share == 8 else min(12, max(256 // dims, 4))


def appends(device: Device, shape: AttentionShape) -> bool:
    """Whether `attend_decode` can append this shape's new tokens itself.

    It rotates and writes eight dims at a time; and pairs of int8 scales, which must be one head's, as other
    heads are written at the same time.
    """
    if shape.rope == "inline" or shape.latent:
        return False
    scales = (shape.key_scale, shape.value_scale) if shape.dtype == "int8" else ()
    paired = all(s.token == 1 and (s.page | s.base | s.head) % 2 == 0 for s in scales)
    whole = shape.head_dim % 8 == 0 and shape.v_dim % 8 == 0 and not page_codec(shape).endswith("narrow")
    turned = not turns(shape) or shape.rotary_dim % (8 if shape.pairing == "half" else 4) == 0
    fits = decode_rows(device, shape) * shape.head_dim <= _TURNED_FLOATS
    return paired and whole and turned and fits


def turns(shape: AttentionShape) -> bool:
    """Whether keys and queries of this shape are rotated when they are appended."""
    return shape.rope != "none" and shape.rotary_dim > 0


def decode_rows(device: Device, shape: AttentionShape) -> int:
    """Query heads of one KV head that a workgroup of decode takes: equal parts of the group."""
    most = _most_rows(device, shape, decode_share(device, shape))
    if uses_quads(device, shape):
        most = min(most, _TURNED_FLOATS // shape.head_dim)
    return -(-shape.group // -(-shape.group // most))


def page_codec(shape: AttentionShape) -> str:
    """The shader part that reads the shape's pages: eight elements at once where strides allow it."""
    if shape.dtype == "f32":
        return "page_f32"
    wide = all(number % 8 == 0 for number in (*shape.key[:4], *shape.value[:4]))
    return f"page_{shape.dtype}" if wide else f"page_{shape.dtype}_narrow"


def _whole(shape: AttentionShape) -> bool:
    """Whether the pages can be read in words of 16 elements."""
    return _multiples(shape, 64) and all(number % 16 == 0 for number in (*shape.key[:4], *shape.value[:4]))


def _quad_codec(device: Device, shape: AttentionShape) -> str:
    if _whole(shape) and "shader-int64" in device.facts.features:
        return f"page_{shape.dtype}_u64"
    return "page_f32_wide" if _whole(shape) and shape.dtype == "f32" else page_codec(shape)


def reads_textures(device: Device, shape: AttentionShape) -> bool:
    """Whether attention of this shape is faster over a texture of pages than over their buffer."""
    return in_textures(device) and uses_quads(device, shape) and _whole(shape)


def attention_constants(
    device: Device, shape: AttentionShape, q_stride: int, rows: int, share: int
) -> dict[str, float]:
    """The override constants of both attention kernels."""
    found = {**shape.constants(*_CONSTANTS), "Q_STRIDE": q_stride or shape.fused_width, "ROWS": rows}
    if uses_quads(device, shape):
        return {**found, "LANES": quad_lanes(device), "PAIRED": _multiples(shape, 16 * share)}
    return {**found, "LANES": max(_MIN_LANES, -(-shape.v_dim // 8))}


def attention_parts(device: Device, shape: AttentionShape, texture: bool, share: int) -> dict[str, str]:
    """The imports of both attention kernels; `texture`: for a shape that `reads_textures` approves."""
    assert not texture or reads_textures(device, shape), "this shape's pages are read from buffers"
    quads = uses_quads(device, shape)
    steps = {f"attend_{step}": f"{'quad' if quads else 'attend'}_{step}" for step in _STEPS}
    page = _quad_codec(device, shape) if quads else page_codec(shape)
    found = {**{name: name for name in _PARTS}, **steps, "page": page, "pages": "pages_read"}
    if quads:
        found |= {"share": f"quad_share_{share}", "sums": "quad_sums"}
    if texture:
        found |= {"page": f"page_{shape.dtype}_texels", "pages": "pages_texels"}
    return {**found, "query": "attend_query"}


def key_part(shape: AttentionShape, constants: dict[str, float]) -> str:
    """The import that gives keys as scores need them; adds what it needs to `constants`."""
    if shape.rope != "inline":
        return "attend_key"
    constants.update(shape.constants("ROTARY_DIM", "INTERLEAVED"))
    return "attend_key_inline"
