// y[t, r] = sum over k of W[r, k] * x[t, k] for TOKENS rows t of x and ROWS * 8 rows r of a quantised W.
//
//   step    x: rows
//   x       [rows][K] f32, from the import `x`, loaded by the import `rows`
//   y       [rows][Y_STRIDE] f32, columns Y_FIRST + r, written by the import `store`
//   side    what the imports `scale` and `store` need besides, from the import `side`
//   W       tiles of 8 rows in planes, from the import `codec` (webkv/kernels/quant.py)
//
// One workgroup = 8 lanes (one row of W each, ROWS times) x SPLIT slices of K.  A sum runs along k in blocks of
// 32 within one lane: it depends neither on TOKENS nor ROWS nor any other row.
#import x
#import rows
#import planes
#import codec
#import side
#import scale
#import activation
#import store

override K: u32;
override N: u32;  // columns of y written; PAIRED: half the rows of W
override Y_STRIDE: u32;
override Y_FIRST: u32 = 0;
override TOKENS: u32 = 1;  // 1 or 4
override ROWS: u32 = 8;    // 1, 2, 4 or 8 tiles per workgroup
override SPLIT: u32 = 1;   // a power of two
override LANES: u32 = 8 * SPLIT;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> partial: array<vec4<f32>, LANES>;
var<private> x0: array<vec4<f32>, 8>;
var<private> x1: array<vec4<f32>, 8>;
var<private> x2: array<vec4<f32>, 8>;
var<private> x3: array<vec4<f32>, 8>;
var<private> x_sum: vec4<f32>;  // over the block, per token
var<private> held: Words;  // of SIDES tiles
var<private> sums: array<f32, 32>;  // per tile, per token

fn sum_of(v: array<vec4<f32>, 8>) -> f32 {
  let s = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  return (s.x + s.y) + (s.z + s.w);
}

fn load_x(token: u32, last: u32, block: u32, lane: u32) {
  x0 = load_row(token, block, lane);
  x_sum.x = sum_of(x0);
  if (TOKENS > 1) {
    x1 = load_row(min(token + 1, last), block, lane);
    x2 = load_row(min(token + 2, last), block, lane);
    x3 = load_row(min(token + 3, last), block, lane);
    x_sum = vec4(x_sum.x, sum_of(x1), sum_of(x2), sum_of(x3));
  }
}

struct Sums { t0: vec4<f32>, t1: vec4<f32>, t2: vec4<f32>, t3: vec4<f32> }

fn add4(b: Block, j: u32, p: Sums) -> Sums {
  let w = quants4(b, j);
  var s = p;
  s.t0 = fma(w, x0[j] * PRE, p.t0);
  if (TOKENS > 1) {
    s.t1 = fma(w, x1[j] * PRE, p.t1);
    s.t2 = fma(w, x2[j] * PRE, p.t2);
    s.t3 = fma(w, x3[j] * PRE, p.t3);
  }
  return s;
}

fn across(v: vec4<f32>) -> f32 {
  return (v.x + v.y) + (v.z + v.w);
}

// sums[r] += W[row of tile r of group g, block] . x
fn add_tile(g: u32, r: u32, block: u32, row: u32) {
  let tile = tile_of(g, r);
  if (r % SIDES == 0) {
    held = load_words(tile, block, row, K / 32);
  }
  let b = load_block(held, r % SIDES, tile, block, row, K / 32);
  var p = add4(b, 0, Sums());
  p = add4(b, 1, p);
  p = add4(b, 2, p);
  p = add4(b, 3, p);
  p = add4(b, 4, p);
  p = add4(b, 5, p);
  p = add4(b, 6, p);
  p = add4(b, 7, p);
  sums[4 * r] = fma(b.scale, across(p.t0), fma(b.minimum, x_sum.x, sums[4 * r]));
  if (TOKENS > 1) {
    sums[4 * r + 1] = fma(b.scale, across(p.t1), fma(b.minimum, x_sum.y, sums[4 * r + 1]));
    sums[4 * r + 2] = fma(b.scale, across(p.t2), fma(b.minimum, x_sum.z, sums[4 * r + 2]));
    sums[4 * r + 3] = fma(b.scale, across(p.t3), fma(b.minimum, x_sum.w, sums[4 * r + 3]));
  }
}

// The sum of v over the lanes that are equal modulo `stride`, a power of two.
fn reduce(lane: u32, stride: u32, v: vec4<f32>) -> vec4<f32> {
  workgroupBarrier();
  partial[lane] = v;
  for (var s = LANES / 2; s >= stride; s = s / 2) {
    workgroupBarrier();
    if (lane < s) {
      partial[lane] += partial[lane + s];
    }
  }
  workgroupBarrier();
  return partial[lane % stride];
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let last = step.x - 1;
  let token = group.y * TOKENS;
  let scale = row_scale(lane, token, last);
  for (var g = group.x; g * STORED < (N + 7) / 8; g += groups.x) {
    sums = array<f32, 32>();
    for (var block = lane / 8; block < K / 32; block += SPLIT) {
      load_x(token, last, block, lane);
      let row = lane % 8;
      add_tile(g, 0, block, row);
      if (ROWS > 1) { add_tile(g, 1, block, row); }
      if (ROWS > 2) {
        add_tile(g, 2, block, row);
        add_tile(g, 3, block, row);
      }
      if (ROWS > 4) {
        add_tile(g, 4, block, row);
        add_tile(g, 5, block, row);
        add_tile(g, 6, block, row);
        add_tile(g, 7, block, row);
      }
    }
    var total = array<vec4<f32>, 8>();
    for (var r = 0u; r < ROWS; r++) {
      total[r] = vec4(sums[4 * r], sums[4 * r + 1], sums[4 * r + 2], sums[4 * r + 3]);
      if (SPLIT > 1) {
        total[r] = reduce(lane, 8, total[r]);
      }
      total[r] *= scale;
    }
    if (lane < 8) {
      store(g, lane, token, last, total);
    }
  }
}
