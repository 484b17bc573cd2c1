// GELU in the tanh form (Hendrycks & Gimpel 2016); the clamp keeps exp inside tanh from overflowing.
fn activate(g: f32) -> f32 {
  let inner = 0.7978845608028654 * (g + 0.044715 * g * g * g);
  return 0.5 * g * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}
