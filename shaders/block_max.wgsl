// Per row of logits and per block of 64: the largest key, and the sum of exp(logit - that logit).
// A key orders like its float: NaN lowest, then -inf ... +inf; both zeros are equal.
//
//   logits  [rows][N] f32          blocks  [rows][ceil(N / 64)] (key, bits of the f32 sum)
//
// One lane = one block; one workgroup = 64 blocks of one row.
#import key

override N: u32;
override BLOCKS: u32 = (N + 63) / 64;
override SUM: bool = false;  // else the sum is 0

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> blocks: array<vec2<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= BLOCKS) {
    return;
  }
  let first = id.y * N + id.x * 64;
  let count = min(N - id.x * 64, 64u);
  var top = 0u;
  for (var i = 0u; i < count; i++) {
    top = max(top, key_of(logits[first + i]));
  }
  var sum = 0.0;
  if (SUM) {
    let largest = value_of(top);
    for (var i = 0u; i < count; i++) {
      let key = key_of(logits[first + i]);
      sum += select(0.0, exp(value_of(key) - largest), key > NEGATIVE_INFINITY);
    }
  }
  blocks[id.y * BLOCKS + id.x] = vec2(top, bitcast<u32>(sum));
}
