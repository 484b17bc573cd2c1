// How a sequence finds its keys: `slot` counts through its page list, `key` is the logical KV index.
// Absolute positions (slot + start) only align tiles, so that pages freed at the front change no result.
@group(0) @binding(2) var<storage, read> page_indptr: array<i32>;
@group(0) @binding(3) var<storage, read> length_info: array<i32>;

struct Keys {
    first: u32,   // of its entries in page_indices
    slots: i32,
    offset: i32,  // slots sink .. offset - 1 are dead
    sink: i32,
    length: i32,
    start: i32,   // absolute position of slot 0
}

fn keys_of(sequence: u32, sequences: u32) -> Keys {
    let first = page_indptr[sequence];
    let pages_held = page_indptr[sequence + 1u] - first;
    let slots = select((pages_held - 1) * i32(PAGE_TOKENS) + length_info[sequence], 0, pages_held <= 0);
    let offset = length_info[sequences + sequence];
    let sink = length_info[2u * sequences + sequence];
    let start = length_info[3u * sequences + sequence] * i32(PAGE_TOKENS);
    return Keys(u32(first), slots, offset, sink, max(slots - offset + sink, 0), start);
}

fn slot_of_key(keys: Keys, key: i32) -> i32 {
    return select(key - keys.sink + keys.offset, key, key < keys.sink);
}

// The key at a slot; -1 for a slot that holds none.
fn key_of_slot(keys: Keys, slot: i32) -> i32 {
    let live = slot >= 0 && slot < keys.slots && (slot < keys.sink || slot >= keys.offset);
    return select(-1, select(slot - keys.offset + keys.sink, slot, slot < keys.sink), live);
}
