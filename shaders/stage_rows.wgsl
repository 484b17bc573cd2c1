// Rows from a buffer into a texture 1024 wide, bit for bit.
//
//   step  x: rows n          x  [..][K] f32          staged  texels of four
//
// One workgroup = 64 texels.
override K: u32;

@group(0) @binding(0) var<uniform> step: vec4<u32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var staged: texture_storage_2d<rgba32uint, write>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < step.x * (K / 4)) {
    textureStore(staged, vec2(id.x % 1024, id.x / 1024), x[id.x]);
  }
}
