// Q6_K (ggml): w = d * s * (q - 32), q in 0..63, s in -128..127 for 16 weights.  A block is 32 weights of one row.
//   nibbles [tile][block][8 rows] 4 words: byte b of word c holds weights 4c + b (low) and 16 + 4c + b (high)
//   highs   [tile][block][2][8 rows] bits 2f, 2f + 1 of byte b of half h: the upper ones of weight 16h + 4f + b
//   scales  [tile][block][8 rows] f16 d, then s of the two halves

const PRE = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);  // quants4 leaves each byte at its place in the word

struct Block {
  words: vec4<u32>,
  high: vec2<u32>,
  halves: vec2<f32>,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  first: vec4<u32>,
  second: vec4<u32>,
  scales: vec4<u32>,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  let i = block * 16 + row;
  let scales = more_words_at(tile, block * 8 + row, blocks * 8);
  return Words(words_at(tile, i, blocks * 16), words_at(tile, i + 8, blocks * 16), scales);
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  let s = held.scales[at];
  let halves = vec2<f32>(vec2<i32>(vec2(s << 8, s)) >> vec2(24u));
  let high = vec2(held.first[at], held.second[at]);
  return Block(quads_at(tile, block, row, 8), high, halves, unpack2x16float(s & 0xFFFF).x, 0.0);
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  let upper = ((b.high[j / 4] >> (j % 4 * 2)) << 4) & 0x30303030u;
  let low = (b.words[j % 4] >> (j / 4 * 4)) & 0x0F0F0F0Fu;
  let q = vec4<f32>(vec4<i32>(vec4(low | upper) & vec4(0xFFu, 0xFF00u, 0xFF0000u, 0xFF000000u)));
  return (q - vec4(0x1p5, 0x1p13, 0x1p21, 0x1p29)) * b.halves[j / 4];
}
