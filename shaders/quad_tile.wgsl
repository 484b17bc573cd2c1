// One tile; see quad_core.

// The place of 4 neighbouring slots whose absolute position is a multiple of 4; PAGE_TOKENS is one, too.
fn quad_place(keys: Keys, slot: i32) -> vec2<u32> {
    let at = place(keys, slot);
    return vec2<u32>(at.x, min(at.y, PAGE_TOKENS - 4u));  // the clamp of a dead slot may have left the grid
}

fn dot_pair(pair: u32, element: u32, lane: u32, key: i32) {
    if (16u * SHARE * pair < HEAD_DIM) {
        let k = key16(element, dim_of(2u * pair, lane), dim_of(2u * pair + 1u, lane), key);
        dot_row(0u, pair, k);
        dot_row(1u, pair, k);
        dot_row(2u, pair, k);
        dot_row(3u, pair, k);
        dot_row(4u, pair, k);
        dot_row(5u, pair, k);
        dot_row(6u, pair, k);
        dot_row(7u, pair, k);
        dot_row(8u, pair, k);
        dot_row(9u, pair, k);
        dot_row(10u, pair, k);
        dot_row(11u, pair, k);
    }
}

fn score_slot(i: u32, element: u32, lane: u32, key: i32) {
    sum = array<f32, 12>();
    dot_pair(0u, element, lane, key);
    dot_pair(1u, element, lane, key);
    dot_pair(2u, element, lane, key);
    dot_pair(3u, element, lane, key);
    let here = lane % 4u == i;
    take_row(0u, here);
    take_row(1u, here);
    take_row(2u, here);
    take_row(3u, here);
    take_row(4u, here);
    take_row(5u, here);
    take_row(6u, here);
    take_row(7u, here);
    take_row(8u, here);
    take_row(9u, here);
    take_row(10u, here);
    take_row(11u, here);
}

fn weigh_rows(key: i32, key_scale: f32, value_scale: f32) {
    weigh_row(0u, key, key_scale, value_scale);
    weigh_row(1u, key, key_scale, value_scale);
    weigh_row(2u, key, key_scale, value_scale);
    weigh_row(3u, key, key_scale, value_scale);
    weigh_row(4u, key, key_scale, value_scale);
    weigh_row(5u, key, key_scale, value_scale);
    weigh_row(6u, key, key_scale, value_scale);
    weigh_row(7u, key, key_scale, value_scale);
    weigh_row(8u, key, key_scale, value_scale);
    weigh_row(9u, key, key_scale, value_scale);
    weigh_row(10u, key, key_scale, value_scale);
    weigh_row(11u, key, key_scale, value_scale);
}

fn add_unit(unit: u32, a: mat2x4<f32>, b: mat2x4<f32>, c: mat2x4<f32>, d: mat2x4<f32>) {
    if (8u * SHARE * unit < V_DIM) {
        let low = array<vec4<f32>, 4>(a[0], b[0], c[0], d[0]);
        let high = array<vec4<f32>, 4>(a[1], b[1], c[1], d[1]);
        add_row(0u, unit, low, high);
        add_row(1u, unit, low, high);
        add_row(2u, unit, low, high);
        add_row(3u, unit, low, high);
        add_row(4u, unit, low, high);
        add_row(5u, unit, low, high);
        add_row(6u, unit, low, high);
        add_row(7u, unit, low, high);
        add_row(8u, unit, low, high);
        add_row(9u, unit, low, high);
        add_row(10u, unit, low, high);
        add_row(11u, unit, low, high);
    }
}

fn add_pair(pair: u32, element: vec4<u32>, lane: u32) {
    if (16u * SHARE * pair < V_DIM) {
        let at = element + vec4<u32>(dim_of(2u * pair, lane));
        let also = element + vec4<u32>(dim_of(2u * pair + 1u, lane));
        let a = load16(at.x, also.x);
        let b = load16(at.y, also.y);
        let c = load16(at.z, also.z);
        let d = load16(at.w, also.w);
        add_unit(2u * pair, a[0], b[0], c[0], d[0]);
        add_unit(2u * pair + 1u, a[1], b[1], c[1], d[1]);
    }
}

// `any`: the values of a slot that holds a key.
fn attend_slots(keys: Keys, head: u32, slot: i32, lane: u32, any: u32) {
    let at = quad_place(keys, slot);
    let key = key_of_slot(keys, slot + i32(lane % 4u));
    let second = vec2<i32>(quadBroadcast(key, 2u), quadBroadcast(key, 3u));
    let k = vec4<i32>(quadBroadcast(key, 0u), quadBroadcast(key, 1u), second);
    let e = key_element(at, head);
    for (var i = 0u; i < 4u; i++) {
        score_slot(i, e + i * K_TOKEN, lane, k[i]);
    }
    let own = vec2<u32>(at.x, at.y + lane % 4u);
    var scale = vec2<f32>(1.0);
    if (KS_PAGE > 0u) {
        scale = vec2<f32>(load_scale(key_scale_word(own, head)), load_scale(value_scale_word(own, head)));
    }
    weigh_rows(key, scale.x, scale.y);
    // Nothing of a dead slot may reach a sum, not even times 0: it may hold NaN.
    let v = vec4<u32>(value_element(at, head)) + vec4<u32>(0u, 1u, 2u, 3u) * V_TOKEN;
    let live = select(vec4<u32>(any), v, k >= vec4<i32>(0));
    add_pair(0u, live, lane);
    add_pair(1u, live, lane);
    add_pair(2u, live, lane);
    add_pair(3u, live, lane);
}

// `base`: the tile's first slot (may be negative).  Only slots low .. high - 1 are seen by some row.
// Streams take turns of 16 slots, so that they wait for two pages at once, and end together: a `high` within
// their turns must be the end of the sequence.
fn attend_tile(keys: Keys, head: u32, base: i32, low: i32, high: i32, lane: u32, rows: u32) {
    let any = value_element(place(keys, slot_of_key(keys, 0)), head);
    let streams = i32(STREAMS);
    let block = select(4, 16, STREAMS > 1u);
    let all = block * streams;
    let turn = block * (i32(lane / SHARE) % streams);
    let end = (min(high - base, TILE) + all - 1) / all * all;
    for (var at = max(low - base, 0) / all * all; at < end; at += 4 * streams) {
        attend_slots(keys, head, base + at / all * all + at % all / streams + turn, lane, any);
    }
}
