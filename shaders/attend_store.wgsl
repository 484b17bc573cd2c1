// out[record][V_DIM] f32, normalised.
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

fn store4(record: u32, quad: u32, x: vec4<f32>, state: vec2<f32>) {
    if (record != NO_RECORD) {
        out[record * (V_DIM / 4u) + quad] = select(vec4<f32>(), x / state.y, state.y > 0.0);
    }
}
