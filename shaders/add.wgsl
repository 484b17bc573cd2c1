// y = y + x, elementwise.
//
//   step  x: rows n          x, y  [n][COLS] f32, as vec4
//
// One workgroup = 64 vec4 of one row.
override COLS: u32;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < COLS / 4 && id.y < step.x) {
    let i = id.y * (COLS / 4) + id.x;
    y[i] += x[i];
  }
}
