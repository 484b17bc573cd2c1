// Where a slot's key and value are in `pages`; strides in elements, those of scales in f32 words.
@group(0) @binding(4) var<storage, read> page_indices: array<i32>;

override K_PAGE: u32;
override K_BASE: u32;
override K_HEAD: u32;
override K_TOKEN: u32;
override V_PAGE: u32;
override V_BASE: u32;
override V_HEAD: u32;
override V_TOKEN: u32;
override KS_PAGE: u32 = 0;
override KS_BASE: u32 = 0;
override KS_HEAD: u32 = 0;
override KS_TOKEN: u32 = 0;
override VS_PAGE: u32 = 0;
override VS_BASE: u32 = 0;
override VS_HEAD: u32 = 0;
override VS_TOKEN: u32 = 0;

// (page, slot in the page), both always readable: entries past the list or the buffer are clamped.
fn place(keys: Keys, slot: i32) -> vec2<u32> {
    let at = u32(clamp(slot, 0, keys.slots - 1));
    let page = u32(page_indices[keys.first + at / PAGE_TOKENS]);
    return vec2<u32>(min(page, page_count() - 1u), at % PAGE_TOKENS);
}

fn key_element(place: vec2<u32>, head: u32) -> u32 {
    return place.x * K_PAGE + K_BASE + head * K_HEAD + place.y * K_TOKEN;
}

fn value_element(place: vec2<u32>, head: u32) -> u32 {
    return place.x * V_PAGE + V_BASE + head * V_HEAD + place.y * V_TOKEN;
}

fn key_scale(place: vec2<u32>, head: u32) -> f32 {
    return load_scale(place.x * KS_PAGE + KS_BASE + head * KS_HEAD + place.y * KS_TOKEN);
}

fn value_scale(place: vec2<u32>, head: u32) -> f32 {
    return load_scale(place.x * VS_PAGE + VS_BASE + head * VS_HEAD + place.y * VS_TOKEN);
}
