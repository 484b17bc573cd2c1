// y = activate(gate) * up, elementwise, with the import `activation`.
//
//   step  x: rows n          gate, up, y  [n][COLS] f32, as vec4
//
// One workgroup = 64 vec4 of one row.
#import activation

override COLS: u32;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < COLS / 4 && id.y < step.x) {
    let i = id.y * (COLS / 4) + id.x;
    let g = gate[i];
    y[i] = vec4(activate(g.x), activate(g.y), activate(g.z), activate(g.w)) * up[i];
  }
}
