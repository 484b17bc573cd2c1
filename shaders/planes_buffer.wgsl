// The planes of W as buffers: one of 16-byte items, up to two of words.
const SIDES = 1u;

@group(0) @binding(4) var<storage, read> plane0: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> plane1: array<u32>;
@group(0) @binding(6) var<storage, read> plane2: array<u32>;

// Item i of a block of `size` items.
fn quads_at(tile: u32, block: u32, i: u32, size: u32) -> vec4<u32> {
  return plane0[(tile * (K / 32) + block) * size + i];
}

// Word i of the tile's `size` words, first.
fn words_at(tile: u32, i: u32, size: u32) -> vec4<u32> {
  return vec4(plane1[tile * size + i], 0, 0, 0);
}

fn more_words_at(tile: u32, i: u32, size: u32) -> vec4<u32> {
  return vec4(plane2[tile * size + i], 0, 0, 0);
}
