// u32 keys that order like floats: NaN is 0, then -inf up to +inf; both zeros are one key.
const NEGATIVE_INFINITY = 0x007FFFFFu;

fn key_of(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return 0u;
  }
  if (bits == 0x80000000u) {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, bits >> 31 == 1);
}

// The float of a key; -inf for NaN's.
fn value_of(key: u32) -> f32 {
  let k = max(key, NEGATIVE_INFINITY);
  return bitcast<f32>(select(~k, k & 0x7FFFFFFFu, k >> 31 == 1));
}
