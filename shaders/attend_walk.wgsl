// A workgroup's walk over tiles: `begin`, `attend_tile` for each, `finish`; see attend_core.

fn set_row(row: u32) {
    if (row < ROWS) {
        let found = row_of(row);
        query[row] = found.query;
        record[row] = found.record;
        first_key[row] = found.first;
        end_key[row] = found.end;
        mine[row] = found.mine;
    }
}

fn begin(lane: u32) {
    set_row(0u);
    set_row(1u);
    set_row(2u);
    set_row(3u);
    set_row(4u);
    set_row(5u);
    set_row(6u);
    set_row(7u);
    if (lane < 8u) {
        state[lane] = vec2<f32>(LOWEST, 1.0);
    }
    workgroupBarrier();
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
        let scale = mat2x4<f32>(key_scales(p, head), key_scales(r, head));
        mask_row(0u, lane, low_keys, high_keys, scale);
        mask_row(1u, lane, low_keys, high_keys, scale);
        mask_row(2u, lane, low_keys, high_keys, scale);
        mask_row(3u, lane, low_keys, high_keys, scale);
        mask_row(4u, lane, low_keys, high_keys, scale);
        mask_row(5u, lane, low_keys, high_keys, scale);
        mask_row(6u, lane, low_keys, high_keys, scale);
        mask_row(7u, lane, low_keys, high_keys, scale);
    }
    workgroupBarrier();
    if (lane < ROWS) {
        let old = state[lane].x;
        var m = old;
        for (var i = 0u; i < SCORERS; i++) {
            m = max(m, partial[lane * SCORERS + i]);
        }
        state[lane] = vec2<f32>(m, exp2_0(old - m));
    }
    workgroupBarrier();
    let scale = mat2x4<f32>(value_scales(p, head), value_scales(r, head));
    weigh_row(0u, lane, scale);
    weigh_row(1u, lane, scale);
    weigh_row(2u, lane, scale);
    weigh_row(3u, lane, scale);
    weigh_row(4u, lane, scale);
    weigh_row(5u, lane, scale);
    weigh_row(6u, lane, scale);
    weigh_row(7u, lane, scale);
    workgroupBarrier();
    add_values(keys, head, base, low, high, lane);
}

fn share_row(row: u32, lane: u32) {
    if (row < ROWS) {
        weight[row % 4u * 128u + lane] = acc[row][0];
        weight[row % 4u * 128u + 64u + lane] = acc[row][1];
    }
}

fn share_total(row: u32, lane: u32) {
    if (row < ROWS && lane < SCORERS) {
        partial[row * SCORERS + lane] = total[row];
    }
}

// Add up the streams of rows first .. first + 3, and store them.
fn store_rows(first: u32, lane: u32) {
    let quads = V_DIM / 4u;
    for (var i = lane; i < min(ROWS - first, 4u) * quads; i += LANES) {
        let row = i / quads;
        let quad = i % quads;
        let at = row * 128u + quad % 2u * 64u + quad / 2u;
        var x = weight[at];
        for (var stream = 1u; stream < STREAMS; stream++) {
            x += weight[at + stream * CHUNKS];
        }
        store4(record[first + row], quad, x, state[first + row]);
    }
}

fn finish(lane: u32) {
    workgroupBarrier();
    share_total(0u, lane);
    share_total(1u, lane);
    share_total(2u, lane);
    share_total(3u, lane);
    share_total(4u, lane);
    share_total(5u, lane);
    share_total(6u, lane);
    share_total(7u, lane);
    share_row(0u, lane);
    share_row(1u, lane);
    share_row(2u, lane);
    share_row(3u, lane);
    workgroupBarrier();
    if (lane < ROWS) {
        var sum = 0.0;
        for (var i = 0u; i < SCORERS; i++) {
            sum += partial[lane * SCORERS + i];
        }
        state[lane] = vec2<f32>(state[lane].x, sum);
    }
    workgroupBarrier();
    store_rows(0u, lane);
    if (ROWS > 4u) {
        workgroupBarrier();
        share_row(4u, lane);
        share_row(5u, lane);
        share_row(6u, lane);
        share_row(7u, lane);
        workgroupBarrier();
        store_rows(4u, lane);
    }
}
