// `store4` to words of int8.
fn store4(element: u32, x: vec4<f32>, scale: f32) {
    pages[element / 4u] = levels(x, scale);
}
