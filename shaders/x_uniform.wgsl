// x [rows][K] f32 in at most 64 KiB, all that a uniform binding holds.
@group(0) @binding(1) var<uniform> x: array<vec4<f32>, 4096>;

fn x_at(i: u32) -> vec4<f32> {
  return x[i];
}
