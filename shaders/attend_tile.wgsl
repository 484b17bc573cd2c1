// The steps of one tile; see attend_core.  `base`: the tile's first slot (may be negative).
// `low`, `high`: only slots low .. high - 1 are seen by some row; what lies outside is skipped.

fn keys_at(keys: Keys, slot: i32) -> vec4<i32> {
    let second = vec2<i32>(key_of_slot(keys, slot + 2), key_of_slot(keys, slot + 3));
    return vec4<i32>(key_of_slot(keys, slot), key_of_slot(keys, slot + 1), second);
}

// Places of 4 neighbouring slots whose absolute position is a multiple of 4.
fn places(keys: Keys, slot: i32) -> array<vec2<u32>, 4> {
    let p = place(keys, slot);
    if (PAGE_TOKENS % 4u == 0u) {
        let s = min(p.y, PAGE_TOKENS - 4u);  // the clamp of a dead slot may have left the grid
        return array<vec2<u32>, 4>(
            vec2<u32>(p.x, s), vec2<u32>(p.x, s + 1u), vec2<u32>(p.x, s + 2u), vec2<u32>(p.x, s + 3u),
        );
    }
    return array<vec2<u32>, 4>(p, place(keys, slot + 1), place(keys, slot + 2), place(keys, slot + 3));
}

fn key_scales(p: array<vec2<u32>, 4>, head: u32) -> vec4<f32> {
    if (KS_PAGE == 0u) {
        return vec4<f32>(1.0);
    }
    return vec4<f32>(
        load_scale(key_scale_word(p[0], head)),
        load_scale(key_scale_word(p[1], head)),
        load_scale(key_scale_word(p[2], head)),
        load_scale(key_scale_word(p[3], head)),
    );
}

fn value_scales(p: array<vec2<u32>, 4>, head: u32) -> vec4<f32> {
    if (VS_PAGE == 0u) {
        return vec4<f32>(1.0);
    }
    return vec4<f32>(
        load_scale(value_scale_word(p[0], head)),
        load_scale(value_scale_word(p[1], head)),
        load_scale(value_scale_word(p[2], head)),
        load_scale(value_scale_word(p[3], head)),
    );
}

fn score_slots(p: array<vec2<u32>, 4>, r: array<vec2<u32>, 4>, low: vec4<i32>, high: vec4<i32>, head: u32) {
    let e = vec4<u32>(
        key_element(p[0], head), key_element(p[1], head), key_element(p[2], head), key_element(p[3], head),
    );
    let f = vec4<u32>(
        key_element(r[0], head), key_element(r[1], head), key_element(r[2], head), key_element(r[3], head),
    );
    for (var d = 0u; d < HEAD_DIM; d += 8u) {
        let a = array<mat2x4<f32>, 4>(
            key8(e.x, d, low.x), key8(e.y, d, low.y), key8(e.z, d, low.z), key8(e.w, d, low.w),
        );
        let b = array<mat2x4<f32>, 4>(
            key8(f.x, d, high.x), key8(f.y, d, high.y), key8(f.z, d, high.z), key8(f.w, d, high.w),
        );
        score_row(0u, d, a, b);
        score_row(1u, d, a, b);
        score_row(2u, d, a, b);
        score_row(3u, d, a, b);
        score_row(4u, d, a, b);
        score_row(5u, d, a, b);
        score_row(6u, d, a, b);
        score_row(7u, d, a, b);
    }
}

fn add_values(keys: Keys, head: u32, base: i32, low: i32, high: i32, lane: u32) {
    let chunk = 8u * (lane % CHUNKS);
    let stream = lane / CHUNKS;
    let start = u32(max(low - base, 0)) / 4u;
    let end = u32(min(high - base, TILE) + 3) / 4u;
    if (stream >= STREAMS) {
        return;
    }
    for (var quad = start + (stream + STREAMS - start % STREAMS) % STREAMS; quad < end; quad += STREAMS) {
        let slot = base + 4 * i32(quad);
        let p = places(keys, slot);
        let live = keys_at(keys, slot) >= vec4<i32>(0);
        let v = array<mat2x4<f32>, 4>(
            value8(p[0], head, chunk, live.x), value8(p[1], head, chunk, live.y),
            value8(p[2], head, chunk, live.z), value8(p[3], head, chunk, live.w),
        );
        add_row(0u, quad, v);
        add_row(1u, quad, v);
        add_row(2u, quad, v);
        add_row(3u, quad, v);
        add_row(4u, quad, v);
        add_row(5u, quad, v);
        add_row(6u, quad, v);
        add_row(7u, quad, v);
    }
}

// Nothing of a dead slot may reach a result, not even times 0: it may hold NaN.
fn value8(p: vec2<u32>, head: u32, d: u32, live: bool) -> mat2x4<f32> {
    let v = load8(value_element(p, head) + d);
    let zero = vec4<f32>();
    return mat2x4<f32>(select(zero, v[0], live), select(zero, v[1], live));
}
