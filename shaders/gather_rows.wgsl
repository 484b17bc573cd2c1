// y[t] = x[indices[t]], and the same X_HALF and Y_HALF rows further in both: the halves of a residual stream.
//
//   step  x: rows n of y     indices  [n] u32     x, y  [..][COLS] f32, as vec4
//
// One workgroup = 64 vec4 of one row; z is the half.
override COLS: u32;
override X_HALF: u32;  // rows between the halves of x, and of y
override Y_HALF: u32;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < COLS / 4 && id.y < step.x) {
    let from_row = min(indices[id.y], X_HALF - 1) + id.z * X_HALF;
    y[(id.y + id.z * Y_HALF) * (COLS / 4) + id.x] = x[from_row * (COLS / 4) + id.x];
  }
}
