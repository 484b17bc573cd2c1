// No rotation.
fn quads_of(unit: u32) -> vec2<u32> {
    return vec2<u32>(2u * unit, 2u * unit + 1u);
}

fn turned8(at: u32, token: u32, unit: u32) -> mat2x4<f32> {
    return mat2x4<f32>(rows[at + 2u * unit], rows[at + 2u * unit + 1u]);
}
