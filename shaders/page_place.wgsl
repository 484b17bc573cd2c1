// From a sequence's slot to its page.
@group(0) @binding(4) var<storage, read> page_indices: array<i32>;

// (page, slot in the page), both always readable: entries past the list or the buffer are clamped.
fn place(keys: Keys, slot: i32) -> vec2<u32> {
    let at = u32(clamp(slot, 0, keys.slots - 1));
    let page = u32(page_indices[keys.first + at / PAGE_TOKENS]);
    return vec2<u32>(min(page, page_count() - 1u), at % PAGE_TOKENS);
}
