// Keys stored unrotated, turned when read by the angle of their logical index.
//   rope_full[max length][ROTARY_DIM / 2] pairs (cos, sin), two pairs in a vec4.
// Pairs: (d, d + ROTARY_DIM / 2), ROTARY_DIM a multiple of 8; INTERLEAVED: (2i, 2i + 1), a multiple of 4.
@group(0) @binding(7) var<storage, read> rope_full: array<vec4<f32>>;
override ROTARY_DIM: u32;
override INTERLEAVED: bool = false;

fn key4(element: u32, d: u32, key: u32) -> vec4<f32> {
    let x = load4(element + d);
    if (d >= ROTARY_DIM) {
        return x;
    }
    let row = key * (ROTARY_DIM / 4u);
    if (INTERLEAVED) {
        let t = rope_full[row + d / 4u];
        return vec4<f32>(turn(x.xy, t.xy), turn(x.zw, t.zw));
    }
    let half = ROTARY_DIM / 2u;
    let upper = d >= half;
    let at = row + (d % half) / 2u;
    let a = rope_full[at];
    let b = rope_full[at + 1u];
    let other = load4(element + select(d + half, d - half, upper));
    let sines = vec4<f32>(a.y, a.w, b.y, b.w);
    return fma(x, vec4<f32>(a.x, a.z, b.x, b.z), other * select(-sines, sines, upper));
}

fn turn(x: vec2<f32>, t: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(fma(x.x, t.x, -x.y * t.y), fma(x.y, t.x, x.x * t.y));
}

fn key8(element: u32, d: u32, key: i32) -> mat2x4<f32> {
    let at = u32(max(key, 0));
    return zero_tail(mat2x4<f32>(key4(element, d, at), key4(element, min(d + 4u, HEAD_DIM - 4u), at)), d);
}

fn key16(element: u32, d: u32, e: u32, key: i32) -> array<mat2x4<f32>, 2> {
    return array<mat2x4<f32>, 2>(key8(element, d, key), key8(element, e, key));
}
