// Pages of int8 in 64-bit words to read and to write, eight elements at a time.
@group(0) @binding(1) var<storage, read_write> pages: array<Chunk>;

fn joined(w: vec2<u32>) -> u64 {
    return u64(w.x) | (u64(w.y) << 32u);
}

fn put8(element: u32, x: mat2x4<f32>, scale: f32) {
    pages[element / 16u][element / 8u % 2u] = joined(vec2<u32>(levels(x[0], scale), levels(x[1], scale)));
}

// The other scale of the word is of a token that nobody writes now.
fn put_scale(word: u32, value: u32) {
    let old = pages[word / 4u][word / 2u % 2u];
    let low = vec2<u32>(value, u32(old >> 32u));
    let high = vec2<u32>(u32(old), value);
    pages[word / 4u][word / 2u % 2u] = joined(select(low, high, word % 2u == 1u));
}
