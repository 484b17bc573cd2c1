// Pages of f32 in 64-bit words to read and to write, eight elements at a time.
@group(0) @binding(1) var<storage, read_write> pages: array<Chunk>;

fn joined(w: vec2<u32>) -> u64 {
    return u64(w.x) | (u64(w.y) << 32u);
}

fn put8(element: u32, x: mat2x4<f32>, scale: f32) {
    let low = bitcast<vec4<u32>>(x[0]);
    let high = bitcast<vec4<u32>>(x[1]);
    pages[element / 8u] = vec4<u64>(joined(low.xy), joined(low.zw), joined(high.xy), joined(high.zw));
}

fn put_scale(word: u32, value: u32) {}
