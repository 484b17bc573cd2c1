// The planes of W as textures of 16-byte texels: [tile / 8][block][tile % 8][items of the block], and words of
// four neighbouring tiles in a texel: [tile / 4][words].  The first index is a texture row, or several of 8192.
const SIDES = 4u;

@group(0) @binding(4) var plane0: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(5) var plane1: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(6) var plane2: texture_storage_2d<rgba32uint, read>;

fn texel(line: u32, i: u32, size: u32) -> vec2<u32> {
  if (size <= 8192) {
    return vec2(i, line);
  }
  return vec2(i % 8192, line * ((size + 8191) / 8192) + i / 8192);
}

// Item i of a block of `size` items.
fn quads_at(tile: u32, block: u32, i: u32, size: u32) -> vec4<u32> {
  return textureLoad(plane0, texel(tile / 8, (block * 8 + tile % 8) * size + i, K / 4 * size));
}

// Word i of the tile's `size` words, and those of its neighbours.
fn words_at(tile: u32, i: u32, size: u32) -> vec4<u32> {
  return textureLoad(plane1, texel(tile / SIDES, i, size));
}

fn more_words_at(tile: u32, i: u32, size: u32) -> vec4<u32> {
  return textureLoad(plane2, texel(tile / SIDES, i, size));
}
