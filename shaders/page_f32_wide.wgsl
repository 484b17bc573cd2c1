// Pages of f32 in words of 16: one check of an index against the buffer each; strides: multiples of 16.
// Shifts: SwiftShader does these and divisions lane by lane.
alias Chunk = array<vec4<f32>, 4>;
#import pages

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 16u);
}

fn load4(element: u32) -> vec4<f32> {
    return pages[element >> 4u][(element >> 2u) & 3u];
}

fn load8(element: u32) -> mat2x4<f32> {
    return mat2x4<f32>(load4(element), load4(element + 4u));
}

// `b` is a + 8.
fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    let w = pages[a >> 4u];
    return array<mat2x4<f32>, 2>(mat2x4<f32>(w[0], w[1]), mat2x4<f32>(w[2], w[3]));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
