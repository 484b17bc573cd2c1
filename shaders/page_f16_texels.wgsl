// Pages of f16 in texels of eight elements; strides: multiples of 8.
#import pages

fn page_count() -> u32 {
    return pages_of(K_PAGE / 8u);
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = texel(element / 8u);
    return mat2x4<f32>(
        vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)),
        vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)),
    );
}

fn load4(element: u32) -> vec4<f32> {
    let x = load8(element);
    return select(x[0], x[1], element % 8u >= 4u);
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
