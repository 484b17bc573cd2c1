// f16, two in a word.  pack2x16float may round either way, so the rounding is done here: to nearest, halves to
// even; what is too large becomes the largest finite f16.
const PER_WORD: u32 = 2u;
const SCALED: bool = false;

fn row_scale(absmax: f32) -> f32 {
    return 1.0;
}

fn scale_word(absmax: f32) -> u32 {
    return 0u;
}

fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let a = bits & 0x7fffffffu;
    let tiny = bitcast<u32>(bitcast<f32>(a) + 0.5) - 0x3f000000u;  // subnormal: f32 rounds x + 0.5
    let normal = (a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u;
    let finite = min(select(normal, tiny, a < 0x38800000u), 0x7bffu);
    return sign | select(select(finite, 0x7bffu, a > 0x477fe000u), 0x7e00u, a > 0x7f800000u);
}

fn halves(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(half_bits(x.x) | (half_bits(x.y) << 16u), half_bits(x.z) | (half_bits(x.w) << 16u));
}
