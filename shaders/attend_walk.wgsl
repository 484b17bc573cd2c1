// A workgroup's walk over tiles: `begin`, `attend_tile` for each, `finish`; see attend_core.


fn begin(lane: u32) {
    if (lane < 8u) {
        best[lane] = LOWEST;
        fade[lane] = 1.0;
    }
    workgroupBarrier();
}

fn fade_row(row: u32) {
    if (row < ROWS) {
        acc[row] = acc[row] * fade[row];
    }
}

// `base`: the tile's first slot (may be negative).  Only slots low .. high - 1 are seen by some row.
fn attend_tile(keys: Keys, head: u32, base: i32, low: i32, high: i32, lane: u32) {
    let slot = base + 8 * i32(lane);
    let scores = lane < SCORERS;
    let p = places(keys, slot);
    let r = places(keys, slot + 4);
    let low_keys = keys_at(keys, slot);
    let high_keys = keys_at(keys, slot + 4);
    score = array<vec4<f32>, 16>();
    if (scores && slot < high && slot + 8 > low) {
        score_slots(p, r, low_keys, high_keys, head);
    }
    if (scores) {
        let a = key_scales(p, head);
        let b = key_scales(r, head);
        mask_row(0u, lane, low_keys, high_keys, a, b);
        mask_row(1u, lane, low_keys, high_keys, a, b);
        mask_row(2u, lane, low_keys, high_keys, a, b);
        mask_row(3u, lane, low_keys, high_keys, a, b);
        mask_row(4u, lane, low_keys, high_keys, a, b);
        mask_row(5u, lane, low_keys, high_keys, a, b);
        mask_row(6u, lane, low_keys, high_keys, a, b);
        mask_row(7u, lane, low_keys, high_keys, a, b);
    }
    workgroupBarrier();
    if (lane < ROWS) {
        var m = best[lane];
        for (var i = 0u; i < SCORERS; i++) {
            m = max(m, partial[lane * SCORERS + i]);
        }
        fade[lane] = exp2_0(best[lane] - m);
        best[lane] = m;
    }
    workgroupBarrier();
    if (scores) {
        let a = value_scales(p, head);
        let b = value_scales(r, head);
        weigh_row(0u, lane, a, b);
        weigh_row(1u, lane, a, b);
        weigh_row(2u, lane, a, b);
        weigh_row(3u, lane, a, b);
        weigh_row(4u, lane, a, b);
        weigh_row(5u, lane, a, b);
        weigh_row(6u, lane, a, b);
        weigh_row(7u, lane, a, b);
    }
    fade_row(0u);
    fade_row(1u);
    fade_row(2u);
    fade_row(3u);
    fade_row(4u);
    fade_row(5u);
    fade_row(6u);
    fade_row(7u);
    workgroupBarrier();
    add_values(keys, head, base, low, high, lane);
}

fn share_row(row: u32, lane: u32) {
    if (row < ROWS) {
        if (lane < SCORERS) {
            partial[row * SCORERS + lane] = total[row];
        }
        if (STREAMS > 1u && lane < 32u) {
            weight[row * 64u + lane] = acc[row][0];
            weight[row * 64u + 32u + lane] = acc[row][1];
        }
    }
}

fn gather_row(row: u32, lane: u32) {
    if (row < ROWS) {
        var x = acc[row];
        for (var stream = 1u; stream < STREAMS; stream++) {
            let at = row * 64u + stream * CHUNKS + lane;
            x += mat2x4<f32>(weight[at], weight[at + 32u]);
        }
        acc[row] = x;
    }
}

// Afterwards lane c < CHUNKS has dims 8c .. 8c + 7 of each row's sum in `acc`, and `fade` has the sums of p.
fn finish(lane: u32) {
    workgroupBarrier();
    share_row(0u, lane);
    share_row(1u, lane);
    share_row(2u, lane);
    share_row(3u, lane);
    share_row(4u, lane);
    share_row(5u, lane);
    share_row(6u, lane);
    share_row(7u, lane);
    workgroupBarrier();
    if (lane < ROWS) {
        var sum = 0.0;
        for (var i = 0u; i < SCORERS; i++) {
            sum += partial[lane * SCORERS + i];
        }
        fade[lane] = sum;
    }
    if (STREAMS > 1u && lane < CHUNKS) {
        gather_row(0u, lane);
        gather_row(1u, lane);
        gather_row(2u, lane);
        gather_row(3u, lane);
        gather_row(4u, lane);
        gather_row(5u, lane);
        gather_row(6u, lane);
        gather_row(7u, lane);
    }
    workgroupBarrier();
}
