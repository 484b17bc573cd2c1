@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

fn store_lse(record: u32, lane: u32, m: f32, sum: f32) {
    if (lane == 0u) {
        lse[record] = select(-5e4, m + log2(sum), sum > 0.0);
    }
}
