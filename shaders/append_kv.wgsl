// Rotate queries in place (RoPE), and write rotated keys, and values, of new tokens to pages.
//   rows[n][(Q_HEADS + KEY_HEADS) * HEAD_DIM + VALUE_HEADS * V_DIM] f32; n: the import at `tokens`
//   positions[n]: page * PAGE_TOKENS + slot, or -1 to write nothing.
// One lane = one head of one token; grid: workgroups for n * (Q_HEADS + KEY_HEADS + VALUE_HEADS) lanes.
#import page_strides
@group(0) @binding(0) var<storage, read_write> rows: array<f32>;
@group(0) @binding(1) var<storage, read_write> pages: array<u32>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
#import tokens
#import encode
#import store
#import rope

override Q_HEADS: u32 = 0;
override KEY_HEADS: u32 = 0;
override VALUE_HEADS: u32 = 0;
override HEAD_DIM: u32;
override V_DIM: u32;
override LANES: u32 = 32;

fn value4(at: u32) -> vec4<f32> {
    return vec4<f32>(rows[at], rows[at + 1u], rows[at + 2u], rows[at + 3u]);
}

fn largest(x: vec4<f32>) -> f32 {
    let a = abs(x);
    return max(max(a.x, a.y), max(a.z, a.w));
}

fn write_key(row: u32, token: u32, at: vec2<u32>, head: u32) {
    var absmax = 0.0;
    if (SCALED) {
        for (var d = 0u; d < HEAD_DIM; d += 4u) {
            absmax = max(absmax, largest(key4(row, token, d)));
        }
        pages[key_scale_word(at, head)] = scale_word(absmax);
    }
    let scale = row_scale(absmax);
    for (var d = 0u; d < HEAD_DIM; d += 4u) {
        store4(key_element(at, head) + d, key4(row, token, d), scale);
    }
}

fn write_value(row: u32, at: vec2<u32>, head: u32) {
    var absmax = 0.0;
    if (SCALED) {
        for (var d = 0u; d < V_DIM; d += 4u) {
            absmax = max(absmax, largest(value4(row + d)));
        }
        pages[value_scale_word(at, head)] = scale_word(absmax);
    }
    let scale = row_scale(absmax);
    for (var d = 0u; d < V_DIM; d += 4u) {
        store4(value_element(at, head) + d, value4(row + d), scale);
    }
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let heads = Q_HEADS + KEY_HEADS + VALUE_HEADS;
    let token = id.x / heads;
    let head = id.x % heads;
    if (token >= tokens()) {
        return;
    }
    let row = token * ((Q_HEADS + KEY_HEADS) * HEAD_DIM + VALUE_HEADS * V_DIM);
    let position = positions[token];
    if (head < Q_HEADS) {
        turn_query(row + head * HEAD_DIM, token);
        return;
    }
    let at = at_position(u32(position));
    if (position < 0 || at.x >= arrayLength(&pages) / (K_PAGE / PER_WORD)) {
        return;
    }
    if (head < Q_HEADS + KEY_HEADS) {
        write_key(row + head * HEAD_DIM, token, at, head - Q_HEADS);
    } else {
        let value = head - Q_HEADS - KEY_HEADS;
        write_value(row + (Q_HEADS + KEY_HEADS) * HEAD_DIM + value * V_DIM, at, value);
    }
}
