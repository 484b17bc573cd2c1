// Pages of f16 in u32 pairs, read eight elements at a time; every stride is a multiple of 8.
alias Chunk = vec4<u32>;
#import pages

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 8u);
}

fn load8(element: u32) -> mat2x4<f32> {
    let w = pages[element / 8u];
    return mat2x4<f32>(
        vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y)),
        vec4<f32>(unpack2x16float(w.z), unpack2x16float(w.w)),
    );
}

fn load4(element: u32) -> vec4<f32> {
    let w = pages[element / 8u];
    let half = select(w.xy, w.zw, element % 8u >= 4u);
    return vec4<f32>(unpack2x16float(half.x), unpack2x16float(half.y));
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
