// The steps of one tile; see quad_core.  `base`: the tile's first slot (may be negative).
// `low`, `high`: only slots low .. high - 1 are seen by some row; what lies outside is skipped.

// The place of 4 neighbouring slots whose absolute position is a multiple of 4; PAGE_TOKENS is one, too.
fn quad_place(keys: Keys, slot: i32) -> vec2<u32> {
    let at = place(keys, slot);
    return vec2<u32>(at.x, min(at.y, PAGE_TOKENS - 4u));  // the clamp of a dead slot may have left the grid
}

fn dot_block(block: u32, element: u32, lane: u32, key: i32) {
    if (32u * block < HEAD_DIM) {
        let k = key8(element, 32u * block + 8u * (lane % 4u), key);
        dot_row(0u, block, k);
        dot_row(1u, block, k);
        dot_row(2u, block, k);
        dot_row(3u, block, k);
        dot_row(4u, block, k);
        dot_row(5u, block, k);
        dot_row(6u, block, k);
        dot_row(7u, block, k);
        dot_row(8u, block, k);
        dot_row(9u, block, k);
        dot_row(10u, block, k);
        dot_row(11u, block, k);
    }
}

fn score_slot(element: u32, lane: u32, key: i32) {
    dot_block(0u, element, lane, key);
    dot_block(1u, element, lane, key);
    dot_block(2u, element, lane, key);
    dot_block(3u, element, lane, key);
    dot_block(4u, element, lane, key);
    dot_block(5u, element, lane, key);
    dot_block(6u, element, lane, key);
    dot_block(7u, element, lane, key);
    push_row(0u);
    push_row(1u);
    push_row(2u);
    push_row(3u);
    push_row(4u);
    push_row(5u);
    push_row(6u);
    push_row(7u);
    push_row(8u);
    push_row(9u);
    push_row(10u);
    push_row(11u);
}

// Nothing of a dead slot may reach a result, not even times 0: it may hold NaN.
fn add_block(block: u32, element: u32, lane: u32, live: vec4<bool>) {
    if (32u * block < V_DIM) {
        let at = element + 32u * block + 8u * (lane % 4u);
        let a = live8(at, live.x);
        let b = live8(at + V_TOKEN, live.y);
        let c = live8(at + 2u * V_TOKEN, live.z);
        let d = live8(at + 3u * V_TOKEN, live.w);
        add_row(0u, block, a, b, c, d);
        add_row(1u, block, a, b, c, d);
        add_row(2u, block, a, b, c, d);
        add_row(3u, block, a, b, c, d);
        add_row(4u, block, a, b, c, d);
        add_row(5u, block, a, b, c, d);
        add_row(6u, block, a, b, c, d);
        add_row(7u, block, a, b, c, d);
        add_row(8u, block, a, b, c, d);
        add_row(9u, block, a, b, c, d);
        add_row(10u, block, a, b, c, d);
        add_row(11u, block, a, b, c, d);
    }
}

fn weigh_rows(lane: u32, key: i32, key_scale: f32, value_scale: f32) {
    weigh_row(0u, lane, key, key_scale, value_scale);
    weigh_row(1u, lane, key, key_scale, value_scale);
    weigh_row(2u, lane, key, key_scale, value_scale);
    weigh_row(3u, lane, key, key_scale, value_scale);
    weigh_row(4u, lane, key, key_scale, value_scale);
    weigh_row(5u, lane, key, key_scale, value_scale);
    weigh_row(6u, lane, key, key_scale, value_scale);
    weigh_row(7u, lane, key, key_scale, value_scale);
    weigh_row(8u, lane, key, key_scale, value_scale);
    weigh_row(9u, lane, key, key_scale, value_scale);
    weigh_row(10u, lane, key, key_scale, value_scale);
    weigh_row(11u, lane, key, key_scale, value_scale);
    spread_row(0u);
    spread_row(1u);
    spread_row(2u);
    spread_row(3u);
    spread_row(4u);
    spread_row(5u);
    spread_row(6u);
    spread_row(7u);
    spread_row(8u);
    spread_row(9u);
    spread_row(10u);
    spread_row(11u);
}

fn attend_slots(keys: Keys, head: u32, slot: i32, lane: u32) {
    let at = quad_place(keys, slot);
    let second = vec2<i32>(key_of_slot(keys, slot + 2), key_of_slot(keys, slot + 3));
    let k = vec4<i32>(key_of_slot(keys, slot), key_of_slot(keys, slot + 1), second);
    let e = key_element(at, head);
    if (UNROLLED) {
        score_slot(e, lane, k.x);
        score_slot(e + K_TOKEN, lane, k.y);
        score_slot(e + 2u * K_TOKEN, lane, k.z);
        score_slot(e + 3u * K_TOKEN, lane, k.w);
    } else {
        for (var i = 0u; i < 4u; i++) {
            score_slot(e + i * K_TOKEN, lane, k[i]);
        }
    }
    let mine = vec2<u32>(at.x, at.y + lane % 4u);
    var scale = vec2<f32>(1.0);
    if (KS_PAGE > 0u) {
        scale = vec2<f32>(load_scale(key_scale_word(mine, head)), load_scale(value_scale_word(mine, head)));
    }
    weigh_rows(lane, key_of_slot(keys, slot + i32(lane % 4u)), scale.x, scale.y);
    let v = value_element(at, head);
    add_block(0u, v, lane, k >= vec4<i32>(0));
    add_block(1u, v, lane, k >= vec4<i32>(0));
    add_block(2u, v, lane, k >= vec4<i32>(0));
    add_block(3u, v, lane, k >= vec4<i32>(0));
    add_block(4u, v, lane, k >= vec4<i32>(0));
    add_block(5u, v, lane, k >= vec4<i32>(0));
    add_block(6u, v, lane, k >= vec4<i32>(0));
    add_block(7u, v, lane, k >= vec4<i32>(0));
}
