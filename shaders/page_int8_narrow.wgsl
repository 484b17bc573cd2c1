// Pages of int8 in u32 words, a scale (f32) per token and head, whose strides are multiples of 4 only.
alias Chunk = u32;
#import pages

// unpack4xI8, which not every browser has.
fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 4u);
}

fn load4(element: u32) -> vec4<f32> {
    return signed_bytes(pages[element / 4u]);
}

fn load8(element: u32) -> mat2x4<f32> {
    return mat2x4<f32>(load4(element), load4(element + 4u));
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    return bitcast<f32>(pages[word]);
}
