// Pages of f32 in texels of four elements; strides: multiples of 4.
#import pages

fn page_count() -> u32 {
    return pages_of(K_PAGE / 4u);
}

fn load4(element: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(texel(element / 4u));
}

fn load8(element: u32) -> mat2x4<f32> {
    return mat2x4<f32>(load4(element), load4(element + 4u));
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
