// The planes of W as buffers: one of 16-byte items, up to two of words.
@group(0) @binding(4) var<storage, read> plane0: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> plane1: array<u32>;
@group(0) @binding(6) var<storage, read> plane2: array<u32>;

fn quads_at(i: u32) -> vec4<u32> {
  return plane0[i];
}

fn words_at(i: u32) -> u32 {
  return plane1[i];
}

fn more_words_at(i: u32) -> u32 {
  return plane2[i];
}
