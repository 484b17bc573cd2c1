// SiLU (swish): g * sigmoid(g).
fn activate(g: f32) -> f32 {
  return g / (1.0 + exp(-g));
}
