// 1 / sqrt(mean of side[t, :]^2 + EPS) of TOKENS rows: with x = side times a gain, W . x is W . rms_norm(side).
override EPS: f32;

fn squares(token: u32, k: u32, sum: f32) -> f32 {
  let v = side[token * (K / 4) + k];
  return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
}

fn row_scale(lane: u32, token: u32, last: u32) -> vec4<f32> {
  var s = vec4(0.0);
  for (var k = lane; k < K / 4; k += LANES) {
    s.x = squares(token, k, s.x);
    if (TOKENS > 1) {
      s.y = squares(min(token + 1, last), k, s.y);
      s.z = squares(min(token + 2, last), k, s.z);
      s.w = squares(min(token + 3, last), k, s.w);
    }
  }
  return inverseSqrt(reduce(lane, 1, s) / f32(K) + EPS);
}
