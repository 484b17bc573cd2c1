// A workgroup's walk over tiles: `begin`, `attend_tile` for each, `finish`; see quad_core.
// What every row needs once is a loop in which rows move up: a copy for each row would compile for seconds.

fn next_query(row: u32) {
    if (row + 1u < ROWS) {
        query[row] = query[row + 1u];
        held[row * 8u + 0u] = held[row * 8u + 8u + 0u];
        held[row * 8u + 1u] = held[row * 8u + 8u + 1u];
        held[row * 8u + 2u] = held[row * 8u + 8u + 2u];
        held[row * 8u + 3u] = held[row * 8u + 8u + 3u];
        held[row * 8u + 4u] = held[row * 8u + 8u + 4u];
        held[row * 8u + 5u] = held[row * 8u + 8u + 5u];
        held[row * 8u + 6u] = held[row * 8u + 8u + 6u];
        held[row * 8u + 7u] = held[row * 8u + 8u + 7u];
    }
}

fn next_row(row: u32) {
    if (row + 1u < ROWS) {
        record[row] = record[row + 1u];
        m[row] = m[row + 1u];
        total[row] = total[row + 1u];
        acc[row * 8u + 0u] = acc[row * 8u + 8u + 0u];
        acc[row * 8u + 1u] = acc[row * 8u + 8u + 1u];
        acc[row * 8u + 2u] = acc[row * 8u + 8u + 2u];
        acc[row * 8u + 3u] = acc[row * 8u + 8u + 3u];
        acc[row * 8u + 4u] = acc[row * 8u + 8u + 4u];
        acc[row * 8u + 5u] = acc[row * 8u + 8u + 5u];
        acc[row * 8u + 6u] = acc[row * 8u + 8u + 6u];
        acc[row * 8u + 7u] = acc[row * 8u + 8u + 7u];
    }
}

fn hold(block: u32, at: u32) {
    if (32u * block < HEAD_DIM) {
        held[(ROWS - 1u) * 8u + block] = mat2x4<f32>(q[at + 8u * block], q[at + 8u * block + 1u]);
    }
}

fn begin(lane: u32) {
    for (var row = 0u; row < ROWS; row++) {
        let at = query[0] + 2u * (lane % 4u);
        next_query(0u);
        next_query(1u);
        next_query(2u);
        next_query(3u);
        next_query(4u);
        next_query(5u);
        next_query(6u);
        next_query(7u);
        next_query(8u);
        next_query(9u);
        next_query(10u);
        next_query(11u);
        hold(0u, at);
        hold(1u, at);
        hold(2u, at);
        hold(3u, at);
        hold(4u, at);
        hold(5u, at);
        hold(6u, at);
        hold(7u, at);
    }
    m = array<f32, 12>(
        LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST,
        LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST,
    );
}

fn attend_tile(keys: Keys, head: u32, base: i32, low: i32, high: i32, lane: u32) {
    let width = 4 * i32(STREAMS);
    let end = min(high - base, TILE);
    for (var at = max(low - base, 0) / width * width; at < end; at += width) {
        attend_slots(keys, head, base + at + i32(lane / 4u * 4u), lane);
    }
}

fn share(block: u32, at: u32) {
    if (32u * block < V_DIM) {
        part[at + 8u * block] = acc[block][0];
        part[at + 8u * block + 1u] = acc[block][1];
    }
}

fn finish_row(lane: u32) {
    let quads = V_DIM / 4u;
    let stream = lane / 4u;
    let pair = total[0] + quadSwapX(total[0]);
    state[stream] = vec2<f32>(m[0], pair + quadSwapY(pair));
    let at = stream * quads + 2u * (lane % 4u);
    share(0u, at);
    share(1u, at);
    share(2u, at);
    share(3u, at);
    share(4u, at);
    share(5u, at);
    share(6u, at);
    share(7u, at);
    workgroupBarrier();
    var all = vec2<f32>(LOWEST, 0.0);
    for (var s = 0u; s < STREAMS; s++) {
        all.x = max(all.x, state[s].x);
    }
    for (var s = 0u; s < STREAMS; s++) {
        all.y = fma(state[s].y, exp2_0(state[s].x - all.x), all.y);
    }
    for (var quad = lane; quad < quads; quad += LANES) {
        var x = vec4<f32>();
        for (var s = 0u; s < STREAMS; s++) {
            x = fma(vec4<f32>(exp2_0(state[s].x - all.x)), part[s * quads + quad], x);
        }
        store4(record[0], quad, x, all);
    }
    workgroupBarrier();
}

fn finish(lane: u32) {
    for (var row = 0u; row < ROWS; row++) {
        finish_row(lane);
        next_row(0u);
        next_row(1u);
        next_row(2u);
        next_row(3u);
        next_row(4u);
        next_row(5u);
        next_row(6u);
        next_row(7u);
        next_row(8u);
        next_row(9u);
        next_row(10u);
        next_row(11u);
    }
}
