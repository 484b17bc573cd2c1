// F32 weights.  A block is 32 weights of one row.
//   values [tile][block][8][8 rows] 4 weights: weights 4c .. 4c + 3 in eighth c

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
  return bitcast<vec4<f32>>(quads_at(b.tile, b.block, b.row + j * 8, 64));
}
