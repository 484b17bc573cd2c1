// The stream's rows: x[t] = SCALE * E[ids[t]], and x[t] * gain after all rows of x (SCALED elements further).
//
//   step  x: rows n          ids  [n] u32        gain  [K]        x  [..] f32, K columns
//   E     rows FIRST .. FIRST + N - 1 of the embedding, from the import `codec`; other ids are left alone
//
// One workgroup = 32 blocks of 32 columns of one row.
#import planes
#import codec

override K: u32;
override N: u32;
override FIRST: u32 = 0;
override SCALE: f32 = 1;
override SCALED: u32;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> gain: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let block = id.x;
  let row = ids[id.y] - FIRST;
  if (block >= K / 32 || id.y >= step.x || ids[id.y] < FIRST || row >= N) {
    return;
  }
  let tile = row / 8;
  let words = load_words(tile, block, row % 8, K / 32);
  let b = load_block(words, tile % SIDES, tile, block, row % 8, K / 32);
  for (var j = 0u; j < 8; j++) {
    // Products of a quant, a power of two and a scale are exact; the sum rounds once, as ggml's does.
    let w = fma(quants4(b, j) * PRE, vec4(b.scale), vec4(b.minimum));
    let column = block * 8 + j;
    x[id.y * (K / 4) + column] = w * SCALE;
    x[SCALED / 4 + id.y * (K / 4) + column] = w * SCALE * gain[column];
  }
}
