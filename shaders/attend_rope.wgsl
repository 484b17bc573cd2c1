// RoPE of the first ROTARY_DIM dims of a head, with the same operations as append_rope.
//   rope_table[sequences][ROTARY_DIM / 2] pairs (cos, sin), two pairs in a vec4.
// Pairs: (d, d + ROTARY_DIM / 2), ROTARY_DIM a multiple of 8; INTERLEAVED: (2i, 2i + 1), a multiple of 4.
@group(0) @binding(6) var<storage, read> rope_table: array<vec4<f32>>;
override ROTARY_DIM: u32;
override INTERLEAVED: bool;

// The two vec4 of a head that unit `unit` of HEAD_DIM / 8 is.
fn quads_of(unit: u32) -> vec2<u32> {
    if (INTERLEAVED || unit >= ROTARY_DIM / 8u) {
        return vec2<u32>(2u * unit, 2u * unit + 1u);
    }
    return vec2<u32>(unit, unit + ROTARY_DIM / 8u);
}

fn turned_pairs(x: vec4<f32>, quad: u32, angles: u32) -> vec4<f32> {
    if (quad >= ROTARY_DIM / 4u) {
        return x;
    }
    let t = rope_table[angles + quad];
    return fma(x, t.xxzz, vec4<f32>(-x.y, x.x, -x.w, x.z) * t.yyww);
}

// A unit of the head at vec4 `at`, rotated.
fn turned8(at: u32, token: u32, unit: u32) -> mat2x4<f32> {
    let quads = quads_of(unit);
    let x = rows[at + quads.x];
    let y = rows[at + quads.y];
    let angles = token * (ROTARY_DIM / 4u);
    if (INTERLEAVED) {
        return mat2x4<f32>(turned_pairs(x, quads.x, angles), turned_pairs(y, quads.y, angles));
    }
    if (unit >= ROTARY_DIM / 8u) {
        return mat2x4<f32>(x, y);
    }
    let s = rope_table[angles + 2u * unit];
    let t = rope_table[angles + 2u * unit + 1u];
    let cosine = vec4<f32>(s.xz, t.xz);
    let sine = vec4<f32>(s.yw, t.yw);
    return mat2x4<f32>(fma(x, cosine, -y * sine), fma(y, cosine, x * sine));
}
