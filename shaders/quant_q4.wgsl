// Q4_0, Q4_1 (ggml): w = scale * q + minimum, q in 0..15.  A block is 32 weights of one row.
//   nibbles [tile][block][8 rows] 4 words: byte b of word c holds weights 4c + b (low) and 16 + 4c + b (high)
//   scales  [tile][block][8 rows] f16 pair (scale, minimum)

const PRE = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);  // quants4 leaves each byte at its place in the word

struct Block {
  words: vec4<u32>,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  scales: vec4<u32>,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  return Words(words_at(tile, block * 8 + row, blocks * 8));
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  let s = unpack2x16float(held.scales[at]);
  return Block(quads_at(tile, block, row, 8), s.x, s.y);
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  let w = b.words[j % 4] >> (j / 4 * 4);
  return vec4<f32>(vec4<i32>(vec4(w) & vec4(0xFu, 0xF00u, 0xF0000u, 0xF000000u)));
}
