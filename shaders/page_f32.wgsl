// Pages of f32, read four elements at a time.
alias Chunk = vec4<f32>;
#import pages

fn page_count() -> u32 {
    return arrayLength(&pages) / (K_PAGE / 4u);
}

fn load4(element: u32) -> vec4<f32> {
    return pages[element / 4u];
}

fn load8(element: u32) -> mat2x4<f32> {
    let at = element / 4u;
    return mat2x4<f32>(pages[at], pages[at + 1u]);
}

fn load16(a: u32, b: u32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(load8(a), load8(b));
}

fn load_scale(word: u32) -> f32 {
    return 1.0;
}
