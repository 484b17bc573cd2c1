// Partial results for merge_splits: scratch[record][1 + V_DIM / 4] vec4, (m, sum of p, 0, 0) and the sum of p v.
@group(0) @binding(5) var<storage, read_write> scratch: array<vec4<f32>>;

fn store_row(row: u32, lane: u32) {
    if (row < ROWS && record[row] != NO_RECORD && lane < CHUNKS) {
        let at = record[row] * (1u + V_DIM / 4u);
        if (lane == 0u) {
            scratch[at] = vec4<f32>(best[row], fade[row], 0.0, 0.0);
        }
        scratch[at + 1u + 2u * lane] = acc[row][0];
        if (8u * lane + 4u < V_DIM) {
            scratch[at + 2u + 2u * lane] = acc[row][1];
        }
    }
}

fn store_rows(lane: u32) {
    store_row(0u, lane);
    store_row(1u, lane);
    store_row(2u, lane);
    store_row(3u, lane);
    store_row(4u, lane);
    store_row(5u, lane);
    store_row(6u, lane);
    store_row(7u, lane);
}
