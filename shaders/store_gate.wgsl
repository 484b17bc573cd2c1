// y = activate(G . x) * (U . x), from the import `activation`.  W has four tiles of G's N rows, four of U's, and so
// on; a workgroup takes ROWS / 2 tiles of each.
override STORED: u32 = ROWS / 2;  // tiles of y per workgroup

fn tile_of(g: u32, r: u32) -> u32 {
  let tile = g * STORED + r % STORED;
  return tile / 4 * 8 + tile % 4 + select(0u, 4u, r >= STORED);
}

fn put(row: u32, token: u32, last: u32, gate: f32, up: f32) {
  if (row < N && token <= last) {
    y[token * Y_STRIDE + Y_FIRST + row] = activate(gate) * up;
  }
}

fn store(g: u32, lane: u32, token: u32, last: u32, sum: array<vec4<f32>, 8>) {
  var s = sum;
  for (var r = 0u; r < STORED; r++) {
    let row = (g * STORED + r) * 8 + lane;
    put(row, token, last, s[r].x, s[r + STORED].x);
    if (TOKENS > 1) {
      put(row, token + 1, last, s[r].y, s[r + STORED].y);
      put(row, token + 2, last, s[r].z, s[r + STORED].z);
      put(row, token + 3, last, s[r].w, s[r + STORED].w);
    }
  }
}
