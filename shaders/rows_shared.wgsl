// Each lane loads an eighth of the block and has the rest from the others: for subgroups of exactly 8 lanes.
fn load_row(token: u32, block: u32, lane: u32) -> array<vec4<f32>, 8> {
  let v = x_at(token * (K / 4) + block * 8 + lane);
  return array<vec4<f32>, 8>(
    subgroupBroadcast(v, 0u), subgroupBroadcast(v, 1u), subgroupBroadcast(v, 2u), subgroupBroadcast(v, 3u),
    subgroupBroadcast(v, 4u), subgroupBroadcast(v, 5u), subgroupBroadcast(v, 6u), subgroupBroadcast(v, 7u));
}
