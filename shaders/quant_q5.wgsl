// Q5_0, Q5_1 (ggml): w = scale * q + minimum, q in 0..31.  A block is 32 weights of one row.
//   nibbles [tile][block][8 rows] 4 words: byte b of word c holds weights 4c + b (low) and 16 + 4c + b (high)
//   highs   [tile][block][8 rows] bit k: the fifth bit of weight k
//   scales  [tile][block][8 rows] f16 pair (scale, minimum)

const PRE = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);  // quants4 leaves each byte at its place in the word

struct Block {
  words: vec4<u32>,
  high: u32,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  highs: vec4<u32>,
  scales: vec4<u32>,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  let i = block * 8 + row;
  return Words(words_at(tile, i, blocks * 8), more_words_at(tile, i, blocks * 8));
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  let s = unpack2x16float(held.scales[at]);
  return Block(quads_at(tile, block, row, 8), held.highs[at], s.x, s.y);
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  // The product moves bits 0..3 of the nibble to bit 4 of bytes 0..3.
  let fifth = (((b.high >> (j * 4)) & 0xF) * 0x02040810u) & 0x10101010u;
  let w = ((b.words[j % 4] >> (j / 4 * 4)) & 0x0F0F0F0Fu) | fifth;
  return vec4<f32>(vec4<i32>(vec4(w) & vec4(0xFFu, 0xFF00u, 0xFF0000u, 0xFF000000u)));
}
