// F16 weights.  A block is 32 weights of one row.
//   pairs [tile][block][4][8 rows] 4 words of two: weights 8c .. 8c + 7 in quarter c

const PRE = vec4<f32>(1.0);

struct Block {
  tile: u32,
  block: u32,
  row: u32,
  scale: f32,
  minimum: f32,
}

// What SIDES tiles from `tile` on need besides their quants.
struct Words {
  nothing: u32,
}

fn load_words(tile: u32, block: u32, row: u32, blocks: u32) -> Words {
  return Words();
}

fn load_block(held: Words, at: u32, tile: u32, block: u32, row: u32, blocks: u32) -> Block {
  return Block(tile, block, row, 1.0, 0.0);
}

fn quants4(b: Block, j: u32) -> vec4<f32> {
  let w = quads_at(b.tile, b.block, b.row + j / 2 * 8, 32);
  let two = select(w.zw, w.xy, j % 2 == 0);
  return vec4(unpack2x16float(two.x), unpack2x16float(two.y));
}
