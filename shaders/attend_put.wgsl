// A token's key and value, lent as f32, to its page; see attend_append.
const PUTS = true;
#import encode

fn largest(x: vec4<f32>) -> f32 {
    let a = abs(x);
    return max(max(a.x, a.y), max(a.z, a.w));
}

// Eight dims per lane, key first.
fn put_token(at: vec2<u32>, head: u32, lane: u32) {
    for (var i = lane; i < (HEAD_DIM + V_DIM) / 8u; i += LANES) {
        let key = i < HEAD_DIM / 8u;
        let first = select(HEAD_DIM / 4u, 0u, key);
        var absmax = 0.0;
        if (SCALED) {
            for (var j = first; j < select((HEAD_DIM + V_DIM) / 4u, HEAD_DIM / 4u, key); j++) {
                absmax = max(absmax, largest(lent(j)));
            }
            if (2u * i == first) {
                let word = select(value_scale_word(at, head), key_scale_word(at, head), key);
                put_scale(word, scale_word(absmax));
            }
        }
        let element = select(value_element(at, head), key_element(at, head), key);
        let x = mat2x4<f32>(lent(2u * i), lent(2u * i + 1u));
        put8(element + 8u * i - 4u * first, x, row_scale(absmax));
    }
}
