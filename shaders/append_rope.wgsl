// RoPE of the first ROTARY_DIM dims: pair i is dim i * PAIR_STEP and the one PAIR_APART after it.
//   rope_table[n][ROTARY_DIM / 2] pairs (cos, sin).  ROTATE_KEYS false: keys stay as they are.
@group(0) @binding(4) var<storage, read> rope_table: array<vec2<f32>>;
override ROTARY_DIM: u32;
override PAIR_STEP: u32;
override PAIR_APART: u32;
override ROTATE_KEYS: bool = true;

// Dim d of the head at `at`, rotated.
fn turned(at: u32, token: u32, d: u32) -> f32 {
    let x = rows[at + d];
    if (d >= ROTARY_DIM) {
        return x;
    }
    let upper = d / PAIR_APART % 2u == 1u;
    let pair = select(d, d - PAIR_APART, upper) / PAIR_STEP;
    let other = rows[at + select(d + PAIR_APART, d - PAIR_APART, upper)];
    let t = rope_table[token * (ROTARY_DIM / 2u) + pair];
    return fma(x, t.x, select(-other, other, upper) * t.y);
}

fn turn_query(at: u32, token: u32) {
    for (var pair = 0u; pair < ROTARY_DIM / 2u; pair++) {
        let a = at + pair * PAIR_STEP;
        let b = a + PAIR_APART;
        let t = rope_table[token * (ROTARY_DIM / 2u) + pair];
        let x = rows[a];
        let y = rows[b];
        rows[a] = fma(x, t.x, -y * t.y);
        rows[b] = fma(y, t.x, x * t.y);
    }
}

fn key4(at: u32, token: u32, d: u32) -> vec4<f32> {
    if (!ROTATE_KEYS) {
        return value4(at + d);
    }
    let second = vec2<f32>(turned(at, token, d + 2u), turned(at, token, d + 3u));
    return vec4<f32>(turned(at, token, d), turned(at, token, d + 1u), second);
}
