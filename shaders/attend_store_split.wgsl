// For merge_splits: scratch[record][1 + V_DIM / 4] vec4, (m, sum of p, 0, 0), then the sum of p v.
@group(0) @binding(5) var<storage, read_write> scratch: array<vec4<f32>>;

fn store4(record: u32, quad: u32, x: vec4<f32>, state: vec2<f32>) {
    if (record == NO_RECORD) {
        return;
    }
    let at = record * (1u + V_DIM / 4u);
    scratch[at + 1u + quad] = x;
    if (quad == 0u) {
        scratch[at] = vec4<f32>(state, 0.0, 0.0);
    }
}
