// For workgroups that have one row of K elements each; lane i takes every 64th element from i on, so that a row
// does not depend on the others.
override EPS: f32;

const LANES = 64u;
var<workgroup> partial: array<f32, LANES>;

// 1 / sqrt(mean of squares + EPS) of the row, from each lane's sum of squares.
fn inverse_rms(lane: u32, squares: f32) -> f32 {
  partial[lane] = squares;
  for (var half = LANES / 2; half > 0; half = half / 2) {
    workgroupBarrier();
    if (lane < half) {
      partial[lane] += partial[lane + half];
    }
  }
  workgroupBarrier();
  return inverseSqrt(partial[0] / f32(K) + EPS);
}
