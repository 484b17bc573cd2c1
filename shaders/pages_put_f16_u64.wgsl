// Pages of f16 in 64-bit words to read and to write, eight elements at a time.
@group(0) @binding(1) var<storage, read_write> pages: array<Chunk>;

fn joined(w: vec2<u32>) -> u64 {
    return u64(w.x) | (u64(w.y) << 32u);
}

fn put8(element: u32, x: mat2x4<f32>, scale: f32) {
    let half = element / 8u % 2u * 2u;
    pages[element / 16u][half] = joined(halves(x[0]));
    pages[element / 16u][half + 1u] = joined(halves(x[1]));
}

fn put_scale(word: u32, value: u32) {}
