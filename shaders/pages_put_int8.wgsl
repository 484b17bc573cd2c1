// Pages of int8 to read and to write, eight elements at a time.
@group(0) @binding(1) var<storage, read_write> pages: array<Chunk>;

fn put8(element: u32, x: mat2x4<f32>, scale: f32) {
    pages[element / 8u] = vec2<u32>(levels(x[0], scale), levels(x[1], scale));
}

fn put_scale(word: u32, value: u32) {
    pages[word / 2u][word % 2u] = value;
}
