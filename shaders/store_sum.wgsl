// y = W . x
override STORED: u32 = ROWS;  // tiles of y per workgroup

fn tile_of(g: u32, r: u32) -> u32 {
  return g * ROWS + r;
}

fn put(row: u32, token: u32, last: u32, sum: f32) {
  if (row < N && token <= last) {
    y[token * Y_STRIDE + Y_FIRST + row] = sum;
  }
}

fn store(g: u32, lane: u32, token: u32, last: u32, sum: array<vec4<f32>, 8>) {
  var s = sum;
  for (var r = 0u; r < ROWS; r++) {
    let row = (g * ROWS + r) * 8 + lane;
    put(row, token, last, s[r].x);
    if (TOKENS > 1) {
      put(row, token + 1, last, s[r].y);
      put(row, token + 2, last, s[r].z);
      put(row, token + 3, last, s[r].w);
    }
  }
}
