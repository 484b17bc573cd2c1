// y[t] = x[t] / sqrt(mean(x[t]^2) + EPS) * weight.
//
//   step  x: rows n          x, y  [n][K] f32          weight  [K]
//
// One workgroup = one row.
override K: u32;
#import rms

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x * K;
  var s = 0.0;
  for (var k = lane; k < K; k += LANES) {
    s = fma(x[row + k], x[row + k], s);
  }
  let scale = inverse_rms(lane, s);
  if (group.x >= step.x) {
    return;
  }
  for (var k = lane; k < K; k += LANES) {
    y[row + k] = x[row + k] * scale * weight[k];
  }
}
