// Every lane loads all of the block, on any device.
fn load_row(token: u32, block: u32, lane: u32) -> array<vec4<f32>, 8> {
  let i = token * (K / 4) + block * 8;
  return array<vec4<f32>, 8>(x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5], x[i + 6], x[i + 7]);
}
