// Pages of f16 in 64-bit words, of which a CPU loads as many at once as of others; strides: multiples of 16.
alias Chunk = vec4<u64>;
#import pages

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 16u);
}

fn floats4(x: u64) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(u32(x)), unpack2x16float(u32(x >> 32u)));
}

// `b` is a + 8.
fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    let w = pages[a / 16u];
    return array<mat2x4<f32>, 2>(
        mat2x4<f32>(floats4(w.x), floats4(w.y)),
        mat2x4<f32>(floats4(w.z), floats4(w.w)),
    );
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = pages[element / 16u];
    let half = select(w.xy, w.zw, element % 16u >= 8u);
    return mat2x4<f32>(floats4(half.x), floats4(half.y));
}

fn load4(element: u32) -> vec4<f32> {
    let w = pages[element / 16u];
    let half = select(w.xy, w.zw, element % 16u >= 8u);
    return floats4(select(half.x, half.y, element % 8u >= 4u));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
