// `store4` to words of f16.
fn store4(element: u32, x: vec4<f32>, scale: f32) {
    let w = halves(x);
    pages[element / 2u] = w.x;
    pages[element / 2u + 1u] = w.y;
}
