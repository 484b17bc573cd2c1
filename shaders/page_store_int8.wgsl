// `store4` to pages of int8 in u32 words: levels of absmax / 127 per (token, head), halves to even.
const PER_WORD: u32 = 4u;
const SCALED: bool = true;

fn row_scale(absmax: f32) -> f32 {
    return select(0.0, 127.0 / absmax, absmax > 0.0);
}

fn store_scale(word: u32, absmax: f32) {
    pages[word] = bitcast<u32>(absmax / 127.0);
}

fn store4(element: u32, x: vec4<f32>, scale: f32) {
    let level = clamp(round(x * scale), vec4<f32>(-127.0), vec4<f32>(127.0));
    let byte = bitcast<vec4<u32>>(vec4<i32>(level)) & vec4<u32>(255u);
    pages[element / 4u] = byte.x | (byte.y << 8u) | (byte.z << 16u) | (byte.w << 24u);
}
