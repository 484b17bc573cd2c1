// One tile; see quad_core.

// The place of SHARE neighbouring slots whose absolute position is a multiple of it; PAGE_TOKENS is one, too.
fn first_place(keys: Keys, slot: i32) -> vec2<u32> {
    let at = place(keys, slot);
    return vec2<u32>(at.x, min(at.y, PAGE_TOKENS - SHARE));  // the clamp of a dead slot may have left the grid
}

fn next_rows(row: u32, source: u32) {
    next_row(row, source);
    next_row(row + 1u, source);
    next_row(row + 2u, source);
    next_row(row + 3u, source);
}

fn dot_rows(row: u32, pair: u32, k: array<mat2x4<f32>, 2>) {
    dot_row(row, pair, k);
    dot_row(row + 1u, pair, k);
    dot_row(row + 2u, pair, k);
    dot_row(row + 3u, pair, k);
}

fn dot_pair(pair: u32, element: u32, lane: u32, key: i32) {
    if (16u * SHARE * pair < HEAD_DIM) {
        let k = key_units(element, dim_of(2u * pair, lane), dim_of(2u * pair + 1u, lane), key);
        dot_rows(0u, pair, k);
        dot_rows(4u, pair, k);
        dot_rows(8u, pair, k);
        dot_rows(12u, pair, k);
    }
}

fn score_slot(element: u32, lane: u32, source: u32, key: i32) {
    next_rows(0u, source);
    next_rows(4u, source);
    next_rows(8u, source);
    next_rows(12u, source);
    dot_pair(0u, element, lane, key);
    dot_pair(1u, element, lane, key);
    dot_pair(2u, element, lane, key);
    dot_pair(3u, element, lane, key);
}

fn weigh_rows(row: u32, key: i32, key_scale: f32, value_scale: f32) {
    weigh_row(row, key, key_scale, value_scale);
    weigh_row(row + 1u, key, key_scale, value_scale);
    weigh_row(row + 2u, key, key_scale, value_scale);
    weigh_row(row + 3u, key, key_scale, value_scale);
}

fn add_rows(row: u32, unit: u32, low: Values, high: Values) {
    add_row(row, unit, low, high);
    add_row(row + 1u, unit, low, high);
    add_row(row + 2u, unit, low, high);
    add_row(row + 3u, unit, low, high);
}

fn add_unit(unit: u32, low: Values, high: Values) {
    if (8u * SHARE * unit < V_DIM) {
        add_rows(0u, unit, low, high);
        add_rows(4u, unit, low, high);
        add_rows(8u, unit, low, high);
        add_rows(12u, unit, low, high);
    }
}

fn add_pair(pair: u32, element: array<u32, SHARE>, lane: u32) {
    if (16u * SHARE * pair < V_DIM) {
        let v = load_values(element, dim_of(2u * pair, lane), dim_of(2u * pair + 1u, lane));
        add_unit(2u * pair, v[0], v[1]);
        add_unit(2u * pair + 1u, v[2], v[3]);
    }
}

// `any`: the values of a slot that holds a key.
fn attend_slots(keys: Keys, head: u32, slot: i32, lane: u32, any: u32) {
    let at = first_place(keys, slot);
    let e = key_element(at, head);
    p = array<f32, 16>();
    let mask = SHARE - 1u;
    let source = (lane & ~mask) | ((lane + 1u) & mask);
    for (var i = 1u; i <= SHARE; i++) {
        let other = (lane + i) & mask;
        score_slot(e + other * K_TOKEN, lane, source, key_of_slot(keys, slot + i32(other)));
    }
    let key = key_of_slot(keys, slot + i32(lane % SHARE));
    let own = vec2<u32>(at.x, at.y + lane % SHARE);
    var scale = vec2<f32>(1.0);
    if (KS_PAGE > 0u) {
        scale = vec2<f32>(load_scale(key_scale_word(own, head)), load_scale(value_scale_word(own, head)));
    }
    weigh_rows(0u, key, scale.x, scale.y);
    weigh_rows(4u, key, scale.x, scale.y);
    weigh_rows(8u, key, scale.x, scale.y);
    weigh_rows(12u, key, scale.x, scale.y);
    // Nothing of a dead slot may reach a sum, not even times 0: it may hold NaN.
    let live = every_lane(select(any, value_element(own, head), key >= 0));
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
    let step = i32(SHARE);
    let block = select(step, 16, STREAMS > 1u);
    let all = block * streams;
    let turn = block * (i32(lane / SHARE) % streams);
    let end = (min(high - base, TILE) + all - 1) / all * all;
    for (var at = max(low - base, 0) / all * all; at < end; at += step * streams) {
        attend_slots(keys, head, base + at / all * all + at % all / streams + turn, lane, any);
    }
}
