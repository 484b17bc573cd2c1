// A workgroup's walk over tiles: `begin`, `attend_tile` for each, `finish`; see attend_core.  `rows`: ROWS.

fn begin(lane: u32, rows: u32) {
    if (lane < 8u) {
        let row = row_of(lane);
        query[lane] = row.query;
        record[lane] = row.record;
        first_key[lane] = row.first;
        end_key[lane] = row.end;
        mine[lane] = row.mine;
        state[lane] = vec2<f32>(LOWEST, 1.0);
    }
    for (var i = lane; i < 8u * SCORERS; i += LANES) {
        total[i] = 0.0;
    }
    workgroupBarrier();
}

// `base`: the tile's first slot (may be negative).  Only slots low .. high - 1 are seen by some row.
fn attend_tile(keys: Keys, head: u32, base: i32, low: i32, high: i32, lane: u32, rows: u32) {
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
    workgroupBarrier();  // the weights of the tile before were read
    if (scores) {
        put_row(0u, lane);
        put_row(1u, lane);
        put_row(2u, lane);
        put_row(3u, lane);
        put_row(4u, lane);
        put_row(5u, lane);
        put_row(6u, lane);
        put_row(7u, lane);
        let scale = mat2x4<f32>(key_scales(p, head), key_scales(r, head));
        for (var row = 0u; row < rows; row++) {
            mask_row(row, lane, low_keys, high_keys, scale);
        }
    }
    workgroupBarrier();
    if (lane < ROWS) {
        let old = state[lane].x;
        var m = old;
        for (var i = 0u; i < SCORERS; i++) {
            m = max(m, partial[lane * SCORERS + i]);
        }
        // Exactly 1 where m stays, or a tile a row does not see would change it.
        state[lane] = vec2<f32>(m, select(exp2(old - m), 1.0, old == m));
    }
    workgroupBarrier();
    if (scores) {
        let scale = mat2x4<f32>(value_scales(p, head), value_scales(r, head));
        for (var row = 0u; row < rows; row++) {
            weigh_row(row, lane, scale);
        }
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
        weight[row % 4u * 128u + lane] = acc[row][0];
        weight[row % 4u * 128u + 64u + lane] = acc[row][1];
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

fn finish(lane: u32, rows: u32) {
    workgroupBarrier();
    share_row(0u, lane);
    share_row(1u, lane);
    share_row(2u, lane);
    share_row(3u, lane);
    workgroupBarrier();
    if (lane < ROWS) {
        var sum = 0.0;
        for (var i = 0u; i < SCORERS; i++) {
            sum += total[lane * SCORERS + i];
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
