// Tokens of pages as f32: rows[token][KV_HEADS][DIM], keys or VALUES; 0 where positions[token] is -1.
//   positions[n]: page * PAGE_TOKENS + slot.
// One lane = one vec4; grid: (ceil(KV_HEADS * DIM / 4 / LANES), n).
#import page
#import page_strides
@group(0) @binding(0) var<storage, read> positions: array<i32>;
@group(0) @binding(2) var<storage, read_write> rows: array<vec4<f32>>;
override KV_HEADS: u32;
override DIM: u32;
override VALUES: bool = false;
override LANES: u32 = 32;

fn key_row(at: vec2<u32>, head: u32, d: u32) -> vec4<f32> {
    let x = load4(key_element(at, head) + d);
    if (KS_PAGE > 0u) {
        return x * load_scale(key_scale_word(at, head));
    }
    return x;
}

fn value_row(at: vec2<u32>, head: u32, d: u32) -> vec4<f32> {
    let x = load4(value_element(at, head) + d);
    if (VS_PAGE > 0u) {
        return x * load_scale(value_scale_word(at, head));
    }
    return x;
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let head = 4u * id.x / DIM;
    let d = 4u * id.x % DIM;
    if (head >= KV_HEADS) {
        return;
    }
    let position = positions[id.y];
    let at = at_position(u32(max(position, 0)));
    let inside = position >= 0 && at.x < page_count();
    var x = vec4<f32>();
    if (inside && VALUES) {
        x = value_row(at, head, d);
    } else if (inside) {
        x = key_row(at, head, d);
    }
    rows[id.y * (KV_HEADS * DIM / 4u) + id.x] = x;
}
