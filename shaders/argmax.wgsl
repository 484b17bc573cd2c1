// Per row of logits the index of the largest, the lowest among equals, from the keys of block_max.wgsl.
//
//   logits  [rows][N] f32     blocks  [rows][BLOCKS] (key, -)     ids  [rows] u32
//
// One workgroup = one row: 64 lanes find the first block with the largest key, then its first such element.
#import key

override N: u32;
override BLOCKS: u32 = (N + 63) / 64;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> blocks: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;

const LANES = 64u;
var<workgroup> best: array<vec2<u32>, LANES>;  // (key, index)

fn better(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// The index of the workgroup's best entry.
fn winner(lane: u32, mine: vec2<u32>) -> u32 {
  workgroupBarrier();
  best[lane] = mine;
  for (var half = LANES / 2; half > 0; half = half / 2) {
    workgroupBarrier();
    if (lane < half && better(best[lane + half], best[lane])) {
      best[lane] = best[lane + half];
    }
  }
  workgroupBarrier();
  return best[0].y;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  var mine = vec2(0u, 0xFFFFFFFFu);
  for (var b = lane; b < BLOCKS; b += LANES) {
    let other = vec2(blocks[group.x * BLOCKS + b].x, b);
    if (better(other, mine)) {
      mine = other;
    }
  }
  let index = winner(lane, mine) * 64 + lane;
  var key = 0u;
  if (index < N) {
    key = key_of(logits[group.x * N + index]);
  }
  let id = winner(lane, vec2(key, index));
  if (lane == 0) {
    ids[group.x] = id;
  }
}
