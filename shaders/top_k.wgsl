// Per row of logits the TOP largest (value descending, then index ascending), and logsumexp of the whole row,
// from the keys and sums of block_max.wgsl.
//
//   logits  [rows][N] f32     blocks  [rows][BLOCKS] (key, sum)
//   picked  [rows][1 + 2 TOP] u32: bits of logsumexp, TOP ids, bits of TOP logits
//
// One workgroup = one row.  The TOP-th largest block maximum bounds the TOP-th largest logit from below; what is
// not below it is listed and ranked.  Where many equal logits would overflow the list, the bound is raised: an
// element counts if (key, index) is not below (bound, bound_index).
#import key
#import logsumexp

override N: u32;
override TOP: u32;
override BLOCKS: u32 = (N + 63) / 64;

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> blocks: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> picked: array<u32>;

const LANES = 64u;
const LIST = 1024u;
var<workgroup> list: array<vec2<u32>, LIST>;  // (key, index)
var<workgroup> partial: array<f32, LANES>;
var<workgroup> counter: atomic<u32>;
var<workgroup> counted: u32;
var<private> row: u32;
var<private> lane: u32;

// The sum over the workgroup, the same for each of its lanes.
fn total(mine: u32) -> u32 {
  atomicAdd(&counter, mine);
  workgroupBarrier();
  if (lane == 0) {
    counted = atomicExchange(&counter, 0u);
  }
  return workgroupUniformLoad(&counted);
}

fn blocks_from(key: u32) -> u32 {
  var mine = 0u;
  for (var b = lane; b < BLOCKS; b += LANES) {
    mine += u32(blocks[row * BLOCKS + b].x >= key);
  }
  return total(mine);
}

fn key_at(index: u32) -> u32 {
  return key_of(logits[row * N + index]);
}

fn counts(key: u32, index: u32, bound: u32, bound_index: u32) -> bool {
  return key > bound || (key == bound && index <= bound_index);
}

fn elements_from(bound: u32, bound_index: u32) -> u32 {
  var mine = 0u;
  for (var b = lane; b < BLOCKS; b += LANES) {
    if (blocks[row * BLOCKS + b].x >= bound) {
      for (var i = b * 64; i < min(b * 64 + 64, N); i++) {
        mine += u32(counts(key_at(i), i, bound, bound_index));
      }
    }
  }
  return total(mine);
}

fn list_elements(bound: u32, bound_index: u32) {
  for (var b = lane; b < BLOCKS; b += LANES) {
    if (blocks[row * BLOCKS + b].x >= bound) {
      for (var i = b * 64; i < min(b * 64 + 64, N); i++) {
        let key = key_at(i);
        if (counts(key, i, bound, bound_index)) {
          list[atomicAdd(&counter, 1u)] = vec2(key, i);
        }
      }
    }
  }
}

// (bound, bound_index) such that at least TOP and at most LIST elements count.
fn find_bound() -> vec2<u32> {
  var bound = 0u;
  if (BLOCKS >= TOP) {
    for (var bit = 0x80000000u; bit > 0; bit = bit >> 1) {
      bound |= select(0u, bit, blocks_from(bound | bit) >= TOP);
    }
  }
  var last = N - 1;
  if (elements_from(bound, last) > LIST) {
    bound = 0u;
    for (var bit = 0x80000000u; bit > 0; bit = bit >> 1) {
      bound |= select(0u, bit, elements_from(bound | bit, last) >= TOP);
    }
    if (elements_from(bound, last) > LIST) {
      for (var bit = 0x80000000u; bit > 0; bit = bit >> 1) {
        last = select(last, last - bit, last >= bit && elements_from(bound, last - bit) >= TOP);
      }
    }
  }
  return vec2(bound, last);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  row = group.x;
  lane = index;
  if (lane == 0) {
    atomicStore(&counter, 0u);
  }
  workgroupBarrier();
  let lse = log_sum_exp();
  let bound = find_bound();
  list_elements(bound.x, bound.y);
  workgroupBarrier();
  let listed = atomicLoad(&counter);
  let out = row * (1 + 2 * TOP);
  picked[out] = bitcast<u32>(lse);
  for (var e = lane; e < listed; e += LANES) {
    let mine = list[e];
    var rank = 0u;
    for (var o = 0u; o < listed; o++) {
      rank += u32(list[o].x > mine.x || (list[o].x == mine.x && list[o].y < mine.y));
    }
    if (rank < TOP) {
      picked[out + 1 + rank] = mine.y;
      picked[out + 1 + TOP + rank] = bitcast<u32>(value_of(mine.x));
    }
  }
}
