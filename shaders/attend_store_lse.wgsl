// out[record][V_DIM] f32, normalised, and lse[record] f32: m + log2(sum), -5e4 where no key was seen.
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

fn store4(record: u32, quad: u32, x: vec4<f32>, state: vec2<f32>) {
    if (record == NO_RECORD) {
        return;
    }
    out[record * (V_DIM / 4u) + quad] = select(vec4<f32>(), x / state.y, state.y > 0.0);
    if (quad == 0u) {
        lse[record] = select(-5e4, state.x + log2(state.y), state.y > 0.0);
    }
}
