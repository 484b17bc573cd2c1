// Q4_K (ggml): w = d * s * q - dmin * m, q in 0..15, s and m in 0..63.  A block is 32 weights of one row; eight
// blocks share d and dmin.
//   nibbles [tile][block][8 rows] 4 words: byte b of word c holds weights 4c + b (low) and 16 + 4c + b (high)
//   steps   [tile][pair of blocks][8 rows] bytes s, m, s, m
//   supers  [tile][eight blocks][8 rows] f16 pair (d, dmin)

const PRE = vec4<f32>(1.0, 0x1p-8, 0x1p-16, 0x1p-24);  // quants4 leaves each byte at its place in the word

struct Block {
  words: vec4<u32>,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  steps: vec4<u32>,
  supers: vec4<u32>,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  let steps = words_at(tile, block / 2 * 8 + row, blocks / 2 * 8);
  return Words(steps, more_words_at(tile, block / 8 * 8 + row, blocks / 8 * 8));
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  let s = held.steps[at] >> (block % 2 * 16);
  let d = unpack2x16float(held.supers[at]);
  let words = quads_at(tile, block, row, 8);
  return Block(words, d.x * f32(s & 0xFF), -(d.y * f32((s >> 8) & 0xFF)));
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  let w = b.words[j % 4] >> (j / 4 * 4);
  return vec4<f32>(vec4<i32>(vec4(w) & vec4(0xFu, 0xF00u, 0xF0000u, 0xF000000u)));
}
