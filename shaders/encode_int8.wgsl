// int8, four in a word: levels of absmax / 127 per (token, head), halves to even.
const PER_WORD: u32 = 4u;
const SCALED: bool = true;
const SMALLEST: f32 = 1.504632769052528e-36;  // 2^-119: from here on, both quotients are normal numbers

// a / b of positive normal numbers, rounded to nearest: WGSL lets a device miss that by 2.5 units in the last
// place, and pages must have the same bits on all.  Long division of the mantissas; no tie is possible.
fn quotient(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    let divisor = (y & 0x7fffffu) | 0x800000u;
    var rest = (x & 0x7fffffu) | 0x800000u;
    let below = select(0u, 1u, rest < divisor);
    rest = (rest << below) - divisor;
    var digits = 1u;
    for (var i = 0; i < 3; i++) {
        rest <<= 8u;
        digits = (digits << 8u) | (rest / divisor);
        rest %= divisor;
    }
    let exponent = (x >> 23u) + 126u - (y >> 23u) - below;
    return bitcast<f32>((exponent << 23u) + ((digits + 1u) >> 1u));
}

fn row_scale(absmax: f32) -> f32 {
    if (absmax < SMALLEST) {
        return 0.0;
    }
    return quotient(127.0, absmax);
}

fn scale_word(absmax: f32) -> u32 {
    if (absmax < SMALLEST) {
        return 0u;
    }
    return bitcast<u32>(quotient(absmax, 127.0));
}

fn levels(x: vec4<f32>, scale: f32) -> u32 {
    let level = clamp(round(x * scale), vec4<f32>(-127.0), vec4<f32>(127.0));
    let byte = bitcast<vec4<u32>>(vec4<i32>(level)) & vec4<u32>(255u);
    return byte.x | (byte.y << 8u) | (byte.z << 16u) | (byte.w << 24u);
}
