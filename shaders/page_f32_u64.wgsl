// Pages of f32 in 64-bit words, of which a CPU loads as many at once as of others; strides: multiples of 16.
alias Chunk = vec4<u64>;
#import pages

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 8u);
}

fn floats2(x: u64) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(u32(x)), bitcast<f32>(u32(x >> 32u)));
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = pages[element / 8u];
    return mat2x4<f32>(vec4<f32>(floats2(w.x), floats2(w.y)), vec4<f32>(floats2(w.z), floats2(w.w)));
}

// `b` is a + 8.
fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load4(element: u32) -> vec4<f32> {
    let x = load8(element);
    return select(x[0], x[1], element % 8u >= 4u);
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
