// Fused rows of separate ones: rows[token] = q[token] | k[token] | v[token]; widths in vec4.
// One lane = one vec4 of one token; grid: (ceil(row width / LANES), n).
@group(0) @binding(0) var<storage, read_write> rows: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
override Q_WIDTH: u32;
override K_WIDTH: u32;
override V_WIDTH: u32;
override LANES: u32 = 32;

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let width = Q_WIDTH + K_WIDTH + V_WIDTH;
    let at = id.y * width + id.x;
    if (id.x < Q_WIDTH) {
        rows[at] = q[id.y * Q_WIDTH + id.x];
    } else if (id.x < Q_WIDTH + K_WIDTH) {
        rows[at] = k[id.y * K_WIDTH + id.x - Q_WIDTH];
    } else if (id.x < width) {
        rows[at] = v[id.y * V_WIDTH + id.x - Q_WIDTH - K_WIDTH];
    }
}
