// Pages of int8 in texels of 16 elements, a scale (f32) per token and head; strides: multiples of 16.
#import pages

fn page_count() -> u32 {
    return pages_of(K_PAGE / 16u);
}

fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<i32>(bitcast<i32>(word)) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u));
}

fn bytes8(w: vec2<u32>) -> mat2x4<f32> {
    return mat2x4<f32>(signed_bytes(w.x), signed_bytes(w.y));
}

// `b` is a + 8.
fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    let w = texel(a / 16u);
    return array<mat2x4<f32>, 2>(bytes8(w.xy), bytes8(w.zw));
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = texel(element / 16u);
    return bytes8(select(w.xy, w.zw, element % 16u >= 8u));
}

fn load4(element: u32) -> vec4<f32> {
    let x = load8(element);
    return select(x[0], x[1], element % 8u >= 4u);
}

fn load_scale(word: u32) -> f32 {
    let w = texel(word / 4u);
    let half = select(w.xy, w.zw, word % 4u >= 2u);
    return bitcast<f32>(select(half.x, half.y, word % 2u == 1u));
}
