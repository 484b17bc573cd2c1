// Pages of int8 in u32 words, a scale (f32) per token and head; every stride is a multiple of 8.
alias Chunk = vec2<u32>;
#import pages

// unpack4xI8, which not every browser has.
fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 8u);
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = pages[element / 8u];
    return mat2x4<f32>(signed_bytes(w.x), signed_bytes(w.y));
}

fn load4(element: u32) -> vec4<f32> {
    let w = pages[element / 8u];
    return signed_bytes(select(w.x, w.y, element % 8u >= 4u));
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    let w = pages[word / 2u];
    return bitcast<f32>(select(w.x, w.y, word % 2u == 1u));
}
