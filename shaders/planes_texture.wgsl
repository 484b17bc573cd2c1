// The planes of W as textures 1024 wide: one of 16-byte texels, up to two of words.
@group(0) @binding(4) var plane0: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(5) var plane1: texture_storage_2d<r32uint, read>;
@group(0) @binding(6) var plane2: texture_storage_2d<r32uint, read>;

fn quads_at(i: u32) -> vec4<u32> {
  return textureLoad(plane0, vec2(i % 1024, i / 1024));
}

fn words_at(i: u32) -> u32 {
  return textureLoad(plane1, vec2(i % 1024, i / 1024)).x;
}

fn more_words_at(i: u32) -> u32 {
  return textureLoad(plane2, vec2(i % 1024, i / 1024)).x;
}
