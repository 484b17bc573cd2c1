// Pages of f32 to read and to write, eight elements at a time.
@group(0) @binding(1) var<storage, read_write> pages: array<Chunk>;

fn put8(element: u32, x: mat2x4<f32>, scale: f32) {
    pages[element / 4u] = x[0];
    pages[element / 4u + 1u] = x[1];
}

fn put_scale(word: u32, value: u32) {}
