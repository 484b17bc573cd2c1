// Pages of int8 in 64-bit words, a scale (f32) per token and head; strides: multiples of 16.
alias Chunk = vec2<u64>;
#import pages

fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 16u);
}

fn bytes8(x: u64) -> mat2x4<f32> {
    return mat2x4<f32>(signed_bytes(u32(x)), signed_bytes(u32(x >> 32u)));
}

// `b` is a + 8.
fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    let w = pages[a / 16u];
    return array<mat2x4<f32>, 2>(bytes8(w.x), bytes8(w.y));
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = pages[element / 16u];
    return bytes8(select(w.x, w.y, element % 16u >= 8u));
}

fn load4(element: u32) -> vec4<f32> {
    let x = load8(element);
    return select(x[0], x[1], element % 8u >= 4u);
}

fn load_scale(word: u32) -> f32 {
    let w = pages[word / 4u];
    let half = select(w.x, w.y, word % 4u >= 2u);
    return bitcast<f32>(select(u32(half), u32(half >> 32u), word % 2u == 1u));
}
