// out[record][V_DIM] f32, normalised, and lse[record] f32: m + log2(sum), -5e4 where no key was seen.
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

fn store_row(row: u32, lane: u32) {
    if (row < ROWS && record[row] != NO_RECORD && lane < CHUNKS) {
        let sum = fade[row];
        let at = record[row] * (V_DIM / 4u) + 2u * lane;
        out[at] = select(vec4<f32>(), acc[row][0] / sum, sum > 0.0);
        if (8u * lane + 4u < V_DIM) {
            out[at + 1u] = select(vec4<f32>(), acc[row][1] / sum, sum > 0.0);
        }
        if (lane == 0u) {
            lse[record[row]] = select(-5e4, best[row] + log2(sum), sum > 0.0);
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
