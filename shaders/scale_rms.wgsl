// 1 / sqrt(mean of side[t, :]^2 + EPS) of TOKENS rows: with x = side times a gain, W . x is W . rms_norm(side).
@group(0) @binding(4) var<storage, read> side: array<f32>;
override EPS: f32;

fn row_scale(lane: u32, token: u32, last: u32) -> vec4<f32> {
  var s = vec4(0.0);
  for (var k = lane; k < K; k += LANES) {
    let a = side[(window.x + token) * K + k];
    s.x = fma(a, a, s.x);
    if (TOKENS > 1) {
      let b = side[(window.x + min(token + 1, last)) * K + k];
      let c = side[(window.x + min(token + 2, last)) * K + k];
      let d = side[(window.x + min(token + 3, last)) * K + k];
      s = vec4(s.x, fma(b, b, s.y), fma(c, c, s.z), fma(d, d, s.w));
    }
  }
  return inverseSqrt(reduce(lane, 1, s) / f32(K) + EPS);
}
