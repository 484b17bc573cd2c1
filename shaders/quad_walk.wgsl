// What comes before and after a workgroup's walk over tiles; see quad_core.  `rows`: ROWS.
// What every row needs once is a loop in which values move up: a copy for each row would compile for seconds.
// rows - ROWS is 0, which the compiler does not know; see rows_of.
#import sums

var<workgroup> state: array<vec2<f32>, 32>;  // [row][stream] m and the sum of p

fn next_query(row: u32) {
    if (row + 1u < ROWS) {
        first_key[row] = first_key[row + 1u];
        end_key[row] = end_key[row + 1u];
        mine[row] = mine[row + 1u];
        held[row * 8u + 0u] = held[row * 8u + 8u];
        held[row * 8u + 1u] = held[row * 8u + 9u];
        held[row * 8u + 2u] = held[row * 8u + 10u];
        held[row * 8u + 3u] = held[row * 8u + 11u];
        held[row * 8u + 4u] = held[row * 8u + 12u];
        held[row * 8u + 5u] = held[row * 8u + 13u];
        held[row * 8u + 6u] = held[row * 8u + 14u];
        held[row * 8u + 7u] = held[row * 8u + 15u];
    }
}

fn next_queries(row: u32) {
    next_query(row);
    next_query(row + 1u);
    next_query(row + 2u);
    next_query(row + 3u);
}

// The last row's units move up, and a new one comes last.
fn hold(unit: mat2x4<f32>) {
    let last = (ROWS - 1u) * 8u;
    held[last + 0u] = held[last + 1u];
    held[last + 1u] = held[last + 2u];
    held[last + 2u] = held[last + 3u];
    held[last + 3u] = held[last + 4u];
    held[last + 4u] = held[last + 5u];
    held[last + 5u] = held[last + 6u];
    held[last + 6u] = held[last + 7u];
    held[last + HEAD_DIM / (8u * SHARE) - 1u] = unit;
}

fn begin(lane: u32, rows: u32) {
    for (var row = 0u; row < rows; row++) {
        let next = row_of(row);
        next_queries(0u);
        next_queries(4u);
        next_queries(8u);
        next_queries(12u);
        first_key[ROWS - 1u] = next.first;
        end_key[ROWS - 1u] = next.end;
        mine[ROWS - 1u] = next.mine;
        for (var unit = 0u; unit < HEAD_DIM / (8u * SHARE) + (rows - ROWS); unit++) {
            let at = next.query + dim_of(unit, lane) / 4u;
            hold(mat2x4<f32>(query4(at), query4(at + 1u)));
        }
    }
    m = array<f32, 16>(
        LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST,
        LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, LOWEST,
    );
}

// Add up the streams' parts of a row, and store it.
fn store_merged(row: u32, lane: u32) {
    let quads = V_DIM / 4u;
    let record = row_of(row).record;
    let first = row * STREAMS;
    var all = vec2<f32>(LOWEST, 0.0);
    for (var s = first; s < first + STREAMS; s++) {
        all.x = max(all.x, state[s].x);
    }
    for (var s = first; s < first + STREAMS; s++) {
        all.y = fma(state[s].y, power_of_2(state[s].x - all.x), all.y);
    }
    for (var quad = lane; quad < quads; quad += LANES) {
        var x = vec4<f32>();
        for (var s = first; s < first + STREAMS; s++) {
            x = fma(vec4<f32>(power_of_2(state[s].x - all.x)), part[s * quads + quad], x);
        }
        store4(record, quad, x, all);
    }
}

// The barrier comes when no sums are left in registers: llvmpipe would keep all that cross it in memory.
fn finish(lane: u32, rows: u32) {
    for (var half = 0u; half < V_DIM / (4u * SHARE) + (rows - ROWS); half++) {
        let quad = dim_of(half / 2u, lane) / 4u + half % 2u;
        for (var row = 0u; row < rows; row++) {
            let x = sums_of(row);
            let own = vec2<f32>(x.state.x, sum_of(x.state.y));
            if (STREAMS == 1u) {
                store4(row_of(row).record, quad, x.half, own);
            } else {
                let stream = row * STREAMS + lane / SHARE % STREAMS;
                part[stream * (V_DIM / 4u) + quad] = x.half;
                state[stream] = own;
            }
        }
        next_halves(0u);
        next_halves(4u);
        next_halves(8u);
        next_halves(12u);
    }
    if (STREAMS > 1u) {
        workgroupBarrier();
        for (var row = 0u; row < rows; row++) {
            store_merged(row, lane);
        }
    }
}
