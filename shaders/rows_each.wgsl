// Every lane loads all of the block, on any device.
fn load_row(token: u32, block: u32, lane: u32) -> array<vec4<f32>, 8> {
  let i = token * (K / 4) + block * 8;
  return array<vec4<f32>, 8>(
    x_at(i), x_at(i + 1), x_at(i + 2), x_at(i + 3), x_at(i + 4), x_at(i + 5), x_at(i + 6), x_at(i + 7));
}
