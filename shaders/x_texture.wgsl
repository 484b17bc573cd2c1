// x [rows][K] f32 in a texture 1024 wide, from stage_rows.wgsl.
@group(0) @binding(1) var x: texture_storage_2d<rgba32uint, read>;

fn x_at(i: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(textureLoad(x, vec2(i % 1024, i / 1024)));
}
