// Each query and key head of fused rows over its root mean square, times a weight, in place; values stay.
//
//   step  x: rows n          rows  [n][STRIDE] f32: Q_HEADS queries, keys, values          weights  [2][K]: q, k
//
// One workgroup = one head of one row: x is the head, y the row.
override K: u32;
override STRIDE: u32;
override Q_HEADS: u32;
#import rms

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> rows: array<f32>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let head = group.y * STRIDE + group.x * K;
  var s = 0.0;
  for (var k = lane; k < K; k += LANES) {
    s = fma(rows[head + k], rows[head + k], s);
  }
  let scale = inverse_rms(lane, s);
  if (group.y >= step.x) {
    return;
  }
  let weight = select(K, 0u, group.x < Q_HEADS);
  for (var k = lane; k < K; k += LANES) {
    rows[head + k] = rows[head + k] * scale * weights[weight + k];
  }
}
