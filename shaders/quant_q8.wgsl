// Q8_0 (ggml): w = scale * q, q in -128..127.  A block is 32 weights of one row.
//   bytes  [tile][block][2][8 rows] 4 words: byte b of word c of half h holds weight 16h + 4c + b
//   scales [tile][pair of blocks][8 rows] f16 pair, one scale per block

const PRE = vec4<f32>(0x1p-24);  // quants4 moves each byte to the top of its word

struct Block {
  first: vec4<u32>,
  second: vec4<u32>,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  scales: vec4<u32>,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  return Words(words_at(tile, block / 2 * 8 + row, (blocks + 1) / 2 * 8));
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  let s = unpack2x16float(held.scales[at]);
  let scale = select(s.y, s.x, block % 2 == 0);
  return Block(quads_at(tile, block, row, 16), quads_at(tile, block, row + 8, 16), scale, 0.0);
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  let w = select(b.second[j % 4], b.first[j % 4], j < 4);
  return vec4<f32>(vec4<i32>((vec4(w) << vec4(24u, 16u, 8u, 0u)) & vec4(0xFF000000u)));
}
